"""Manifests that a recipe's commands make; reports of incomplete ones."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
from data_files import small_clotho, write_wav
from plans import plan

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from system.__main__ import main
from system.recipe.data import load_data, make_missing
from system.recipe.load import RecipeError, load_recipe
from system.recipe.schema import Recipe

FORM = "num_captions_per_audio"


def recipe_of(folder: Path, make: str, split: str, expected: int | None) -> Recipe:
    """A recipe that makes its training data."""
    content = tiny.recipe(tiny.make_world(folder / "world", {"validation": 2, "evaluation": 2}), folder)
    source: dict[str, Any] = {"manifest": str(folder / "m.jsonl"), "split": split, "make": make}
    if expected:
        source["expected"] = {"clips": expected, "captions": expected, "hours": 0.1}
    content["data"]["train"] = source
    return load_recipe(tiny.write_recipe(folder / "tiny.yaml", content)).recipe


@pytest.fixture
def wavcaps(tmp_path: Path) -> Path:
    """WavCaps with 3 of 10 files."""
    items = [
        {"id": str(n), "caption": f"A dog barks {n} times.", "audio": f"{n}.wav", "duration": 1} for n in range(10)
    ]
    (tmp_path / "part.json").write_text(json.dumps({FORM: 1, "data": items}))
    arrive(tmp_path, range(3))
    return tmp_path


def arrive(folder: Path, numbers: range) -> None:
    for number in numbers:
        write_wav(folder / "audio" / f"{number}.wav", number)


def wavcaps_command(folder: Path, more: str = "") -> str:
    return f"lbar data wavcaps {folder}/part.json --audio {folder}/audio --out {folder}/m.jsonl {more}".strip()


def test_manifest_is_made_once_and_again_after_it_was_deleted(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3
    arrive(wavcaps, range(3, 10))
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3
    (wavcaps / "m.jsonl").unlink()
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 10


def test_one_source_says_how_the_manifest_of_several_is_made(tmp_path: Path) -> None:
    root = small_clotho(tmp_path / "clotho", ["a.wav", "b.wav"], ["a.wav", "b.wav"])
    small_clotho(root, ["c.wav", "d.wav"], ["c.wav", "d.wav"], "evaluation")
    content = tiny.recipe(tiny.make_world(tmp_path / "world", {"validation": 2}), tmp_path)
    command = f"lbar data clotho {root} --splits development --splits evaluation --out {root}/m.jsonl"
    content["data"]["train"] = {"manifest": f"{root}/m.jsonl", "split": "development"}
    content["data"]["evaluation"] = {"manifest": f"{root}/m.jsonl", "split": "evaluation", "make": command}
    path = tiny.write_recipe(tmp_path / "tiny.yaml", content)
    make_missing(load_recipe(path).recipe)
    assert len(read_manifest(root / "m.jsonl")) == 4
    with pytest.raises(RecipeError, match="another"):
        load_recipe(path, [f"data.train.make={command} --name other"])


def test_manifest_made_by_another_command_than_the_recipe_states_is_refused(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    (wavcaps / "m.jsonl.made_by").write_text(wavcaps_command(wavcaps, " --name other") + "\n")
    with pytest.raises(KitError, match="make"):
        make_missing(recipe)


def test_manifest_with_fewer_clips_than_published_is_reported(wavcaps: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    text = plan(recipe)
    assert "only 3 of 10 published clips" in text
    assert "nothing is missing" not in text
    assert main(["check", str(wavcaps / "tiny.yaml")]) == 1
    with caplog.at_level(logging.WARNING):
        load_data(recipe)
    assert "only 3 of 10 published clips" in caplog.text


def test_source_with_a_tenth_of_published_clips_missing_is_accepted(wavcaps: Path) -> None:
    arrive(wavcaps, range(3, 9))
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    assert "9 clips, 9 captions, 0.00 h" in plan(recipe)


def test_clotho_manifest_is_made_only_after_unpacking(tmp_path: Path) -> None:
    root = small_clotho(tmp_path, ["a.wav", "b.wav"], [])
    command = f"lbar data clotho {root} --splits development --out {root}/m.jsonl"
    recipe = recipe_of(root, command, "development", 2)
    with pytest.raises(KitError, match="make"):
        make_missing(recipe)
    assert not (root / "m.jsonl").exists()
    write_wav(root / "development" / "a.wav", 1)
    make_missing(recipe)
    assert [clip.seconds for clip in read_manifest(root / "m.jsonl")] == [0.01, None]


def test_command_that_writes_another_manifest_is_refused_before_it_runs(wavcaps: Path) -> None:
    command = wavcaps_command(wavcaps).replace("/m.jsonl", "/n.jsonl")
    recipe = recipe_of(wavcaps, command, "train", None)
    said = f"the command `make` writes {wavcaps}/n.jsonl, but `manifest` is {wavcaps}/m.jsonl; correct one of them"
    assert said in plan(recipe)
    with pytest.raises(KitError, match=said):
        make_missing(recipe)
    assert not (wavcaps / "n.jsonl").exists()
