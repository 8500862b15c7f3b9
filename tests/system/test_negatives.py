"""Choices of negatives: by hand, by loops, by their shares where they are random, and against the original code."""

import itertools
import typing
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loss_batches import batch_of, ranking

from system.losses import terms
from system.losses.terms import choose_negatives
from system.models.batch import Embedded
from system.models.scores import frame_word

RANDOM = ("random", "random_apart")
NAMES = typing.get_args(terms.Negatives)[1:]


def test_chosen_negatives_of_a_batch_match_hand_values():
    scores = np.array([[0.5, 0.9, 0.1, 0.45], [0.2, 0.6, 0.3, 0.7], [0.8, 0.0, 0.4, 0.35], [0.6, 0.58, 0.1, 0.3]])
    within = np.array([[1, 0.2, 0.9, 0.3], [0.2, 1, 0.4, 0.1], [0.9, 0.4, 1, 0.6], [0.3, 0.1, 0.6, 1]])
    batch = batch_of(scores, [0, 1, 0, 2], clip_scores=within, caption_scores=1 - within)
    # Items 0 and 2 show one clip, so that 0.8 at (2, 0) and 0.9 within are nobody's.
    expected = {
        "hardest": ([1, 3, 3, 0], [3, 0, 1, 1]),
        "semi_hard": ([3, 3, 3, 2], [3, 3, 1, 2]),
        "audio_hard": ([3, 2, 3, 2], [3, 2, 3, 2]),
        "audio_easy": ([1, 3, 1, 1], [1, 3, 1, 1]),
        "text_hard": ([1, 3, 1, 1], [1, 3, 1, 1]),
        "text_easy": ([3, 2, 3, 2], [3, 2, 3, 2]),
    }
    for name, (captions, clips) in expected.items():
        found = [positions.tolist() for positions in choose_negatives(batch, name)]
        assert found == [captions, clips], name


def slow(name: str, scores: np.ndarray, ids: list[int], clips: np.ndarray, captions: np.ndarray) -> list[list[int]]:
    own = np.diagonal(scores)[:, None]
    badness = {
        "hardest": (-scores, -scores.T),
        "semi_hard": (abs(scores - own), abs(scores.T - own)),
        "text_hard": (-captions, -captions),
        "text_easy": (captions, captions),
        "audio_hard": (-clips, -clips),
        "audio_easy": (clips, clips),
    }[name]
    found: list[list[int]] = [[], []]
    for i in range(len(ids)):
        others = [j for j in range(len(ids)) if ids[j] != ids[i]] or [0]
        for positions, bad in zip(found, badness, strict=True):
            positions.append(others[int(np.argmin(bad[i, others]))])
    return found


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(RANDOM)))
@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6]])
def test_chosen_negatives_of_a_batch_match_those_of_plain_loops(name, owner):
    for seed in range(5):
        draw = np.random.default_rng(seed)
        ids = draw.integers(0, 5, 7).tolist()
        each, clips = draw.uniform(-1, 1, (7, len(owner))), draw.uniform(-1, 1, (7, 7))
        between = draw.uniform(-1, 1, (len(owner), len(owner)))
        of = [[n for n in range(len(owner)) if owner[n] == j] for j in range(7)]
        scores = np.array([[each[i, of[j]].mean() for j in range(7)] for i in range(7)])
        captions = np.array([[between[np.ix_(of[i], of[j])].mean() for j in range(7)] for i in range(7)])
        batch = batch_of(each, ids, owner, clip_scores=clips, caption_scores=between)
        found = [positions.tolist() for positions in choose_negatives(batch, name)]
        assert found == slow(name, scores, ids, clips, captions)


