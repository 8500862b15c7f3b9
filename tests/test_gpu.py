"""Training on a GPU, if available: the same gradients as on the CPU, 16 bits, and frames kept on the GPU."""

import json
from contextlib import closing

import pytest
import tiny
import torch
from outcomes import lines
from several import together

from data_tools.manifest import read_manifest
from system.__main__ import main
from system.batches.items import Item, Sampler, make_items
from system.batches.loader import collate, read_batches
from system.features.extract import build_features
from system.recipe.load import load_recipe
from system.runs.open import build_model
from system.training.step import add_gradients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


def test_gpu_gradients_match_cpu_gradients(world, tmp_path):
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))).recipe
    clips = read_manifest(world)[:12]
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    batch = collate([Item(clip, tuple(clip.captions[:2])) for clip in clips], features)
    found = {}
    for device in (torch.device("cpu"), GPU):
        for at_once in (None, 5):
            torch.manual_seed(0)
            model = build_model(recipe, ["deep", "tone", "a", "low"]).to(device).eval()
            stage = recipe.stages["only"].model_copy(update={"grad_cache_chunk": at_once})
            add_gradients(model, batch.to(device), stage, "float32", torch.amp.GradScaler(device.type, enabled=False))
            grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            found[device.type, at_once] = torch.cat(grads).cpu()
    for other in found.values():
        assert torch.allclose(found["cpu", None], other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("longest", [None, 9])
def test_batches_read_ahead_arrive_on_the_gpu_unchanged(world, tmp_path, longest):
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))).recipe
    clips = read_manifest(world)[:12]
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    sampler = Sampler([make_items(clips, "clip")], "size", 8, 2, (1, 0))
    with closing(read_batches(sampler, features, None, GPU, None, longest, step=2)) as batches:
        found = {step: next(batches) for step in (2, 3)}
    for step, one in found.items():
        part = {} if longest is None else {"longest": longest, "offsets": sampler.crop_offsets(step)}
        expected = collate(sampler.batch(step), features, **part)  # type: ignore[arg-type]
        assert one.captions == expected.captions
        assert torch.equal(one.audio["logmel"].values.cpu(), expected.audio["logmel"].values)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("at_once", [None, 3])
def test_training_on_the_gpu_works_in_every_precision(world, tmp_path, precision, at_once):
    stage = tiny.stage(epochs=6, steps_per_epoch=6, precision=precision, grad_cache_chunk=at_once)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert lines(tmp_path / "run")[-1]["loss"] < lines(tmp_path / "run")[0]["loss"]
    entry = json.loads((tmp_path / "run/result.json").read_text())["rank"]["evaluation"]
    assert entry["mAP@10"] > 2 * entry["untrained"]


def test_single_torchrun_process_trains_like_a_plain_one(world, tmp_path):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    assert main(["run", "--until=training", str(recipe), "--out", str(tmp_path / "plain")]) == 0
    done = together(1, [["run", "--until=training", recipe, "--out", tmp_path / "torchrun"]], tmp_path, "cuda")
    assert done.returncode == 0, done.stderr
    losses = [[line["loss"] for line in lines(tmp_path / name)] for name in ("plain", "torchrun")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
