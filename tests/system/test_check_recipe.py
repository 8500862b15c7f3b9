"""`check`: what a recipe needs, what is to be fixed first, and a measured step."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_moments
import torch
from plans import fact, plan

from data_tools.classify.model_files import folder_problem
from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import write_moments
from system.__main__ import main
from system.check import measure
from system.check.check import MISSING, MISTAKE, WARNING, Found, Line, steps_per_epoch, to_fix
from system.models.audio.crnn import Crnn, Gru
from system.models.audio.heads import PooledMlp
from system.models.audio.segments import Segments
from system.recipe import schema
from system.recipe.load import RecipeError, load_recipe


def written(folder: Path, content: dict[str, Any]) -> Path:
    return tiny.write_recipe(folder / "r.yaml", content)


def test_mistakes_come_before_missing_files_and_equal_messages_are_said_once():
    found = [Line(WARNING, "a", "x"), Line(MISSING, "b", "y"), Line(MISTAKE, "c", "z"), Line(MISSING, "d", "y")]
    assert to_fix(found) == [(MISTAKE, "c: z"), (MISSING, "b, d: y"), (WARNING, "a: x")]


def test_sizes_of_missing_manifests_and_shared_splits_are_counted_once(world, tmp_path):
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
    content = tiny.recipe(world, tmp_path)
    content["data"]["again"] = content["data"]["train"]
    seconds = sum(clip.seconds or 0 for clip in read_manifest(world))
    said = re.search(r"frames/s at 16000 Hz, ([0-9.]+) MB", plan(load_recipe(written(tmp_path, content)).recipe))
    assert said
    assert float(said[1]) == pytest.approx(seconds * 12.5 * 128 * 2 / 1e6, abs=0.06)


def test_validation_with_a_single_clip_is_a_mistake(world, tmp_path):
    clips = [one for one in read_manifest(world) if one.split == "validation"][:1]
    write_manifest(tmp_path / "one.jsonl", clips)
    content = tiny.recipe(world, tmp_path)
    content["data"]["validation"]["manifest"] = str(tmp_path / "one.jsonl")
    assert "MISTAKE stage only: validation needs two clips" in plan(load_recipe(written(tmp_path, content)).recipe)


def test_training_moments_without_windows_are_a_mistake(moments_manifest, tmp_path):
    content = tiny_moments.recipe(moments_manifest, tmp_path)
    assert "MISTAKE" not in plan(load_recipe(written(tmp_path, content)).recipe)
    moments = [replace(one, windows=None) for one in tiny_moments.moments_of(moments_manifest)]
    write_moments(tmp_path / "m.jsonl", moments, read_manifest(moments_manifest))
    for source in content["data"].values():
        source["moments"] = str(tmp_path / "m.jsonl")
    assert "MISTAKE stage" in plan(load_recipe(written(tmp_path, content)).recipe)


def test_full_disk_is_a_warning(world, tmp_path, monkeypatch):
    recipe = load_recipe(written(tmp_path, tiny.recipe(world, tmp_path))).recipe
    assert "WARNING" not in plan(recipe)
    monkeypatch.setattr("system.check.check.free_bytes", lambda folder: 10)
    assert "WARNING" in plan(recipe)


def test_model_that_needs_its_own_code_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    for config, is_refused in (
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "auto_map": {"AutoModel": "modeling.Own"}}, False),
        ({"model_type": "own", "auto_map": {"AutoModel": "modeling.Own"}}, True),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert ("code" in (folder_problem(tmp_path) or "")) == is_refused


def test_measured_step_says_seconds_memory_and_hours(world, tmp_path, capsys):
    content = tiny.recipe(world, tmp_path, only=tiny.stage(grad_cache_chunk=3))
    assert main(["check", str(written(tmp_path, content)), "--step"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  step ")]
    assert re.fullmatch(r"  step only: [0-9.e-]+ s and [0-9.]+ GiB per step on cpu, [0-9.]+ h", line)


def measured(recipe: schema.Recipe, clips: tuple[Clip, ...] = ()) -> list[str]:
    return list(measure.measure(recipe, dict.fromkeys(recipe.data, clips), {"only": 0}, torch.device("cpu")))


@pytest.mark.parametrize(("unit", "expected"), [("clip", ["d" * 9, "eeeee", "cccc"]), ("pair", ["d" * 9, "eeeee"])])
def test_measured_step_has_the_longest_captions(world, tmp_path, monkeypatch, unit, expected):
    batches: list[list[str]] = []
    monkeypatch.setattr(measure, "_step", lambda model, stage, optimizer, batch: batches.append(batch.captions) or 1.0)
    drawn = {"unit": unit, "captions_per_clip": 2 if unit == "clip" else None}
    content = tiny.recipe(world, tmp_path, only=tiny.stage(batch_size=2, **drawn))
    captions = [["bb"], ["d" * 9, "a", "eeeee"], ["cccc"], []]
    clips = (Clip(id=str(n), path=f"{n}.wav", captions=each) for n, each in enumerate(captions))
    measured(load_recipe(written(tmp_path, content)).recipe, tuple(clips))
    assert batches[-1] == expected


def test_chunk_doubles_until_half_of_the_memory_is_used_or_a_step_does_not_fit(world, tmp_path, monkeypatch):
    recipe = load_recipe(written(tmp_path, tiny.recipe(world, tmp_path, only=tiny.stage(batch_size=8)))).recipe
    sizes: list[tuple[int, int | None]] = []
    fits = 8

    def stepped(model: Any, stage: schema.Stage, optimizer: Any, batch: Any) -> float:
        sizes.append((len(batch.clip_keys), stage.grad_cache_chunk))
        if (stage.grad_cache_chunk or len(batch.clip_keys)) > fits:
            raise torch.OutOfMemoryError
        return 1.0

    monkeypatch.setattr(measure, "_step", stepped)
    with monkeypatch.context() as patched:
        patched.setattr(measure, "_machine_memory", lambda: 100.0)
        patched.setattr(measure, "_peak", lambda device: 10.0 * max(size for size, _ in sizes[:3]))
        (line,) = measured(recipe)
        assert sizes == [(1, None), (2, None), (4, None), (8, None), (8, None)]
        assert "grad_cache_chunk" not in line
        sizes.clear()
        patched.setattr(measure, "_machine_memory", lambda: 40.0)
        (line,) = measured(recipe)
        assert sizes == [(1, None), (2, None), (8, 2)]
        assert "set grad_cache_chunk to 2" in line
    fits = 5
    (line,) = measured(recipe)
    assert "set grad_cache_chunk to 4" in line
    fits = 0
    with pytest.raises(KitError, match="memory"):
        measured(recipe)


NETWORK = {"kind": "panns", "network": "resnet38", "weights": "data/weights/ResNet38_mAP=0.434.pth", "output": "clip"}
PANNS = {"kind": "segments", "network": NETWORK, "trainable": True, "max_seconds": 30, "hidden": 2048}
FROZEN = {"cnn": {"kind": "panns", "network": "cnn14_16k", "weights": "a"}}
LOGMEL = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 128, "window_seconds": 0.04, "hop_seconds": 0.02}
CRNN = {"kind": "crnn", "experts": {"logmel": LOGMEL | {"lowest": 12, "highest": 8_000}}}
CRNN |= {"hidden": 150, "dropout": 0.3, "embedding": "frames"}
AUDIO: list[tuple[Any, dict[str, Any]]] = [
    (Segments, PANNS | {"network": NETWORK | {"network": "cnn14"}}),
    (Segments, PANNS | {"network": NETWORK | {"network": "cnn14"}, "trainable": False}),
    (PooledMlp, {"kind": "pooled_mlp", "experts": FROZEN, "pooling": "mean", "hidden": 99, "dropout": 0.1}),
    (Crnn, CRNN),
    (Gru, {"kind": "gru", "experts": FROZEN, "width": 7, "hidden": 9, "dropout": 0.1, "embedding": "mean"}),
]

BERT_BASE = {"kind": "published", "pooling": "first", "model": "bert-base-uncased", "trainable": True}
BERT_BASE |= {"removed": ",", "dropout": 0.2, "hidden": 2048, "dim": 1024}


@pytest.mark.parametrize(("kind", "content"), AUDIO)
def test_trained_model_parts_in_the_settings_match_those_of_the_built_encoder(kind, content, monkeypatch):
    tiny.narrowed(monkeypatch)
    settings = kind.model_validate(content)
    parts = settings.build(30).parts()
    assert settings.trained_parts == {
        name: any(p.requires_grad for p in part.parameters()) for name, part in parts.items()
    }


def content_of(folder: Path, audio: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    stage = tiny.stage(unit="pair", captions_per_clip=None, batch_size=32)
    content = tiny.recipe(folder / "m.jsonl", folder, only=stage)
    content["model"] |= {"audio": audio, "text": text}
    for source in content["data"].values():
        source["expected"] = {"clips": 100, "captions": 500, "hours": 100 * 10 / 3600}
    return content


def made(folder: Path, weights: str | None, is_trained: bool = True) -> schema.Recipe:
    """Metric learning of 2022: PANNs and BERT."""
    audio = PANNS | {"network": NETWORK | {"weights": weights}, "trainable": is_trained}
    return load_recipe(written(folder, content_of(folder, audio, BERT_BASE | {"trainable": is_trained}))).recipe


@pytest.mark.slow
def test_plan_reports_missing_files_of_the_panns_bert_model(tmp_path):
    weights = tmp_path / "ResNet38_mAP=0.434.pth"
    recipe = made(tmp_path, str(weights))
    text = plan(recipe)
    published = "published at https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth"
    assert fact(text, "model audio") == f"panns, trained, from {weights}"
    assert f"MISSING {weights}: {published}" in text
    with pytest.raises(KitError, match=re.escape(f"model.audio: {weights}: is missing; {published}")):
        recipe.model.require_files()
    assert fact(text, "parameters").startswith("network 68,507,072, head 6,294,528, text unknown")
    weights.write_bytes(b"there")
    assert f"MISSING {weights}" not in plan(recipe)
    with pytest.raises(KitError, match="text model bert-base-uncased"):
        recipe.model.require_files()
    still = made(tmp_path, str(weights), is_trained=False)
    assert fact(plan(still), "model audio") == f"panns, frozen, from {weights}"
    scratch = made(tmp_path, None)
    assert fact(plan(scratch), "model audio") == "panns, trained, from scratch"
    with pytest.raises(RecipeError, match="trainable"):
        made(tmp_path, None, is_trained=False)


def test_missing_word_vectors_are_reported_in_the_plan(tmp_path):
    words = {"kind": "word_vectors", "vectors": str(tmp_path / "v.bin"), "dim": 300}
    content = content_of(tmp_path, CRNN, words | {"embedding": "words"})
    content["model"]["score"] = {"kind": "frame_word"}
    recipe = load_recipe(written(tmp_path, content)).recipe
    assert f"MISSING {tmp_path}/v.bin: published at" in plan(recipe)
    assert "128-d, 50.00 frames/s at 44100 Hz, 76.8 MB" in fact(plan(recipe), "expert logmel"), "of float32"
    (tmp_path / "v.bin").write_bytes(b"there")
    assert "v.bin: published at" not in plan(recipe)
