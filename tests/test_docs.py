"""READMEs and code agree: every file is in a tree, every link leads somewhere, every figure stands once, every command
opens, every example works."""

import argparse
import importlib
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from data_tools import cli

ROOMS = ("data_tools", "system", "submission")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def readmes(root: Path) -> list[Path]:
    folders = [root / top for top in (*ROOMS, "recipes", "tests")]
    return [root / "README.md", *(path for folder in folders for path in folder.rglob("README.md"))]


def prose(path: Path) -> str:
    """A README without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("room", ROOMS)
def test_a_floors_readme_names_each_of_its_files_and_no_other(root: Path, room: str) -> None:
    tree = blocks((root / room / "README.md").read_text().partition("## What is where")[2], "")[0]
    named = Counter(re.findall(r"[\w.]+\.py", tree))
    there = Counter(path.name for path in (root / room).rglob("*.py") if not path.name.startswith("__"))
    assert named == there


def test_readme_is_read_in_minutes(root: Path) -> None:
    lines = (root / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert all(len(line) <= 165 for line in lines)


def test_every_link_leads_to_a_file_and_a_heading(root: Path) -> None:
    links = 0
    for path in readmes(root):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if "://" in target:
                continue
            links += 1
            name, _, anchor = target.partition("#")
            leads = path.parent / name if name else path
            assert leads.exists(), f"{path} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", prose(leads), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{path} links to {target}"
    assert links > 30


def test_a_figure_stands_in_one_readme(root: Path) -> None:
    """Of three decimals or more; spreads (behind ±) and differences (with a sign) may be alike by chance."""
    stands_in: dict[str, Path] = {}
    for path in readmes(root):
        text = re.sub(r"± [\d.]+", "", path.read_text())
        for figure in re.findall(r"(?<![\w.+-])\d+\.\d{3,}(?![\w.])", text):
            assert stands_in.setdefault(figure, path) == path, f"{figure} stands in {stands_in[figure]} and in {path}"
    assert len(stands_in) > 100


def parser(room: str, words: list[str]) -> argparse.ArgumentParser:
    module = importlib.import_module(f"{room}.__main__")
    return cli.make_parser(room, "", module.VERBS, words, getattr(module, "add_edition", None))


def commands(root: Path) -> list[list[str]]:
    """All commands of the kit in the READMEs, in the recipes' first lines, and in the verbs' own examples."""
    texts = []
    for path in readmes(root):
        texts += [line for block in blocks(path.read_text(), "sh") for line in block.splitlines()]
        texts += [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(path)) if len(text.split()) > 4]
    for path in (root / "recipes").rglob("*.yaml"):
        texts += [line.removeprefix("#").strip() for line in path.read_text().splitlines()[:12]]
    for room in ROOMS:
        for verb in importlib.import_module(f"{room}.__main__").VERBS.values():
            texts += [line.strip() for line in verb.example.splitlines()]
    return [
        shlex.split(text.removesuffix(" &"), comments=True)
        for text in texts
        if text.startswith(tuple(f"python -m {room}" for room in ROOMS))
    ]


def test_every_command_that_is_shown_is_one_the_doors_take(root: Path) -> None:
    shown = commands(root)
    assert len(shown) > 100
    for words in shown:
        try:
            parser(words[2], words[3:]).parse_args(words[3:])
        except SystemExit as stop:
            raise AssertionError(f"{shlex.join(words)} is not taken") from stop
        for word in words:
            if word.startswith("recipes/"):
                assert (root / word).is_file(), shlex.join(words)


def test_no_placeholder_is_left(root: Path) -> None:
    for path in readmes(root):
        words = set(re.findall(r"\b[A-Z]{4,}_[A-Z_]{3,}\b", path.read_text()))
        variables = {"FREESOUND_API", "FREESOUND_API_KEY", "FREESOUND_ACCESS_TOKEN"}
        assert words <= {"LBAR_SHARED", "TYPE_CHECKING", *variables}, path


def test_the_set_up_commands_name_extras_that_exist(root: Path) -> None:
    import tomllib

    readme = "".join(path.read_text() for path in readmes(root))
    extras = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {extra for group in re.findall(r'"\.\[([\w,]+)\]"', readme) for extra in group.split(",")}
    assert named == extras


def test_the_new_expert_in_the_readme_of_system_works(root: Path) -> None:
    import numpy as np
    import torch

    readme = (root / "system/README.md").read_text()
    code = next(block for block in blocks(readme, "python") if "class Loudness" in block)
    names: dict[str, object] = {}
    exec(code, names)
    expert = names["Loudness"](kind="loudness")  # type: ignore[operator]
    frames = expert.load(torch.device("cpu"))([np.full(3300, 0.5, np.float32)])[0]
    assert frames.shape == (3, expert.dim)
    assert frames[:2, 0] == pytest.approx(0.5)
    assert frames[2, 0] == pytest.approx((0.25 * 100 / 1600) ** 0.5)
    assert expert.key().startswith("loudness-")


def test_the_new_term_choice_and_encoder_in_the_readme_of_system_work(root: Path) -> None:
    from typing import Any, Literal

    import torch
    from pydantic import Field
    from torch import nn

    from data_tools.strict import Strict
    from system.losses.batch_scores import BatchScores
    from system.losses.negatives import Indices
    from system.models.audio.encoder import AudioEncoder
    from system.models.batch import Series
    from system.models.similarity import Embedded
    from system.recipe.schema import Gru

    names: dict[str, Any] = {
        "torch": torch, "nn": nn, "Any": Any, "Literal": Literal, "Field": Field, "Strict": Strict, "Series": Series,
        "AudioEncoder": AudioEncoder, "BatchScores": BatchScores, "Indices": Indices, "Embedded": Embedded,
    }  # fmt: skip
    for code in blocks((root / "system/README.md").read_text(), "python"):
        if "Loudness" not in code:
            exec(code, names)
    scores = torch.tensor([[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]])
    alone = torch.eye(3, dtype=torch.bool)
    batch = BatchScores(scores, torch.arange(3), alone, None, lambda: scores, lambda: scores)
    captions, clips = names["second_hardest"](batch)
    assert (captions.tolist(), clips.tolist()) == ([1, 0, 0], [2, 2, 1])
    settings = names["SoftMax"](kind="soft_max", weight=1, sharpness=1000)
    assert names["soft_max"](batch, settings).item() == pytest.approx((-0.1 + 0.1 - 0.5) / 3, abs=1e-3)
    logmel = {
        "kind": "logmel",
        "sample_rate": 8000,
        "bands": 8,
        "window_seconds": 0.04,
        "hop_seconds": 0.02,
        "stack": 1,
    }
    one = {"kind": "gru", "experts": {"a": logmel}, "width": 4, "hidden": 4, "dropout": 0, "embedding": "mean"}
    encoder = names["LastFrame"](Gru.model_validate(one), 5)
    values = torch.randn(2, 3, 8)
    found = encoder({"a": Series(values, torch.tensor([3, 1]))}).values
    assert torch.equal(found, encoder.out(torch.stack([values[0, 2], values[1, 0]])))


def test_recipes_are_listed_in_their_readme(root: Path) -> None:
    text = (root / "recipes/README.md").read_text()
    for path in (root / "recipes").rglob("*.yaml"):
        assert f"`{path.relative_to(root / 'recipes')}`" in text, path
