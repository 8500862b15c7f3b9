"""Scores of frames against words: worked by hand, against a loop over pairs, and against the original code."""

import csv
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from system.losses import terms as losses
from system.models import embeddings
from system.models import scores as scoring
from system.models.embeddings import Embedded, Ragged
from system.models.scores import Cosine, cosine, frame_word
from system.ranking import embedding
from system.training.validation import direction_spread


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
    found = frame_word(clips, captions)
    assert np.abs(found.numpy() - golden["align_STSQ"]).max() < 1e-9
    assert np.abs(frame_word(clips, captions).numpy() - golden["ns_score_matrix"]).max() < 1e-9
    golden = np.load(goldens / "xieh97_frameword.npz")
    dots = golden["model_frame_word_matrix_00"].astype(np.float64)  # (T, W) dot products, unclamped or clamped at 0
    score = frame_word(series(dots), series(np.eye(dots.shape[1]))).item()
    assert score == pytest.approx(golden["model_scores"][0, 0], abs=1e-7)


@pytest.mark.parametrize("positions", [1, 40, 1 << 24])
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


def test_equal_words_pooled_embeddings_and_several_captions_of_an_item():
    word = torch.tensor([0.6, 0.8], dtype=torch.float64)
    captions = series((word + 1e-15)[None], word[None])
    found = frame_word(series([[1e12, 0.0]]), captions)[0]
    assert (found[0] - found[1]).item() == pytest.approx(1e-3, rel=0.2)
    pooled = Embedded(torch.ones(2, 3))
    with pytest.raises(ValueError, match="series"):
        frame_word(pooled, series([[1.0, 2.0, 3.0]]))
    # Seven captions of the first item, one of the second: each of the seven weighs 1/7.
    each = torch.arange(16.0).reshape(2, 8)
    batch = losses.BatchScores(
        each, torch.tensor([0] * 7 + [1]), torch.eye(2, dtype=torch.bool), None, lambda: each, lambda: torch.eye(8)
    )
    assert batch.caption_average[:, 0].tolist() == pytest.approx([1 / 7] * 7 + [0])
    assert batch.scores.flatten().tolist() == pytest.approx([3.0, 7.0, 11.0, 15.0])


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


def test_captions_with_repeated_words_are_scored_like_in_a_loop(shared):
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["caption_1"].lower().strip(".").split() for row in csv.DictReader(file)][:200]
    draw = np.random.default_rng(0)
    vector = {word: row / np.linalg.norm(row) for text in texts for word in text for row in [draw.normal(size=16)]}
    captions = series(*(np.array([vector[word] for word in text]) for text in texts)).float()
    clips = made(8, [30, 20, 45], dim=16).float()
    assert torch.allclose(frame_word(clips, captions).double(), oracle(clips, captions), rtol=0, atol=1e-5)


def ragged(filled: Embedded) -> Ragged:
    pairs = zip(filled.values, filled.lengths.tolist(), strict=True)
    return Ragged(torch.cat([series[:length] for series, length in pairs]), filled.lengths)


def test_selected_rows_padded_blocks_and_spread_of_ragged_series_match_hand_values(monkeypatch):
    pool = Ragged(torch.arange(12.0).view(6, 2), torch.tensor([3, 0, 1, 2]))
    found = pool.rows([3, 0, 3, 1])
    assert found.values[:, 0].tolist() == [8, 10, 0, 2, 4, 8, 10]
    assert found.lengths.tolist() == [2, 3, 2, 0]
    assert pool.rows(torch.tensor([2])).values.tolist() == [[6, 7]]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 4)  # two frames
    parts = [
        (places.tolist(), part.values[..., 0].tolist(), part.lengths.tolist()) for places, part in pool.padded_parts()
    ]
    assert parts == [([1, 2], [[0], [6]], [0, 1]), ([3], [[8, 10]], [2]), ([0], [[0, 2, 4]], [3])]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 1 << 24)
    ((places, part),) = pool.padded_parts()
    assert places.tolist() == [1, 2, 3, 0]
    assert part.values[2].tolist() == [[8, 9], [10, 11], [0, 0]]
    filled = made(3, [4, 1, 0, 9], dim=3)
    filled.values[0, 1] = 1e-7
    assert direction_spread(ragged(filled)) == pytest.approx(
        direction_spread(Embedded(filled.values, filled.lengths)), abs=1e-12
    )


