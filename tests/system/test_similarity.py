"""Scores of frames against words: by hand, against a loop over pairs and the original code, and on the command line."""

import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from augmented import clip
from frame_words import content, write_words
from heard import slaney
from outcomes import lines, ranked_evaluation, refused
from served import Letters, model_of
from torch.nn.utils.rnn import pad_sequence

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.batches.items import make_items
from system.features.bank import Bank
from system.features.extract import Features
from system.losses.terms import Ranking
from system.models import batch as embeddings
from system.models import scores as scoring
from system.models.audio.crnn import Crnn
from system.models.batch import Embedded, Ragged
from system.models.scores import Cosine, cosine, frame_word
from system.ranking import embedding
from system.ranking.embedding import embed_clips, embed_texts
from system.retriever import load_model
from system.serve.server import Search
from system.training.validation import ClipValidation, direction_spread


def series(*rows: Any, fill: float = 99.0) -> Embedded:
    """Vectors of several clips or captions; the padding has large values, so that any use of it is noticed."""
    rows = tuple(torch.as_tensor(row, dtype=torch.float64) for row in rows)
    longest = max(len(row) for row in rows)
    values = torch.full((len(rows), longest, rows[0].shape[1]), fill, dtype=torch.float64)
    for filled, row in zip(values, rows, strict=True):
        filled[: len(row)] = row
    return Embedded(values, torch.tensor([len(row) for row in rows]))


def oracle(clips: Embedded, captions: Embedded) -> torch.Tensor:
    """Pair by pair, as the definition says."""
    found = torch.zeros(len(clips.values), len(captions.values), dtype=torch.float64)
    for i, frames in enumerate(clips.values):
        for j, words in enumerate(captions.values):
            dots = (frames[: clips.lengths[i]] @ words[: captions.lengths[j]].T).clamp(min=0)
            if dots.numel():
                found[i, j] = dots.mean()
    return found


def made(seed: int, lengths: list[int], known: int | None = None, dim: int = 5) -> Embedded:
    """Random series; of `known` different vectors only, where given."""
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(known or 1000, dim))
    return series(*(vectors[draw.integers(0, len(vectors), length)].reshape(-1, dim) for length in lengths))


def test_scores_of_frames_against_words_match_hand_values_and_the_original_code(goldens):
    # Frames (1, 0), (0, 1), (-1, 0) against words (2, 1), (-1, 1): dots 2, -1 | 1, 1 | -2, 1 -> 2, 0, 1, 1, 0, 1.
    clips, captions = series([[1, 0], [0, 1], [-1, 0]], [[0, 1]]), series([[2, 1], [-1, 1]], [[-1, 1]])
    mean = frame_word(clips, captions)
    assert mean.tolist() == [[pytest.approx(5 / 6), pytest.approx(2 / 3)], [1.0, 1.0]]
    assert Cosine(kind="cosine").build(2) is cosine
    golden = np.load(goldens / "xieh97_frameword.npz")
    clips, captions = series(*golden["ns_audio"]), series(*golden["ns_text"])
    for expected in ("align_STSQ", "ns_score_matrix"):
        assert np.abs(frame_word(clips, captions).numpy() - golden[expected]).max() < 1e-9
    dots = golden["model_frame_word_matrix_00"].astype(np.float64)  # (T, W) dot products, unclamped or clamped at 0
    score = frame_word(series(dots), series(np.eye(dots.shape[1]))).item()
    assert score == pytest.approx(golden["model_scores"][0, 0], abs=1e-7)


@pytest.mark.parametrize("positions", [1, 40])
@pytest.mark.parametrize("known", [None, 4])
def test_scores_of_frames_against_words_match_a_loop_for_any_block_size(positions, known, monkeypatch):
    monkeypatch.setattr(scoring, "AT_ONCE", positions)
    clips, captions = made(1, [3, 1, 7, 0, 2, 5]), made(2, [2, 4, 1, 0, 6, 3, 3], known)
    for first, second in ((clips, captions), (clips, clips), (captions, captions)):
        expected = oracle(first, second)
        assert torch.allclose(frame_word(first, second), expected, rtol=0, atol=1e-12)
    assert not frame_word(clips, captions)[3].any()  # a series of no frames, and one of no words
    assert not frame_word(clips, captions)[:, 3].any()


