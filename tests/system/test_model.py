"""Encoders, scores and validation: worked by hand, against slow oracles, and without any trace of padding."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest
from system.audio.logmel import LogMel
from system.batches.items import Item, make_items
from system.batches.loader import collate
from system.features.extract import Features, build_features
from system.losses import terms as losses
from system.losses.terms import Ranking
from system.models.audio.crnn import Gru
from system.models.audio.heads import ExpertHeads, FrameLayers
from system.models.batch import Embedded, Ragged, Series
from system.models.retrieval import RetrievalModel
from system.models.scores import cosine
from system.ranking import embedding
from system.ranking.embedding import embed_clips, embed_texts
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.open import build_model
from system.training.step import embed_and_score
from system.training.validation import ClipValidation, accuracies

# encoders


def heads(*experts: str) -> ExpertHeads:
    expert = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)
    sizes = {"width": 16, "layers": 2, "heads": 2, "ffn_dim": 24, "max_positions": 10, "dropout": 0.1}
    return ExpertHeads(kind="expert_heads", experts=dict.fromkeys(experts or "e", expert), **sizes)


def slow_head(head: FrameLayers, frames: torch.Tensor) -> torch.Tensor:
    """One series through the head, window by window, with attention written out."""
    width, encoder = head.out.in_features, head.encoder
    total = torch.zeros(width)
    for window in frames.split(head.window):
        x = head.project(window) + encoder.positions.weight[2 : 2 + len(window)]
        x = encoder.norm(x)
        for layer in encoder.layers:
            attention = layer.self_attn
            q, k, v = (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, -1)
            parts = []
            for a, b, c in zip(q.chunk(2, -1), k.chunk(2, -1), v.chunk(2, -1), strict=True):
                parts.append(torch.softmax(a @ b.T / (width // 2) ** 0.5, -1) @ c)
            x = layer.norm1(x + attention.out_proj(torch.cat(parts, -1)))
            x = layer.norm2(x + layer.linear2(torch.nn.functional.gelu(layer.linear1(x))))
        total = total + x.sum(0)
    return head.out(total / len(frames))


@pytest.mark.parametrize("lengths", [[7], [3, 10, 1], [25, 4, 10, 11, 30]])
def test_expert_head_matches_its_definition_for_any_length(lengths):
    torch.manual_seed(0)
    head = FrameLayers(heads(), 8, 12).eval()
    series = [torch.randn(length, 8) for length in lengths]
    filled = torch.full((len(series), max(lengths) + 2, 8), 1e4)  # padding that would show
    for row, values in zip(filled, series, strict=True):
        row[: len(values)] = values
    with torch.no_grad():
        together = head(Series(filled, torch.tensor(lengths)))
        for row, values in zip(together, series, strict=True):
            assert torch.allclose(row, slow_head(head, values), atol=1e-5)


def test_embedding_is_the_mean_of_expert_embeddings():
    both = heads("a", "b").build(12).eval()
    series = Series(torch.randn(3, 5, 8), torch.tensor([5, 2, 4]))
    with torch.no_grad():
        expected = (both.heads["expert_a"](series) + both.heads["expert_b"](series)) / 2
        assert torch.allclose(both({"a": series, "b": series}).values, expected, atol=1e-6)


def test_cosine_matches_hand_values_and_is_0_for_zero_vectors():
    clips, captions = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [-6.0, -8.0]])
    assert cosine(Embedded(clips), Embedded(captions)).flatten().tolist() == pytest.approx([0.6, -1.0, 0.0, 0.0])


# the model on clips


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    manifest = tiny.make_world(folder / "world", {"development": 24, "validation": 9})
    recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", tiny.recipe(manifest, folder))).recipe
    clips = read_manifest(manifest)
    return recipe, clips, build_features(clips, dict(recipe.model.audio.experts), folder / "banks")


def scratch_model(recipe: schema.Recipe) -> RetrievalModel:
    torch.manual_seed(1)
    return build_model(recipe, ["tone", "deep", "a", "low", "note", "sounds", "hum"])


def test_embeddings_are_the_same_alone_and_in_mixed_batches(world):
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    texts = ["a tone", "deep", "a low hum " * 30, "A deep, low tone sounds note a hum"]
    with torch.no_grad():
        together = model.audio(collate([Item(clip, ()) for clip in clips], features).audio).values
        for clip, row in zip(clips, together, strict=True):
            assert torch.allclose(model.audio(collate([Item(clip, ())], features).audio).values[0], row, atol=1e-5)
        for text, row in zip(texts, model.text(texts).values, strict=True):
            assert torch.allclose(model.text([text]).values[0], row, atol=1e-5)
        assert torch.allclose(embed_clips(model, clips, features).values, together, atol=1e-5)
        assert torch.allclose(embed_texts(model, texts).values, model.text(texts).values, atol=1e-5)
        assert not any(layer.training for layer in model.modules())
        assert torch.equal(
            embed_clips(model.train(), clips, features).values, embed_clips(model, clips, features).values
        )
        embed_texts(model, texts)
        assert all(layer.training for layer in model.modules()), "as before"


def test_scores_of_several_captions_are_averaged(world):
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    texts = [("a tone",), ("deep", "low note", "a hum"), ("deep hum", "a")]
    items = [Item(clips[n], some) for n, some in zip((0, 1, 0), texts, strict=True)]
    with torch.no_grad():
        found = embed_and_score(model, collate(items, features), "float32")
        for i, j in itertools.product(range(3), repeat=2):
            clip = model.audio(collate([items[i]], features).audio)
            assert found.scores[i, j].item() == pytest.approx(
                cosine(clip, model.text(texts[j])).mean().item(), abs=1e-5
            )
            between = cosine(model.text(texts[i]), model.text(texts[j])).mean().item()
            assert found.caption_scores[i, j].item() == pytest.approx(between, abs=1e-5)
        assert found.same_clip.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
        assert torch.allclose(found.clip_scores().diagonal(), torch.ones(3), atol=1e-5)


def test_same_audio_is_one_clip_and_unknown_words_change_no_embedding(world):
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    doubled = Features(features.banks, features.keys | {"twin": features.keys[clips[0].id]})
    items = [Item(clip, ("a tone",)) for clip in (clips[0], clips[1], replace(clips[0], id="twin"))]
    same = embed_and_score(model, collate(items, doubled), "float32").same_clip
    assert same.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    with torch.no_grad():
        assert torch.allclose(model.text(["a zebra tone"]).values, model.text(["a tone"]).values)
    assert model.text.without_known_words(["a tone", "zebra", "低い音", "..."]) == ["zebra", "低い音", "..."]


def test_series_embedded_from_a_pool_are_unpadded_and_in_clip_order(world, monkeypatch):
    recipe, clips, features = world
    experts = {name: expert.model_dump() for name, expert in recipe.model.audio.experts.items()}
    settings = {"kind": "gru", "experts": experts, "width": 4, "hidden": 3, "dropout": 0, "embedding": "frames"}
    model = scratch_model(recipe)
    model.audio = Gru.model_validate(settings).build(6)
    monkeypatch.setattr(embedding, "CLIPS_PER_BATCH", 5)
    found = embed_clips(model, clips, features)
    assert isinstance(found, Ragged)
    assert len(found.values) == found.lengths.sum()
    for row, clip in enumerate(clips):
        length = len(tiny.frames(features, "logmel", clip.id))
        alone = model.audio(collate([Item(clip, ())], features).audio).values[0]
        assert found.lengths[row] == length
        assert torch.allclose(found.rows([row]).values, alone, atol=1e-6)


# validation


def validated(world: Any, model: RetrievalModel, split: str, precision: str = "float32", **changes: Any) -> Any:
    """Values and diagnostics of a validation on a split, as the recipe's stage has it but for some changes."""
    recipe, clips, features = world
    monitor = recipe.stages["only"].monitor
    changes["monitor"] = monitor.model_copy(update={"metrics": changes.pop("metrics", monitor.metrics)})
    stage = recipe.stages["only"].model_copy(update=changes)
    items = make_items([clip for clip in clips if clip.split == split], stage.unit)
    return ClipValidation(items, stage, features, None, None, precision)(model)