@pytest.mark.parametrize(("dots", "values"), [(1, 1), (12, 20), (40, 1 << 24), (1 << 24, 30)])
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


_POOL = """
import json, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import tiny, torch
from augmented import clip
from heard import slaney
from system.features.bank import Bank
from system.features.extract import Features
from system.models.text.words import write_word_vectors
from system.runs.open import build_model
from system.recipe.load import load_recipe
from system.ranking.embedding import embed_clips, embed_texts
from system.training.validation import Validation

folder, long = Path(sys.argv[1]), int(sys.argv[2])
COUNT, SHORTEST, LONGEST = 100, 250, 750  # frames of 0.02 s
world = tiny.make_world(folder / "world", {"development": 2, "validation": 2, "evaluation": 2})
content = tiny.recipe(world, folder)
words = "a deep tone sounds somebody plays low note hum goes on one shrill beep it is".split()
draws = np.random.default_rng(0)
write_word_vectors(folder / "words.bin", {word: draws.normal(size=300) for word in words})
content["model"] = {
    "audio": {
        "kind": "crnn", "experts": slaney(), "hidden": 150, "dropout": 0.2, "embedding": "frames",
    },
    "text": {
        "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 300, 
        "embedding": "words",
    },
    "score": {"kind": "frame_word"},
}
for stage in content["stages"].values():
    ranking = {"kind": "ranking", "weight": 1, "margin": 0.5, "relax": "none"}
    stage["losses"] = [ranking | {"negatives": sys.argv[3]}]
    stage["batch_size"], stage["monitor"]["metrics"] = 32, ["loss", "m1", "m2", "mAP@10"]
recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", content)).recipe
torch.manual_seed(0)
model = build_model(recipe, [])
lengths = draws.integers(SHORTEST, LONGEST, COUNT).tolist() + [60_000] * long
bank = Bank(folder / "bank", 64, "float32", {})
series = ((str(n), np.random.default_rng(n).normal(-10, 3, (length, 64))) for n, length in enumerate(lengths))
tiny.store_all(bank, series)
clips = [clip(f"{n}.wav", f"one deep beep {n}") for n in range(len(lengths))]
clips = [replace(one, seconds=length / 50) for one, length in zip(clips, lengths)]
features = Features({"logmel": bank}, {one.id: str(n) for n, one in enumerate(clips)})
texts = ["a deep tone", "somebody plays", "it is on"] * 40
pool = embed_clips(model, clips, features)
with torch.inference_mode():
    scores = model.score_matrix(embed_texts(model, texts), pool)
del pool
(stage,) = recipe.stages.values()
Validation(clips, stage, features)(model)
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**20
print(json.dumps({"gib": peak, "scores": scores[:3, :COUNT].tolist()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("negatives", ["audio_hard"])
def test_scoring_a_twenty_minute_clip_needs_less_than_2_gb(root, tmp_path, negatives):
    found = {}
    for long in (0, 1):
        folder = tmp_path / str(long)
        folder.mkdir()
        command = [sys.executable, "-c", _POOL, str(folder), str(long), negatives]
        paths = f"{root}:{root / 'tests/helpers'}:{root / 'tests/system'}"
        environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found[long] = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{found[0]['gib']:.2f} GiB without, {found[1]['gib']:.2f} GiB with it")
    assert found[1]["gib"] - found[0]["gib"] < 2e9 / 2**30
    assert np.allclose(found[0]["scores"], found[1]["scores"], rtol=0, atol=1e-6)
    assert np.ptp(found[0]["scores"]) > 1e-3