@pytest.mark.parametrize("positions", [20, 1 << 24])
@pytest.mark.parametrize("trained_words", [True, False])
def test_gradients_of_scores_of_frames_against_words_match_those_of_a_loop(positions, trained_words, monkeypatch):
    monkeypatch.setattr(scoring, "AT_ONCE", positions)
    clips, captions = made(3, [3, 1, 0, 4, 2]), made(4, [2, 4, 0, 1, 3])
    weights = torch.from_numpy(np.random.default_rng(5).normal(size=(5, 5)))
    leaves = [clips.values.requires_grad_(), captions.values.requires_grad_(trained_words)][: 1 + trained_words]
    found = torch.autograd.grad((frame_word(clips, captions) * weights).sum(), leaves)
    expected = torch.autograd.grad((oracle(clips, captions) * weights).sum(), leaves)
    for gradient, slow in zip(found, expected, strict=True):
        assert slow.abs().max() > 0.1
        assert torch.allclose(gradient, slow, rtol=0, atol=1e-12)


def test_equal_words_keep_their_scores_and_pooled_embeddings_are_refused():
    word = torch.tensor([0.6, 0.8], dtype=torch.float64)
    captions = series((word + 1e-15)[None], word[None])
    found = frame_word(series([[1e12, 0.0]]), captions)[0]
    assert (found[0] - found[1]).item() == pytest.approx(1e-3, rel=0.2)
    pooled = Embedded(torch.ones(2, 3))
    with pytest.raises(ValueError, match="series"):
        frame_word(pooled, series([[1.0, 2.0, 3.0]]))


def test_memory_for_scores_of_frames_against_words_is_bounded_in_training(monkeypatch):
    """Tensors kept for the backward pass, by their size, while the whole has 64 times the places."""
    monkeypatch.setattr(scoring, "AT_ONCE", 1 << 10)
    clips, captions = made(6, [16] * 16, dim=2), made(7, [16] * 16, dim=2)
    clips.values.requires_grad_()
    captions.values.requires_grad_()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        found = frame_word(clips, captions)
    assert sum(kept) < 16 * scoring.AT_ONCE
    found.sum().backward()
    assert captions.values.grad.any()


def ragged(filled: Embedded) -> Ragged:
    pairs = zip(filled.values, filled.lengths.tolist(), strict=True)
    return Ragged([series[:length] for series, length in pairs])


def test_selected_rows_padded_blocks_and_spread_of_ragged_series_match_hand_values(monkeypatch):
    pool = Ragged(list(torch.arange(12.0).view(6, 2).split([3, 0, 1, 2])))
    found = pool.rows([3, 0, 3, 1])
    assert found.values[:, 0].tolist() == [8, 10, 0, 2, 4, 8, 10]
    assert found.lengths.tolist() == [2, 3, 2, 0]
    assert pool.rows(torch.tensor([2])).values.tolist() == [[6, 7]]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 4)  # two frames
    parts = [(places, part.values[..., 0].tolist(), part.lengths.tolist()) for places, part in pool.padded_parts()]
    assert parts == [([1, 2], [[0], [6]], [0, 1]), ([3], [[8, 10]], [2]), ([0], [[0, 2, 4]], [3])]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 1 << 24)
    ((places, part),) = pool.padded_parts()
    assert places == [1, 2, 3, 0]
    assert part.values[2].tolist() == [[8, 9], [10, 11], [0, 0]]
    filled = made(3, [4, 1, 0, 9], dim=3)
    filled.values[0, 1] = 1e-7
    assert direction_spread(ragged(filled)) == pytest.approx(
        direction_spread(Embedded(filled.values, filled.lengths)), abs=1e-12
    )


@pytest.mark.parametrize(("dots", "values"), [(1, 1), (12, 20), (1 << 24, 30)])
def test_ragged_scores_match_pairwise_scores(dots, values, monkeypatch):
    monkeypatch.setattr(scoring, "AT_ONCE", dots)
    monkeypatch.setattr(embeddings, "MAX_PADDED", values)
    clips, captions = made(1, [3, 1, 20, 0, 2, 5, 1]), made(2, [2, 4, 1, 0, 6])
    for first, second in ((clips, captions), (clips, clips)):
        expected = oracle(first, second)
        assert torch.allclose(frame_word(ragged(first), ragged(second)), expected, rtol=0, atol=1e-12)
        assert torch.allclose(frame_word(ragged(first), second), expected, rtol=0, atol=1e-12)
        assert torch.allclose(frame_word(first, ragged(second)), expected, rtol=0, atol=1e-12)


