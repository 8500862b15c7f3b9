"""Manifests that a recipe's commands make, and make again; reports of incomplete ones."""

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
from system.recipe.data import load_data
from system.recipe.load import load_recipe
from system.recipe.manifests import _audio_files, input_paths, make_missing
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


@pytest.mark.parametrize("expected", [10, None])
def test_manifest_is_made_again_after_new_files_arrive(wavcaps: Path, expected: int | None) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", expected)
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3
    arrive(wavcaps, range(3, 10))
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 10


def test_manifest_is_not_made_again_without_new_files(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    before = (wavcaps / "m.jsonl").stat().st_mtime_ns
    make_missing(recipe)
    for file in (wavcaps / "audio").iterdir():
        file.unlink()
    make_missing(recipe)
    assert (wavcaps / "m.jsonl").stat().st_mtime_ns == before


def test_manifest_written_by_hand_is_kept(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    (wavcaps / "m.jsonl.made_by").unlink()
    arrive(wavcaps, range(3, 10))
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 3


def test_edited_manifest_is_kept_with_a_warning(wavcaps: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    lines = (wavcaps / "m.jsonl").read_text().splitlines(keepends=True)
    (wavcaps / "m.jsonl").write_text("".join(lines[:-1]))
    arrive(wavcaps, range(3, 10))
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 2
    assert "delete" in caplog.text


def test_manifest_is_made_again_after_files_are_renamed(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    (wavcaps / "audio/0.wav").rename(wavcaps / "audio/7.wav")
    make_missing(recipe)
    assert [clip.file_name for clip in read_manifest(wavcaps / "m.jsonl")] == ["1.wav", "2.wav", "7.wav"]


def test_audio_files_in_all_input_folders_of_a_command_are_counted(tmp_path: Path) -> None:
    """Clotho's folder has subfolders; a command may also name several folders."""
    for name in ("a", "b"):
        write_wav(tmp_path / name / "1.wav", 1)
    command = f"lbar data scenes {tmp_path}/s --seed 1 --recordings {tmp_path}/a"
    assert tmp_path / "a" in input_paths(command)
    assert _audio_files([f"{tmp_path}/a"])[0] == 1
    assert _audio_files([f"{tmp_path}/a", f"{tmp_path}/b"])[0] == 2


def test_resumed_run_keeps_its_manifest_although_new_files_arrived(
    wavcaps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrive(wavcaps, range(3, 8))
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", None)
    command = [str(wavcaps / "tiny.yaml"), "--out", str(wavcaps / "run"), "--set", "rank.evaluation="]
    assert main(["run", "--until=training", *command]) == 0, capsys.readouterr().err
    arrive(wavcaps, range(8, 10))
    assert main(["run", "--until=training", *command]) == 0, capsys.readouterr().err
    assert len(read_manifest(wavcaps / "m.jsonl")) == 8
    make_missing(recipe)
    assert len(read_manifest(wavcaps / "m.jsonl")) == 10


def test_manifest_made_by_another_command_than_the_recipe_states_is_refused(wavcaps: Path) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    (wavcaps / "m.jsonl.made_by").write_text(wavcaps_command(wavcaps, " --name other") + "\n3\n")
    with pytest.raises(KitError, match="make"):
        make_missing(recipe)


def test_manifest_with_fewer_clips_than_published_is_reported(wavcaps: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = recipe_of(wavcaps, wavcaps_command(wavcaps), "train", 10)
    make_missing(recipe)
    text = plan(recipe)
    assert "only 3 of 10 published clips; get the missing clips, then `run` makes the manifest again" in text
    assert "nothing is missing" not in text
    assert main(["check", str(wavcaps / "tiny.yaml")]) == 1
    with caplog.at_level(logging.WARNING):
        load_data(recipe)
    assert "m.jsonl has 3 of 10 published clips" in caplog.text
    (wavcaps / "m.jsonl.made_by").unlink()
    assert f"get the missing clips, then make {wavcaps}/m.jsonl again" in plan(recipe)


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
    write_wav(root / "development" / "b.wav", 2)
    make_missing(recipe)
    assert [clip.seconds for clip in read_manifest(root / "m.jsonl")] == [0.01, 0.01]


def test_command_that_writes_another_manifest_is_refused_before_it_runs(wavcaps: Path) -> None:
    command = wavcaps_command(wavcaps).replace("/m.jsonl", "/n.jsonl")
    recipe = recipe_of(wavcaps, command, "train", None)
    said = f"the command `make` writes {wavcaps}/n.jsonl, but `manifest` is {wavcaps}/m.jsonl; correct one of them"
    assert said in plan(recipe)
    with pytest.raises(KitError, match=f"data source train: {said}"):
        make_missing(recipe)
    assert not (wavcaps / "n.jsonl").exists()
