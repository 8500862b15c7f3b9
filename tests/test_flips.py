"""One flipped bit in any file that a run, a bank or an export leaves is noticed, or changes nothing that is used.

Fast: one flip a file, of a digit where it has one, else of its middle. Slow: many more, at places drawn by a seed that
is printed (2022, unless LBAR_SEED says another).
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from outcomes import digest, lines
from quick import first_quick

from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.recipe.load import load_recipe

SEED = int(os.environ.get("LBAR_SEED", "2022"))
Use = Callable[[Path], object]  # uses the files of a folder: gives a result, or None for a refusal


def flip(path: Path, rng: np.random.Generator | None) -> str:
    """Flip a bit of a file, drawn, or without a generator the lowest of the first digit of a text, or of the middle of
    anything else; returns where."""
    data = bytearray(path.read_bytes())
    if rng is None:
        digit = re.search(rb"[0-9]", data) if path.suffix in (".json", ".jsonl", ".csv") else None
        position, bit = digit.start() if digit else len(data) // 2, 0
    else:
        position, bit = int(rng.integers(len(data))), int(rng.integers(8))
    data[position] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {position} of {path}, seed {SEED}"


def rank(world: Path, model: Path, *more: str) -> bytes | None:
    out = model.parent / "s.npy"
    for path in (out, out.with_suffix(".json")):
        path.unlink(missing_ok=True)
    verb = ["rank", str(model), "--audio", str(world), "--split", "evaluation", "--out", str(out), *more]
    return read_scores(out).values.tobytes() if main(verb) == 0 else None


def report(run: Path) -> str | None:
    out = run.parent / "page.html"
    return out.read_text() if submission(["report", str(run), "--out", str(out)]) == 0 else None


def resume(recipe: Path, run: Path) -> object:
    return (digest(run), lines(run)) if main(["train", str(recipe), "--out", str(run)]) == 0 else None


def require_noticed(folder: Path, name: str, use: Use, flips: int, capsys: pytest.CaptureFixture[str]) -> int:
    """Flip bits of a file one at a time, each in a new copy of its folder; return the number of reported ones."""
    rng = np.random.default_rng([SEED, *name.encode()])
    here = folder.parent / f"{folder.name} flipped"
    expected: object = None
    output = 0
    for n in range(flips + 1):
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(folder, here)
        where = flip(here / name, rng if n > 1 else None) if n else "nothing flipped"
        capsys.readouterr()
        found = use(here)
        errors = capsys.readouterr().err
        if not n:
            expected = found
            assert expected is not None, errors
        elif found is None:
            output += 1
            assert "error: " in errors, where
            assert "Traceback" not in errors, where
        else:
            assert found == expected, f"{where} was used"
    shutil.rmtree(here)
    print(f"{name}: {output} of {flips} flips told, the others changed nothing; seed {SEED}")
    return output


@pytest.fixture
def unfinished(unbroken: Path, tmp_path: Path) -> Path:
    """The run as a kill in its second stage would leave it."""
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    return run


FLIPS = [pytest.param(1, id="fast"), pytest.param(60, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("name", ["resolved.json", "vocabulary.json", "provenance.json", "finetune/done.json", "best"])
def test_bit_flips_in_a_run_are_noticed_by_rank(
    unbroken: Path, world: Path, tmp_path: Path, name: str, flips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    name = "finetune/e0003.safetensors" if name == "best" else name
    output = require_noticed(run, name, lambda folder: rank(world, folder), flips, capsys)
    assert output == flips if name.endswith("safetensors") else output


@pytest.mark.parametrize("flips", FLIPS)
def test_bit_flips_in_a_last_checkpoint_are_noticed(
    unbroken: Path, world: Path, tmp_path: Path, flips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    use = lambda folder: rank(world, folder, "--checkpoint", "last")  # noqa: E731
    assert require_noticed(run, "finetune/last.pt", use, flips, capsys) == flips


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize(
    "name",
    first_quick(["result.json", "scores/evaluation.npy", "resolved.json", "metrics.jsonl", "scores/evaluation.json",
     "scores/evaluation.clips.csv"], 2),
)  # fmt: skip
def test_bit_flips_in_a_run_are_noticed_by_report(
    unbroken: Path, tmp_path: Path, name: str, flips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    output = require_noticed(run, name, report, flips, capsys)
    assert output == flips or name == "result.json", "a flip in the blanks of JSON changes nothing"


@pytest.mark.parametrize("flips", [pytest.param(1, id="fast"), pytest.param(30, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["finetune/last.pt", "metrics.jsonl", "pretrain/done.json"])
def test_bit_flips_in_a_run_are_noticed_when_it_is_resumed(
    unfinished: Path, recipe: Path, name: str, flips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    require_noticed(unfinished, name, lambda run: resume(recipe, run), flips, capsys)


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "recipe.json", "vocabulary.json"])
def test_bit_flips_in_an_exported_model_are_noticed(
    unbroken: Path,
    world: Path,
    tmp_path: Path,
    name: str,
    flips: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(unbroken), "--out", "model"]) == 0
    output = require_noticed(tmp_path / "model", name, lambda folder: rank(world, folder), flips, capsys)
    assert output == flips or name == "model.json"


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("name", ["frames.bin", "index.jsonl", "bank.json"])
def test_bit_flips_in_a_bank_are_noticed(
    unbroken: Path, world: Path, recipe: Path, tmp_path: Path, name: str, flips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames are checked when they are read; a series that is missing from the index is computed again."""
    banks = recipe.parent / "banks"
    used = load_recipe(recipe).recipe.model.audio.experts["logmel"].bank_name()  # other tests have banks next to it
    for kept in (banks / used, banks / "contents.sqlite"):
        (shutil.copytree if kept.is_dir() else shutil.copy)(kept, (tmp_path / "banks").joinpath(kept.name))
    use = lambda folder: rank(world, unbroken, "--set", f"banks={folder}")  # noqa: E731
    require_noticed(tmp_path / "banks", f"{used}/{name}", use, flips, capsys)