def test_scoring_a_long_clip_computes_blocks_within_the_limit_of_dot_products(monkeypatch):
    """AT_ONCE limits the dot products per block; clips that fit are scored together."""
    monkeypatch.setattr(scoring, "AT_ONCE", 1 << 10)
    sizes: list[int] = []
    real = scoring._product_sums

    def watched(frames: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        sizes.append(frames[..., 0].numel() * len(words))
        return real(frames, words)

    monkeypatch.setattr(scoring, "_product_sums", watched)
    clips, captions = made(6, [5, 4000, 16, 7]), made(7, [10] * 6)
    frame_word(ragged(clips), captions)
    assert max(sizes) <= 4000, "one word of the long clip"


def test_clips_are_divided_into_embedding_batches_as_computed_by_hand(monkeypatch):
    def groups(lengths: list[int], seconds: list[float]) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in embedding._batch_slices(lengths, seconds)]

    monkeypatch.setattr(embedding, "CLIPS_PER_BATCH", 3)
    monkeypatch.setattr(embedding, "SECONDS_PER_BATCH", 90)
    assert groups([5] * 7, [0.0] * 7) == [(0, 3), (3, 6), (6, 7)]
    assert groups([5, 5, 6], [30.0, 30.0, 30.0]) == [(0, 3)]
    assert groups([5, 5, 6], [30.0, 30.0, 31.0]) == [(0, 2), (2, 3)]
    assert groups([5, 5, 21], [0.0] * 3) == [(0, 2), (2, 3)], "3 x 21 frames are more than twice 31"
    assert groups([5, 5, 20], [0.0] * 3) == [(0, 3)]
    assert groups([5, 6], [100.0, 120.0]) == [(0, 1), (1, 2)], "longer than a batch may be"
    assert groups([], []) == []


class Spelled(Letters):
    """Embeds a text as one vector per letter."""

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        table = torch.from_numpy(np.random.default_rng(1).normal(size=(256, 160))).float()
        words = [table[list(text.encode())] for text in texts]
        return Embedded(pad_sequence(words, True), torch.tensor([len(one) for one in words]))


def scored_by_a_process(folder: Path, long: int) -> tuple[float, np.ndarray]:
    """Rank and validate 40 clips of 5 to 15 s, and `long` ones of 20 minutes; return the peak in GiB, and scores."""
    lengths = np.random.default_rng(0).integers(250, 750, 40).tolist() + [60_000] * long
    bank = Bank(folder / str(long), 64, "float32", {})
    waves = (np.random.default_rng(n).normal(-10, 3, (length, 64)) for n, length in enumerate(lengths))
    tiny.store_all(bank, ((str(n), frames) for n, frames in enumerate(waves)))
    clips = [replace(clip(str(n), f"one deep beep {n}"), seconds=length / 50) for n, length in enumerate(lengths)]
    features = Features({"logmel": bank}, {one.id: one.file_name for one in clips})
    torch.manual_seed(2)
    model = model_of(Spelled())
    model.audio = Crnn(kind="crnn", experts=slaney(), hidden=80, dropout=0.0, embedding="frames").build(160)
    model.score, model.temperature = frame_word, None
    pool = embed_clips(model, clips, features)
    with torch.inference_mode():
        scores = model.score_matrix(embed_texts(model, ["a deep tone", "somebody plays", "it is on"] * 10), pool)
    del pool
    hard = Ranking(kind="ranking", weight=1, margin=0.5, relax="none", negatives="audio_hard")
    monitor = SimpleNamespace(metrics=["loss", "m1", "m2", "mAP@10"], data=["validation"])
    stage: Any = SimpleNamespace(batch_size=32, captions_per_clip="all", unit="clip", losses=[hard], monitor=monitor)
    ClipValidation(make_items(clips, "clip"), stage, features)(model)
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20
    return peak, scores[:3, :40]