def test_validation_metrics_match_slow_reference(world):
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    own = [clip for clip in clips if clip.split == "validation"]
    values, seen = validated(world, model, "validation", batch_size=4, metrics=["loss", "m1", "m2", "recall_sum"])
    order = np.random.default_rng(0).permutation(len(own))[:8]
    batches = [[Item(own[i], tuple(own[i].captions[:2])) for i in order[start : start + 4]] for start in (0, 4)]
    expected = []
    with torch.no_grad():
        for batch in batches:
            scores = embed_and_score(model, collate(batch, features), "float32")
            total = losses.total_loss(scores, recipe.stages["only"].losses).item()
            expected.append([total, *accuracies(scores)])
    assert [values["loss"], values["m1"], values["m2"]] == pytest.approx(np.mean(expected, 0).tolist(), abs=1e-5)
    ranks = slow_ranks(model, own, features)
    assert values["recall_sum"] == pytest.approx(float(sum((ranks <= k).mean() for k in (1, 5, 10))), abs=1e-6)
    assert 0 < seen["spread_of_captions"] < 1


def slow_ranks(model: RetrievalModel, clips: list[Clip], features: Features) -> np.ndarray:
    """The rank of the own clip of every caption."""
    with torch.no_grad():
        captions = embed_texts(model, [text for clip in clips for text in clip.captions])
        matrix = cosine(captions, embed_clips(model, clips, features)).numpy()
    found = []
    for query, row in enumerate(matrix):
        names = sorted(range(len(clips)), key=lambda c: (-row[c], clips[c].id))
        found.append(1 + names.index(query // 5))
    return np.array(found)


def test_validation_map_at_k_cuts_the_ranking_at_k(world):
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    values, _ = validated(world, model, "development", metrics=["mAP@10", "mAP@16"])
    ranks = slow_ranks(model, [clip for clip in clips if clip.split == "development"], features)
    assert (ranks > 16).any()
    assert ((ranks > 10) & (ranks <= 16)).any()
    expected = {f"mAP@{k}": float(np.where(ranks <= k, 1 / ranks, 0).mean()) for k in (10, 16)}
    assert values == pytest.approx(expected, abs=1e-6)


def test_validation_in_16_bits_differs_by_at_most_a_thousandth(world):
    model = scratch_model(world[0]).eval()
    exact, found = (validated(world, model, "validation", name)[0]["loss"] for name in ("float32", "fp16"))
    assert found != exact, "computed in 16 bits"
    assert found == pytest.approx(exact, abs=1e-3)


def test_validation_uses_the_same_random_negatives_each_time(world):
    model = scratch_model(world[0]).eval()
    random = Ranking(kind="ranking", weight=1, margin=2, relax="none", negatives="random")
    found, after = [], []
    for seed in (5, 6):
        torch.manual_seed(seed)
        found.append(validated(world, model, "validation", batch_size=8, losses=[random])[0]["loss"])
        after.append(torch.rand(1))
        torch.manual_seed(seed)
        assert torch.equal(torch.rand(1), after[-1]), "it does not change the draws of training"
    assert found[0] == found[1]


def test_validation_with_one_clip_is_refused(world):
    recipe, clips, features = world
    with pytest.raises(KitError, match="two clips"):
        ClipValidation(make_items(clips[:1], "clip"), recipe.stages["only"], features)
