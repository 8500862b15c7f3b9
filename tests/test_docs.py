"""README and code agree: every file is in the tree, every command opens, every figure's command is the tested one."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from data_tools import cli

ROOMS = ("data_tools", "system", "submission")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_tree_names_every_file_and_no_other(root: Path) -> None:
    readme = (root / "README.md").read_text()
    tree = next(block for block in blocks(readme, "") if "pyproject.toml" in block)
    named = set(re.findall(r"[\w.]+\.(?:py|yaml)", tree))
    there = {path.name for room in ROOMS for path in (root / room).rglob("*.py")} - {
        "__init__.py",
        "__main__.py",
        "base.py",
    }
    there |= {path.name for path in (root / "recipes").rglob("*.yaml")}
    hidden = {"cli.py", "errors.py", "strict.py", "options.py"}  # said by their names; no reader looks for them here
    assert there - named - hidden == set()
    assert named - there - {"tiny.py"} == set()


def parser(room: str, words: list[str]) -> argparse.ArgumentParser:
    module = importlib.import_module(f"{room}.__main__")
    return cli.make_parser(room, "", module.VERBS, words, getattr(module, "add_edition", None))


def commands(root: Path) -> list[list[str]]:
    """All commands of the kit in README, in the recipes' first lines, and in the verbs' own examples."""
    texts = [line for block in blocks((root / "README.md").read_text(), "sh") for line in block.splitlines()]
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
    assert len(shown) > 30
    for words in shown:
        try:
            parser(words[2], words[3:]).parse_args(words[3:])
        except SystemExit as stop:
            raise AssertionError(f"{shlex.join(words)} is not taken") from stop
        for word in words:
            if word.startswith("recipes/"):
                assert (root / word).is_file(), shlex.join(words)


def test_no_placeholder_is_left(root: Path) -> None:
    for path in (root / "README.md", root / "recipes/README.md"):
        words = set(re.findall(r"\b[A-Z]{4,}_[A-Z_]{3,}\b", path.read_text()))
        variables = {"FREESOUND_API", "FREESOUND_API_KEY", "FREESOUND_ACCESS_TOKEN"}
        assert words <= {"LBAR_SHARED", "TYPE_CHECKING", *variables}, path


def test_the_set_up_commands_name_extras_that_exist(root: Path) -> None:
    import tomllib

    readme = (root / "README.md").read_text()
    extras = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {extra for group in re.findall(r'"\.\[([\w,]+)\]"', readme) for extra in group.split(",")}
    assert named == extras


def test_the_new_expert_in_readme_works(root: Path) -> None:
    import numpy as np
    import torch

    code = next(block for block in blocks((root / "README.md").read_text(), "python") if "class Loudness" in block)
    names: dict[str, object] = {}
    exec(code, names)
    expert = names["Loudness"](kind="loudness")  # type: ignore[operator]
    frames = expert.load(torch.device("cpu"))([np.full(3300, 0.5, np.float32)])[0]
    assert frames.shape == (3, expert.dim)
    assert frames[:2, 0] == pytest.approx(0.5)
    assert frames[2, 0] == pytest.approx((0.25 * 100 / 1600) ** 0.5)
    assert expert.key().startswith("loudness-")


def test_the_new_term_choice_and_encoder_in_readme_work(root: Path) -> None:
    from typing import Any, Literal

    import torch
    from pydantic import Field
    from torch import nn

    from data_tools.strict import Strict
    from system.batches.collate import Series
    from system.losses.batch_scores import BatchScores
    from system.losses.negatives import Places
    from system.models.audio.base import AudioEncoder
    from system.models.score import Embedded
    from system.recipe.schema import Gru

    names: dict[str, Any] = {
        "torch": torch, "nn": nn, "Any": Any, "Literal": Literal, "Field": Field, "Strict": Strict, "Series": Series,
        "AudioEncoder": AudioEncoder, "BatchScores": BatchScores, "Places": Places, "Embedded": Embedded,
    }  # fmt: skip
    for code in blocks((root / "README.md").read_text(), "python"):
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