@pytest.mark.parametrize("name", RANDOM)
def test_random_negatives_are_uniform_over_allowed_pairs_and_follow_the_seed(name):
    ids, times = [0, 1, 2, 0, 3], 1500
    batch = batch_of(np.zeros((5, 5)), ids)
    torch.manual_seed(7)
    drawn = [torch.stack(choose_negatives(batch, name), 1).tolist() for _ in range(times)]
    for i in range(5):
        counts = Counter(tuple(pairs[i]) for pairs in drawn)
        others = [j for j in range(len(ids)) if ids[j] != ids[i]]
        allowed = [p for p in itertools.product(others, others) if name == "random" or p[0] != p[1]]
        assert set(counts) == set(allowed)
        expected = times / len(allowed)
        chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_squared < 45  # 15 degrees of freedom at most: once in 10,000 seeds
    found = []
    for seed in (7, 8):
        torch.manual_seed(seed)
        found.append([torch.stack(choose_negatives(batch, name), 1).tolist() for _ in range(9)])
    assert found[0] == drawn[:9] != found[1]


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("ids", [[0], [2, 2, 2], [0, 1], [0, 0, 1]])
def test_negatives_are_taken_from_other_clips_if_possible(name, ids):
    scores = np.random.default_rng(0).uniform(size=(len(ids), len(ids)))
    for positions in choose_negatives(batch_of(scores, ids), name):
        for i, position in enumerate(positions.tolist()):
            assert 0 <= position < len(ids)
            assert ids[position] != ids[i] or len(set(ids)) == 1


def test_scores_that_only_choose_negatives_are_computed_without_gradients():
    weights, seen = torch.rand(4, 4, requires_grad=True), []

    def within() -> torch.Tensor:
        seen.append(2 * weights)
        return seen[-1]

    batch = replace(batch_of(torch.rand(4, 4)), clip_scores=within, each_caption_scores=within)
    for name in ("text_hard", "text_easy", "audio_hard", "audio_easy"):
        choose_negatives(batch, name)
    assert [scores.requires_grad for scores in seen] == [False] * 4


ORIGINAL = {
    "random-NS": "random",
    "full-batch-NS": "all",
    "semi-hard-NS": "semi_hard",
    "hard-NS": "hardest",
    "easy-text-NS": "text_easy",
    "hard-text-NS": "text_hard",
    "easy-audio-NS": "audio_easy",
    "hard-audio-NS": "audio_hard",
}


def drawn_by_the_original(golden: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clips, captions = torch.from_numpy(golden[key].T.copy())
    monkeypatch.setattr(terms, "choose_negatives", lambda batch, how: (captions, clips))


@pytest.mark.parametrize("original", ORIGINAL)
@pytest.mark.parametrize("margin", [0.5, 0.1])
def test_negative_sampling_and_gradients_match_original_code(original, margin, goldens, monkeypatch):
    golden = np.load(goldens / "xieh97_frameword.npz")
    key = f"ns_{original}_m{margin}"
    if original == "random-NS":
        drawn_by_the_original(golden, f"{key}_picks_audio_text", monkeypatch)
    frames, words = (torch.tensor(golden[f"ns_{name}"], requires_grad=True) for name in ("audio", "text"))
    audio, text = (Embedded(v, torch.full((len(v),), v.shape[1])) for v in (frames, words))
    within = {"clip_scores": frame_word(audio, audio), "caption_scores": frame_word(text, text)}
    batch = batch_of(frame_word(audio, text), golden["ns_fid"], **within)
    loss = ranking(ORIGINAL[original], "mean", margin).value(batch)
    assert loss.item() == pytest.approx(float(golden[f"{key}_loss"]), abs=1e-9)
    loss.backward()
    for leaf, name in ((frames, "audio"), (words, "text")):
        assert np.abs(leaf.grad.numpy() - golden[f"{key}_grad_{name}"]).max() < 1e-6


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_triplet_loss_matches_2022_baseline(margin, goldens, monkeypatch):
    golden = np.load(goldens / "xieh97_dcase2022_crnn.npz")
    key = f"trl_m{margin}"
    drawn_by_the_original(golden, f"{key}_imposters_audio_text", monkeypatch)
    audio, text = (torch.tensor(golden[f"trl_{name}"], requires_grad=True) for name in ("audio", "text"))
    # The original takes dot products of vectors that the encoders gave a length of 1.
    loss = ranking("random_apart", margin=margin).value(batch_of(audio @ text.T, golden["trl_fid"]))
    assert loss.item() == pytest.approx(float(golden[f"{key}_loss"]), abs=1e-9)
    loss.backward()
    for leaf, name in ((audio, "audio"), (text, "text")):
        assert np.abs(leaf.grad.numpy() - golden[f"{key}_grad_{name}"]).max() < 1e-9
