"""One update's gradients: cached ones against plain ones, and the tensors a step is fed with."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from one_graph import in_one_graph

from data_tools.manifest import read_manifest
from system.batches.items import Item, Sampler, make_items
from system.batches.loader import collate, read_batches
from system.features.extract import Features, build_features
from system.losses import terms as losses
from system.losses.cider import Cider, Relevance
from system.models.retrieval import RetrievalModel
from system.recipe.load import load_recipe
from system.runs.open import build_model
from system.training.step import add_gradients, audio_chunks, read_numbers

CPU = torch.device("cpu")
CIDER = Cider.model_validate(tiny.relevance())


class World:
    def __init__(self, folder: Path) -> None:
        manifest = tiny.make_world(folder / "world", {"development": 24})
        content = tiny.recipe(manifest, folder, only=tiny.stage(losses=tiny.RELAXED, captions_per_clip="all"))
        content["data"] = {"train": content["data"]["train"]}
        content["stages"]["only"]["monitor"]["data"] = ["train"]
        content["rank"] = {}
        content["relevance"] = CIDER.model_dump()
        self.recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", content)).recipe
        self.clips = read_manifest(manifest)
        self.features: Features = build_features(self.clips, dict(self.recipe.model.audio.experts), folder / "banks")
        self.relevance = Relevance(CIDER, [clip.captions for clip in self.clips])
        rng = np.random.default_rng(0)  # items with 1 to 5 captions
        self.items = [
            Item(clip, tuple(clip.captions[: rng.integers(1, 6)]))
            for clip in rng.permutation(np.array(self.clips, object))
        ]

    def model(self, dropout: float) -> RetrievalModel:
        torch.manual_seed(4)
        audio = self.recipe.model.audio.model_copy(update={"dropout": dropout})
        text = self.recipe.model.text.model_copy(update={"dropout": dropout})
        model = self.recipe.model.model_copy(update={"audio": audio, "text": text})
        words = ["tone", "deep", "a", "low", "note", "sounds", "hum", "one", "beep", "shrill", "high", "it", "is"]
        return build_model(self.recipe.model_copy(update={"model": model}), words).train()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("step"))


def grads(model: RetrievalModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", enabled=False)


@pytest.mark.parametrize(("at_once", "is_frozen"), [(1, False), (5, True), (5, False), (99, False)])
def test_gradients_with_grad_cache_match_those_without_it(world, at_once, is_frozen):
    batch = collate(world.items, world.features, world.relevance)
    stage = world.recipe.stages["only"]
    plain, cached = world.model(0.0), world.model(0.0)
    for model in (plain, cached):
        model.text.requires_grad_(not is_frozen)
    output = read_numbers(add_gradients(plain, batch, stage, "float32", scaler()))
    by_chunks = stage.model_copy(update={"grad_cache_chunk": at_once})
    told_cached = read_numbers(add_gradients(cached, batch, by_chunks, "float32", scaler()))
    assert told_cached == pytest.approx(output, rel=1e-5)
    assert {"loss", "positive", "hardest_negative", "violations", "violations_relaxed"} == set(output)
    difference = (grads(cached) - grads(plain)).abs().max() / grads(plain).abs().max()
    assert difference < 1e-5
    assert len(grads(cached)) == len(grads(plain)) == sum(p.numel() for p in plain.parameters() if p.requires_grad)
    assert is_frozen == all(p.grad is None for p in cached.text.parameters())


def test_cached_gradients_repeat_the_same_dropout(world):
    batch = collate(world.items, world.features, world.relevance)
    stage = world.recipe.stages["only"].model_copy(update={"grad_cache_chunk": 5})
    one, other = world.model(0.3), world.model(0.3)
    torch.manual_seed(8)
    add_gradients(one, batch, stage, "float32", scaler())
    torch.manual_seed(8)
    losses.total_loss(in_one_graph(other, batch, 5), stage.losses).backward()
    assert len(audio_chunks(other, batch, 5)) == 5
    assert (grads(one) - grads(other)).abs().max() / grads(other).abs().max() < 1e-5
    torch.manual_seed(9)
    another = world.model(0.3)
    add_gradients(another, batch, stage, "float32", scaler())
    assert (grads(one) - grads(another)).abs().max() > 1e-3 * grads(one).abs().max(), "dropout had no part in it"


def test_training_step_returns_a_nan_loss_with_and_without_grad_cache(world):
    batch = collate(world.items, world.features, world.relevance)
    broken = replace(batch, margin_factors=torch.full_like(batch.margin_factors, torch.nan))  # type: ignore[arg-type]
    for at_once in (None, 4):
        model = world.model(0.0)
        stage = world.recipe.stages["only"].model_copy(update={"grad_cache_chunk": at_once})
        assert np.isnan(read_numbers(add_gradients(model, broken, stage, "float32", scaler()))["loss"])


def test_margin_factors_of_a_batch_have_candidates_in_rows_and_references_in_columns(world):
    batch = collate(world.items, world.features, world.relevance)
    assert batch.margin_factors.shape == (24, 24)
    i, j = 3, 11
    candidates, references = world.items[i].captions, world.items[j].captions
    pairs = [world.relevance.among([a, b]).of_items([1, 1])[0, 1] for a in candidates for b in references]
    expected = world.relevance.margin_factor(np.array([[np.mean(pairs)]], np.float32))[0, 0]
    assert batch.margin_factors[i, j].item() == pytest.approx(float(expected), abs=1e-5)
    assert len(set(batch.margin_factors.flatten().tolist())) > 3, "no pair of the batch is relaxed"
    assert collate(world.items, world.features).margin_factors is None

    class Known:
        def among(self, captions: list[str]) -> "Known":
            assert captions == [caption for item in world.items for caption in item.captions]
            return self

        def of_items(self, counts: list[int]) -> np.ndarray:
            assert counts == [len(item.captions) for item in world.items]
            return np.arange(24 * 24, dtype=np.float32).reshape(24, 24)

        def margin_factor(self, c: np.ndarray) -> np.ndarray:
            return c / 1000

    batch = collate(world.items, world.features, Known())  # type: ignore[arg-type]
    assert batch.margin_factors[3, 11].item() == pytest.approx((3 * 24 + 11) / 1000)


# feeding


def sampler(world: World) -> Sampler:
    return Sampler([make_items(world.clips, "clip")], "size", 8, 2, (1, 0))


def batches(world: World, sampler: Sampler, count: int, **more: Any) -> list[Any]:
    with closing(read_batches(sampler, world.features, more.pop("relevance", None), CPU, **more)) as found:
        return [next(found) for _ in range(count)]


def test_batch_of_a_step_is_the_same_from_any_first_step(world):
    whole, resumed = (batches(world, sampler(world), n, relevance=world.relevance, step=4 - n) for n in (4, 2))
    for one, other in zip(whole[2:], resumed, strict=True):
        assert one.clip_keys == other.clip_keys
        assert one.captions == other.captions
        assert torch.equal(one.audio["logmel"].values, other.audio["logmel"].values)
        assert torch.equal(one.margin_factors, other.margin_factors)
    expected = collate(sampler(world).batch(2), world.features, world.relevance)
    assert torch.equal(whole[2].audio["logmel"].values, expected.audio["logmel"].values)
    assert whole[2].captions == expected.captions


def test_errors_of_the_thread_that_reads_batches_are_raised(world):
    broken = Features(world.features.banks, {})
    with closing(read_batches(sampler(world), broken, None, CPU)) as found, pytest.raises(KeyError):
        next(found)


@pytest.mark.parametrize("at_once", [None, 5])
def test_scores_are_float32_for_any_embedding_dtype(world, at_once, monkeypatch):
    """Embeddings of 16 bits, leaves of the cache too, are widened before they are compared."""
    seen: set[torch.dtype] = set()
    model = world.model(0.0)
    batch_scores = model.batch_scores

    def spied(batch: Any, clips: Any, captions: Any) -> Any:
        seen.update({clips.values.dtype, captions.values.dtype} if at_once else {torch.float32})
        scores = batch_scores(batch, clips, captions)
        seen.add(scores.scores_by_caption.dtype)
        return scores

    monkeypatch.setattr(model, "batch_scores", spied)
    stage = world.recipe.stages["only"].model_copy(update={"grad_cache_chunk": at_once})
    add_gradients(model, collate(world.items, world.features, world.relevance), stage, "bf16", scaler())
    assert seen == {torch.float32}
    assert grads(model).isfinite().all()