@pytest.mark.slow
def test_scoring_a_twenty_minute_clip_needs_less_than_2_gb(tmp_path):
    found = []
    for long in (0, 1):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
            found.append(processes.submit(scored_by_a_process, tmp_path, long).result())
    (before, expected), (after, scores) = found
    print(f"\n{before:.2f} GiB without, {after:.2f} GiB with it")
    assert after - before < 2e9 / 2**30
    assert np.allclose(expected, scores, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 1e-3


# runs


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frame_word")
    write_words(folder / "words.bin", world)
    recipe = tiny.write_recipe(folder / "r.yaml", content(world, folder))
    assert main(["run", str(recipe), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_stage_lowers_the_learning_rate_and_ends_early_when_the_loss_hardly_changes(done):
    assert [line["lr"] for line in lines(done)] == pytest.approx([1e-3, 1e-3, 1e-4])
    assert len(json.loads((done / "only/done.json").read_text())["lines"]) == 3
    assert "ends early" in (done / "log.txt").read_text()
    assert json.loads((done / "result.json").read_text())["parameters"]["frozen"]["text"] > 0


def test_exported_model_that_scores_frames_against_words_ranks_like_its_run(done, world, tmp_path):
    expected = read_scores(done / "scores/evaluation.npy").values
    assert np.ptp(expected) > 0
    assert main(["export", str(done), "--out", str(tmp_path / "model")]) == 0
    assert "--set model.text.vectors=FILE" in (tmp_path / "model/README.md").read_text()
    for model in (done, tmp_path / "model"):
        found = ranked_evaluation(model, world, tmp_path / "s.npy", tmp_path / "banks")
        assert np.allclose(found, expected, atol=1e-6)


def test_ranking_with_other_word_vectors_than_in_training_is_refused(done, world, tmp_path, capsys):
    main(["export", str(done), "--out", str(tmp_path / "model")])
    write_words(tmp_path / "other.bin", world, seed=1)
    capsys.readouterr()
    ask = (world, "--split", "evaluation", "--out", tmp_path / "s.npy")
    other = ("--set", f"model.text.vectors={tmp_path / 'other.bin'}")
    assert "trained" in refused(capsys, "rank", tmp_path / "model", *ask, *other)
    assert "model.text" in refused(capsys, "rank", done, *ask, *other)
    gone = ("--set", f"model.text.vectors={tmp_path / 'gone.bin'}")
    assert "gone.bin" in refused(capsys, "rank", tmp_path / "model", *ask, *gone)


def test_missing_word_vectors_are_reported_before_any_work(world, tmp_path, capsys):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(world, tmp_path) | {"banks": str(tmp_path / "banks")})
    assert "words.bin" in refused(capsys, "run", recipe, "--out", tmp_path / "run")
    assert list(tmp_path.iterdir()) == [recipe]
    assert main(["check", str(recipe)]) == 1
    assert "words.bin: published at" in capsys.readouterr().out


def test_search_and_report_accept_models_with_series_of_embeddings(done, world, tmp_path):
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    model = load_model(done, cache=tmp_path)
    search, again = (Search(model, model.open(some), Path(__file__)) for some in (clips, clips[::-1]))
    found, other = (one.find(clips[0].captions[0], 3) for one in (search, again))
    assert len(found) == 3
    assert other[0].score == pytest.approx(found[0].score), "equal to the stored score"
    with pytest.raises(KitError, match="zebra"):
        search.find("zebra", 3)
    assert submission(["report", str(done)]) == 0


def test_model_with_series_of_embeddings_cannot_teach(done, world, tmp_path, capsys):
    term = {"kind": "distill", "weight": 1, "teachers": ["words"], "temperature": {"start": 0.05}}
    stage = tiny.stage(unit="pair", captions_per_clip=None, losses=[term])
    teachers = {"words": {"kind": "model", "folder": str(done), "stage": "only", "checkpoint": "last"}}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage) | {"teachers": teachers})
    assert "teacher words: " in refused(capsys, "run", recipe, "--out", tmp_path / "run")


def test_incompatible_score_and_embedding_settings_are_refused(world, tmp_path, capsys):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(world, tmp_path))
    for change, word in (
        ("model.audio.embedding=mean", "frames"),
        ("model.text.embedding=mean", "words"),
        ('model.score={"kind": "cosine"}', "cosine"),
        ("model.audio.hidden=7", "hidden to 6"),
        ("stages.only.grad_cache_chunk=2", "whole batch"),
        ("stages.only.stop.metric=recall_sum", "recall_sum is not"),
        ("stages.only.schedule.metric=recall_sum", "recall_sum is not"),
    ):
        assert word in refused(capsys, "check", recipe, "--set", change), change
