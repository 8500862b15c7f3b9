"""Scores of frames against words: worked by hand, against a loop over pairs, and against the original code."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from system.losses import terms as losses
from system.models import scores as scoring
from system.models.embeddings import Embedded
from system.models.scores import Cosine, cosine, frame_word


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
    assert clips.lengths is not None
    assert captions.lengths is not None
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


def test_scores_of_frames_against_words_match_hand_values() -> None:
    # Frames (1, 0), (0, 1), (-1, 0) against words (2, 1), (-1, 1): dots 2, -1 | 1, 1 | -2, 1 -> 2, 0, 1, 1, 0, 1.
    clips, captions = series([[1, 0], [0, 1], [-1, 0]], [[0, 1]]), series([[2, 1], [-1, 1]], [[-1, 1]])
    mean = frame_word(clips, captions)
    assert mean.tolist() == [[pytest.approx(5 / 6), pytest.approx(2 / 3)], [1.0, 1.0]]
    assert Cosine(kind="cosine").build(2) is cosine


@pytest.mark.parametrize("positions", [1, 40, 1 << 24])
@pytest.mark.parametrize("known", [None, 4])
def test_scores_of_frames_against_words_match_a_loop_for_any_block_size(
    positions: int, known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "AT_ONCE", positions)
    clips, captions = made(1, [3, 1, 7, 0, 2, 5]), made(2, [2, 4, 1, 0, 6, 3, 3], known)
    for first, second in ((clips, captions), (clips, clips), (captions, captions)):
        expected = oracle(first, second)
        assert torch.allclose(frame_word(first, second), expected, rtol=0, atol=1e-12)
    assert not frame_word(clips, captions)[3].any()  # a series of no frames, and one of no words
    assert not frame_word(clips, captions)[:, 3].any()


@pytest.mark.parametrize("positions", [20, 1 << 24])
@pytest.mark.parametrize("trained_words", [True, False])
def test_gradients_of_scores_of_frames_against_words_match_those_of_a_loop(
    positions: int, trained_words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "AT_ONCE", positions)
    clips, captions = made(3, [3, 1, 0, 4, 2]), made(4, [2, 4, 0, 1, 3])
    weights = torch.from_numpy(np.random.default_rng(5).normal(size=(5, 5)))
    leaves = [clips.values.requires_grad_(), captions.values.requires_grad_(trained_words)][: 1 + trained_words]
    found = torch.autograd.grad((frame_word(clips, captions) * weights).sum(), leaves)
    expected = torch.autograd.grad((oracle(clips, captions) * weights).sum(), leaves)
    for gradient, slow in zip(found, expected, strict=True):
        assert slow.abs().max() > 0.1
        assert torch.allclose(gradient, slow, rtol=0, atol=1e-12)


def test_words_with_nearly_equal_vectors_are_scored_separately() -> None:
    word = torch.tensor([0.6, 0.8], dtype=torch.float64)
    captions = series((word + 1e-15)[None], word[None])
    found = frame_word(series([[1e12, 0.0]]), captions)[0]
    assert (found[0] - found[1]).item() == pytest.approx(1e-3, rel=0.2)


def test_memory_for_scores_of_frames_against_words_is_bounded_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert captions.values.grad is not None
    assert captions.values.grad.any()


def test_scoring_frames_against_words_refuses_pooled_embeddings() -> None:
    pooled = Embedded(torch.ones(2, 3))
    with pytest.raises(ValueError, match="series"):
        frame_word(pooled, series([[1.0, 2.0, 3.0]]))


def test_scores_of_frames_against_words_match_the_original_code(goldens: Path) -> None:
    golden = np.load(goldens / "xieh97_frameword.npz")
    clips, captions = series(*golden["ns_audio"]), series(*golden["ns_text"])
    found = frame_word(clips, captions)
    assert np.abs(found.numpy() - golden["align_STSQ"]).max() < 1e-9
    assert np.abs(frame_word(clips, captions).numpy() - golden["ns_score_matrix"]).max() < 1e-9


def test_score_of_frames_against_words_matches_the_original_model_for_one_clip(goldens: Path) -> None:
    golden = np.load(goldens / "xieh97_frameword.npz")
    dots = golden["model_frame_word_matrix_00"].astype(np.float64)  # (T, W) dot products, unclamped or clamped at 0
    score = frame_word(series(dots), series(np.eye(dots.shape[1]))).item()
    assert score == pytest.approx(golden["model_scores"][0, 0], abs=1e-7)


def test_captions_with_repeated_words_are_scored_like_in_a_loop(shared: Path) -> None:
    """200 captions of Clotho with a random vector a word, in float32, against the loop."""
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["caption_1"].lower().strip(".").split() for row in csv.DictReader(file)][:200]
    draw = np.random.default_rng(0)
    vector = {word: row / np.linalg.norm(row) for text in texts for word in text for row in [draw.normal(size=16)]}
    captions = series(*(np.array([vector[word] for word in text]) for text in texts)).float()
    clips = made(8, [30, 20, 45], dim=16).float()
    assert torch.allclose(frame_word(clips, captions).double(), oracle(clips, captions), rtol=0, atol=1e-5)


def test_captions_of_an_item_are_averaged_with_equal_weights() -> None:
    """Seven captions of the first item, one of the second: each of the seven weighs 1/7."""
    each = torch.arange(16.0).reshape(2, 8)
    batch = losses.BatchScores(
        each, torch.tensor([0] * 7 + [1]), torch.eye(2, dtype=torch.bool), None, lambda: each, lambda: torch.eye(8)
    )
    assert batch.caption_average[:, 0].tolist() == pytest.approx([1 / 7] * 7 + [0])
    assert batch.scores.flatten().tolist() == pytest.approx([3.0, 7.0, 11.0, 15.0])
