"""A participant's folder with correct and wrong files, for tests of mistakes."""

import hashlib
import json
import shlex
import shutil
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.tables import write_table

STUDY = {"name": "two", "recipe": "recipe.yaml", "seeds": [1], "cells": {"as_is": {}}}


def make_desk(folder: Path, world: Path, run: Path) -> None:
    """manifest.jsonl, captions.csv, blind.csv, recipe.yaml, two.study.yaml, run/, audio/, clotho/, and broken ones."""
    clips = read_manifest(world)
    write_manifest(folder / "manifest.jsonl", clips)
    shutil.copytree(run, folder / "run")
    for suffix in (".npy", ".json"):
        shutil.copy(run / f"scores/evaluation{suffix}", folder / f"scores{suffix}")
    evaluation = [clip for clip in clips if clip.split == "evaluation"]
    development = [clip for clip in clips if clip.split == "development"]
    (folder / "audio").mkdir()
    for clip in evaluation:
        shutil.copy(clip.path, folder / "audio")
    _captions(folder / "captions.csv", evaluation)
    _captions(folder / "other.csv", development)
    (folder / "clotho").mkdir()
    _captions(folder / "clotho/clotho_captions_development.csv", development)
    write_table(folder / "blind.csv", ["caption"], [[clip.captions[0]] for clip in evaluation])
    recipe = tiny.recipe(Path("manifest.jsonl"), Path())
    tiny.write_recipe(folder / "recipe.yaml", recipe)
    tiny.write_recipe(folder / "two.study.yaml", STUDY)
    (folder / "notes").mkdir()
    (folder / "notes/old.txt").write_text("not to be lost")
    (folder / "empty").mkdir()
    (folder / "empty.csv").touch()
    _broken_recipes(folder, recipe)
    _broken_studies(folder)
    _broken_manifests(folder, evaluation)


def changed(content: dict[str, Any], dotted: str, value: object) -> dict[str, Any]:
    """A copy with one setting changed."""
    copy = json.loads(json.dumps(content))
    *keys, last = dotted.split(".")
    at = copy
    for key in keys:
        at = at[key]
    at[last] = value
    return copy


def _broken_recipes(folder: Path, recipe: dict[str, Any]) -> None:
    text = {"kind": "published", "model": "nobody/nothing", "dim": 8, "head": "linear", "trainable": False}
    for name, key, value in (
        ("no_manifest", "data.train.manifest", "nowhere.jsonl"),
        ("csv_as_manifest", "data.train.manifest", "other.csv"),
        ("no_split", "data.train.split", "train"),
        ("no_weights", "model.audio.experts", {"vggish": {"kind": "vggish", "weights": "no.pth", "pca_weights": None}}),
        ("hub", "model.text", text),
        ("large_batch", "stages.only.batch_size", 99),
    ):
        tiny.write_recipe(folder / f"{name}.yaml", changed(recipe, key, value))
    tiny.write_recipe(folder / "no_seed.yaml", {name: recipe[name] for name in recipe if name != "seed"})
    text = yaml.safe_dump(recipe, sort_keys=False)
    (folder / "indented.yaml").write_text(text.replace("\nseed: 3\n", "\n  seed: 3\n"))


def _broken_studies(folder: Path) -> None:
    for name, key, value in (
        ("no_seeds", "seeds", None),
        ("text_seed", "seeds", ["one"]),
        ("recipe_number", "recipe", 5),
        ("wrong_recipe", "recipe", "nowhere.yaml"),
        ("wrong_key", "cells", {"one": {"stages.only.batchsize": 4}}),
        ("wrong_cell", "sells", {}),
    ):
        content = {**STUDY, key: value}
        tiny.write_recipe(folder / f"{name}.study.yaml", {k: v for k, v in content.items() if v is not None})
    (folder / "indented.study.yaml").write_text("name: two\n  recipe: recipe.yaml\nseeds: [1]\ncells: {one: {}}\n")


def _broken_manifests(folder: Path, clips: list[Clip]) -> None:
    (folder / "broken").mkdir()
    line = asdict(clips[0])
    for name, changes in (
        ("no_id", {"id": None}),
        ("number", {"id": 5}),
        ("typo", {"capshun": ["A dog"]}),
        ("split", {"split": "dev"}),
        ("captions", {"captions": "A dog"}),
    ):
        found = {key: value for key, value in {**line, **changes}.items() if value is not None}
        (folder / f"broken/{name}.jsonl").write_text(json.dumps(found) + "\n")


def _captions(path: Path, clips: list[Clip]) -> None:
    header = ["file_name", *(f"caption_{number}" for number in range(1, 6))]
    write_table(path, header, [[clip.file_name, *clip.captions] for clip in clips])


def contents(folder: Path) -> dict[str, str]:
    """Return the checksum of every file by path; None for a folder."""
    return {
        path.relative_to(folder).as_posix(): "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def original(world, tmp_path_factory, unbroken):
    folder = tmp_path_factory.mktemp("original") / "desk"
    folder.mkdir()
    make_desk(folder, world, unbroken)
    return folder


@pytest.fixture
def desk(original, monkeypatch):
    """The folder as the current one; it must be unchanged at the end."""
    monkeypatch.chdir(original)
    for variable in ("FREESOUND_API_KEY", "FREESOUND_API"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = _stamps(original)
    yield original
    assert _stamps(original) == before


def _stamps(folder: Path) -> dict[Path, tuple[int, int] | None]:
    """Size and time of each file; None for a folder."""
    facts = ((path, path.stat()) for path in folder.rglob("*"))
    return {path: None if path.is_dir() else (found.st_size, found.st_mtime_ns) for path, found in facts}


def refusal(floor: str, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must fail with status 1, or 2 for arguments that do not fit the verb."""
    capsys.readouterr()
    status = import_module(f"{floor}.__main__").main(shlex.split(line))
    output, errors = capsys.readouterr()
    assert status in (1, 2)
    assert "Traceback" not in errors
    found = [text for text in errors.splitlines() if "error: " in text.lower()]
    assert len(found) == 1, errors
    assert len(found[0]) < 500, "a sentence can be read at a glance"
    return found[0] if "listed above" not in found[0] else output
