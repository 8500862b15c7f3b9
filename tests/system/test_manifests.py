"""Manifests that a recipe's commands make; reports of incomplete ones."""

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from data_files import small_clotho, write_wav
from placed_kills import compiled
from plans import plan

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
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
def wavcaps(tmp_path):
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


def test_manifest_is_made_once_and_again_after_it_was_deleted_but_not_by_another_command(wavcaps):
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3
    arrive(wavcaps, range(3, 10))
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3
    (wavcaps / "m.jsonl").unlink()
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 10
    (wavcaps / "m.jsonl.made_by").write_text(wavcaps_command(wavcaps, " --name other") + "\n")
    with pytest.raises(KitError, match="make"):
        make_missing(recipe)


def test_one_source_says_how_the_manifest_of_several_is_made(tmp_path):
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


def test_manifest_with_fewer_clips_than_published_is_reported_unless_a_tenth_is_missing(wavcaps, caplog):
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    text = plan(recipe)
    assert "only 3 of 10 published clips" in text
    assert "nothing is missing" not in text
    assert main(["check", str(wavcaps / "tiny.yaml")]) == 1
    with caplog.at_level(logging.WARNING):
        load_data(recipe)
    assert "only 3 of 10 published clips" in caplog.text
    arrive(wavcaps, range(3, 9))
    (wavcaps / "m.jsonl").unlink()
    make_missing(recipe)
    assert "9 clips, 9 captions, 0.00 h" in plan(recipe)


def test_clotho_manifest_is_made_only_after_unpacking(tmp_path):
    root = small_clotho(tmp_path, ["a.wav", "b.wav"], [])
    command = f"lbar data clotho {root} --splits development --out {root}/m.jsonl"
    recipe = recipe_of(root, command, "development", 2)
    with pytest.raises(KitError, match="make"):
        make_missing(recipe)
    assert not (root / "m.jsonl").exists()
    write_wav(root / "development" / "a.wav", 1)
    make_missing(recipe)
    assert [clip.seconds for clip in read_manifest(root / "m.jsonl")] == [0.01, None]


def test_command_that_writes_another_manifest_is_refused_before_it_runs(wavcaps):
    command = wavcaps_command(wavcaps).replace("/m.jsonl", "/n.jsonl")
    recipe = recipe_of(wavcaps, command, "train", None)
    said = f"the command `make` writes {wavcaps}/n.jsonl, but `manifest` is {wavcaps}/m.jsonl; correct one of them"
    assert said in plan(recipe)
    with pytest.raises(KitError, match=said):
        make_missing(recipe)
    assert not (wavcaps / "n.jsonl").exists()


CODES = {name: getattr(errno, name) for name in ("EIO", "ENOENT")}
FAILED = "development 003.wav"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled("fail_reads.c", tmp_path_factory.mktemp("reads") / "fail_reads.so")


def verb(library: Path, call: str, code: int, *argv: object) -> "subprocess.CompletedProcess[str]":
    failing = {"LD_PRELOAD": str(library), "FAIL_CALL": call, "FAIL_ERRNO": str(code), "FAIL_READS": FAILED}
    command = [sys.executable, "-m", *map(str, argv)]
    settings = os.environ | (failing if call else {})
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("call", ["open", "read"])
def test_failed_reads_are_reported_by_every_verb_without_traceback(name, call, library, tmp_path):
    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 12}, 2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    features = verb(library, call, CODES[name], "system", "run", "--until=features", recipe)
    assert "Traceback" not in features.stderr
    if name == "ENOENT":
        assert features.returncode == 0
        assert "1 broken and skipped" in features.stdout
    else:
        assert features.returncode == 1
        assert f"error: {tmp_path}/world/development/{FAILED}: " in features.stderr
        assert "left out" not in features.stderr
    checked = verb(library, call, CODES[name], "data_tools", "check", manifest)
    assert checked.returncode == 1
    assert FAILED in checked.stdout + checked.stderr
    assert "Traceback" not in checked.stderr


@pytest.mark.slow
def test_run_ended_by_a_read_error_resumes_with_all_clips(library, tmp_path):
    manifest = tiny.make_world(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 12}, 2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path, only=tiny.stage(epochs=1)))
    failed, whole = ("system", "run", recipe, "--out", tmp_path / "run"), tmp_path / "whole"
    assert verb(library, "read", errno.EIO, *failed).returncode == 1
    assert verb(library, "", 0, *failed).returncode == 0
    assert verb(library, "", 0, "system", "run", recipe, "--out", whole, "--set", f"banks={tmp_path}/b").returncode == 0
    first, second = (read_scores(folder / "scores/evaluation.npy").values for folder in (tmp_path / "run", whole))
    assert np.array_equal(first, second)
