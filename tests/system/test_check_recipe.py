"""`check`: what a recipe needs, what is to be fixed first, and a measured step."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_moments
from plans import fact, plan

from data_tools.classify.model_files import folder_problem
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import write_moments
from system.__main__ import main
from system.check import measure
from system.check.check import MISSING, MISTAKE, WARNING, Found, Line, steps_per_epoch, to_fix
from system.recipe import schema
from system.recipe.load import load_recipe


def written(folder: Path, content: dict[str, Any]) -> Path:
    return tiny.write_recipe(folder / "r.yaml", content)


def test_mistakes_come_before_missing_files_and_equal_messages_are_said_once() -> None:
    found = [Line(WARNING, "a", "x"), Line(MISSING, "b", "y"), Line(MISTAKE, "c", "z"), Line(MISSING, "d", "y")]
    assert to_fix(found) == [(MISTAKE, "c: z"), (MISSING, "b, d: y"), (WARNING, "a: x")]


def test_missing_manifest_counts_with_its_published_size(world: Path, tmp_path: Path) -> None:
    content = tiny.recipe(world, tmp_path, only=tiny.stage(steps_per_epoch="all", batch_size=8, epochs=3))
    content["data"]["train"] |= {"manifest": "gone.jsonl", "expected": {"clips": 100, "captions": 500, "hours": 2.0}}
    recipe = load_recipe(written(tmp_path, content)).recipe
    text = plan(recipe)
    assert "gone.jsonl" in text
    assert fact(text, "stage only").startswith(f"{3 * (100 // 8)} updates of 8 clips")
    data = {"train": Found(expected=recipe.data["train"].expected)}
    stage = recipe.stages["only"].model_copy(update={"unit": "pair"})
    assert steps_per_epoch(stage, data) == 500 // 8
    assert steps_per_epoch(stage, {"train": Found()}) == 0


def test_frames_of_a_split_that_two_sources_share_are_counted_once(world: Path, tmp_path: Path) -> None:
    content = tiny.recipe(world, tmp_path)
    content["data"]["again"] = content["data"]["train"]
    seconds = sum(clip.seconds or 0 for clip in read_manifest(world))
    said = re.search(r"frames/s at 16000 Hz, ([0-9.]+) MB", plan(load_recipe(written(tmp_path, content)).recipe))
    assert said
    assert float(said[1]) == pytest.approx(seconds * 12.5 * 128 * 2 / 1e6, abs=0.06)


def test_validation_with_a_single_clip_is_a_mistake(world: Path, tmp_path: Path) -> None:
    clips = [one for one in read_manifest(world) if one.split == "validation"][:1]
    write_manifest(tmp_path / "one.jsonl", clips)
    content = tiny.recipe(world, tmp_path)
    content["data"]["validation"]["manifest"] = str(tmp_path / "one.jsonl")
    assert "MISTAKE stage only: validation needs two clips" in plan(load_recipe(written(tmp_path, content)).recipe)


def test_training_moments_without_windows_are_a_mistake(moments_manifest: Path, tmp_path: Path) -> None:
    content = tiny_moments.recipe(moments_manifest, tmp_path)
    assert "MISTAKE" not in plan(load_recipe(written(tmp_path, content)).recipe)
    moments = [replace(one, windows=None) for one in tiny_moments.moments_of(moments_manifest)]
    write_moments(tmp_path / "m.jsonl", moments, read_manifest(moments_manifest))
    for source in content["data"].values():
        source["moments"] = str(tmp_path / "m.jsonl")
    assert "MISTAKE stage" in plan(load_recipe(written(tmp_path, content)).recipe)


def test_full_disk_is_a_warning(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(written(tmp_path, tiny.recipe(world, tmp_path))).recipe
    assert "WARNING" not in plan(recipe)
    monkeypatch.setattr("system.check.check.free_bytes", lambda folder: 10)
    assert "WARNING" in plan(recipe)


def test_model_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    for config, is_refused in (
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "auto_map": {"AutoModel": "modeling.Own"}}, False),
        ({"model_type": "own", "auto_map": {"AutoModel": "modeling.Own"}}, True),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert ("code" in (folder_problem(tmp_path) or "")) == is_refused


@pytest.mark.parametrize("chunk", [None, 3])
def test_measured_step_says_seconds_memory_and_hours(
    world: Path, tmp_path: Path, chunk: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    content = tiny.recipe(world, tmp_path, only=tiny.stage(grad_cache_chunk=chunk))
    assert main(["check", str(written(tmp_path, content)), "--step"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  step ")]
    assert re.fullmatch(r"  step only: [0-9.e-]+ s and [0-9.]+ GiB per step on cpu, [0-9.]+ h", line)


def measured(world: Path, folder: Path, **model: Any) -> list[str]:
    import torch

    content = tiny.recipe(world, folder, only=tiny.stage(batch_size=8))
    content["model"] |= model
    recipe = load_recipe(written(folder, content)).recipe
    return list(measure.measure(recipe, dict.fromkeys(recipe.data, ()), {"only": 0}, torch.device("cpu")))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("clip", ["d" * 9, "eeeee", "cccc", "bb"]), ("pair", ["d" * 9, "eeeee"])],
)
def test_measured_step_has_the_longest_captions(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, expected: list[str]
) -> None:
    import torch

    batches: list[list[str]] = []
    monkeypatch.setattr(measure, "_step", lambda model, stage, optimizer, batch: batches.append(batch.captions) or 1.0)
    drawn = {"unit": "clip", "captions_per_clip": 2} if unit == "clip" else {"unit": "pair", "captions_per_clip": None}
    content = tiny.recipe(world, tmp_path, only=tiny.stage(batch_size=2, **drawn))
    recipe, captions = load_recipe(written(tmp_path, content)).recipe, [["bb"], ["d" * 9, "a", "eeeee"], ["cccc"], []]
    clips = [Clip(id=str(n), path=f"{n}.wav", captions=each) for n, each in enumerate(captions)]
    list(measure.measure(recipe, dict.fromkeys(recipe.data, clips), {"only": 0}, torch.device("cpu")))
    assert batches[-1] == expected


def test_chunk_doubles_until_half_of_the_memory_is_used(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int | None]] = []

    def stepped(model: Any, stage: schema.Stage, optimizer: Any, batch: Any) -> float:
        sizes.append((len(batch.clip_keys), stage.grad_cache_chunk))
        return 1.0

    monkeypatch.setattr(measure, "_step", stepped)
    monkeypatch.setattr(measure, "_machine_memory", lambda: 100.0)
    monkeypatch.setattr(measure, "_peak", lambda device: 10.0 * max(size for size, _ in sizes[:3]))
    (line,) = measured(world, tmp_path)
    assert sizes == [(1, None), (2, None), (4, None), (8, None), (8, None)]
    assert "grad_cache_chunk" not in line
    sizes.clear()
    monkeypatch.setattr(measure, "_machine_memory", lambda: 40.0)
    (line,) = measured(world, tmp_path)
    assert sizes == [(1, None), (2, None), (8, 2)]
    assert "set grad_cache_chunk to 2" in line


def test_chunk_doubles_until_a_step_does_not_fit_into_a_gpu(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    fits = 5

    def stepped(model: Any, stage: schema.Stage, optimizer: Any, batch: Any) -> float:
        if (stage.grad_cache_chunk or len(batch.clip_keys)) > fits:
            raise torch.OutOfMemoryError
        return 1.0

    monkeypatch.setattr(measure, "_step", stepped)
    (line,) = measured(world, tmp_path)
    assert "set grad_cache_chunk to 4" in line
    fits = 0
    with pytest.raises(KitError, match="memory"):
        measured(world, tmp_path)
