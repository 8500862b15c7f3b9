"""Choices of negatives: by hand, by loops, by their shares where they are random, and against the original code."""

import itertools
import typing
from collections import Counter

import numpy as np
import pytest
import torch

from system.losses import terms
from system.losses.terms import BatchScores, Ranking, choose_negatives
from system.models.embeddings import Embedded
from system.models.scores import frame_word

RANDOM = ("random", "random_apart")
NAMES = typing.get_args(terms.Negatives)[1:]


def batch_of(
    each: np.ndarray,
    ids: list[int],
    row_of: list[int] | None = None,
    clips: np.ndarray | None = None,
    captions: object = None,
) -> BatchScores:
    """Within-modality scores are those given, or all 0."""
    numbers = torch.tensor(ids)
    return BatchScores(
        torch.as_tensor(each),
        torch.tensor(row_of if row_of is not None else list(range(len(ids)))),
        numbers[:, None] == numbers[None, :],
        None,
        lambda: torch.as_tensor(clips),
        lambda: torch.as_tensor(captions),
    )


def test_chosen_negatives_of_a_batch_match_hand_values():
    scores = np.array([[0.5, 0.9, 0.1, 0.45], [0.2, 0.6, 0.3, 0.7], [0.8, 0.0, 0.4, 0.35], [0.6, 0.58, 0.1, 0.3]])
    within = np.array([[1, 0.2, 0.9, 0.3], [0.2, 1, 0.4, 0.1], [0.9, 0.4, 1, 0.6], [0.3, 0.1, 0.6, 1]])
    batch = batch_of(scores, [0, 1, 0, 2], clips=within, captions=1 - within)
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
        found = choose_negatives(batch_of(each, ids, owner, clips, between), name)
        assert [positions.tolist() for positions in found] == slow(name, scores, ids, clips, captions)


def drawn(name: str, ids: list[int], times: int) -> list[Counter[tuple[int, int]]]:
    """Count how often each item gets each (caption, clip)."""
    torch.manual_seed(7)
    batch = batch_of(np.zeros((len(ids), len(ids))), ids)
    counts: list[Counter[tuple[int, int]]] = [Counter() for _ in ids]
    for _ in range(times):
        captions, clips = choose_negatives(batch, name)
        for count, pair in zip(counts, zip(captions.tolist(), clips.tolist(), strict=True), strict=True):
            count[pair] += 1
    return counts


@pytest.mark.parametrize("name", RANDOM)
def test_random_negatives_are_uniform_over_allowed_pairs_and_follow_the_seed(name):
    ids, times = [0, 1, 2, 0, 3], 3000
    for i, counts in enumerate(drawn(name, ids, times)):
        others = [j for j in range(len(ids)) if ids[j] != ids[i]]
        allowed = [p for p in itertools.product(others, others) if name == "random" or p[0] != p[1]]
        assert set(counts) == set(allowed)
        expected = times / len(allowed)
        chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_squared < 45  # 15 degrees of freedom at most: once in 10,000 seeds
    batch = batch_of(np.zeros((40, 40)), list(range(40)))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append([positions.tolist() for positions in choose_negatives(batch, name)])
    assert found[0] == found[1] != found[2]


def test_negatives_drawn_apart_come_from_the_other_clip_in_a_batch_of_two_clips():
    assert [set(counts) for counts in drawn("random_apart", [0, 1], 5)] == [{(1, 1)}, {(0, 0)}]


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("ids", [[0], [2, 2, 2], [0, 0, 1]])
def test_negatives_are_taken_from_other_clips_if_possible(name, ids):
    scores = np.random.default_rng(0).uniform(size=(len(ids), len(ids)))
    for positions in choose_negatives(batch_of(scores, ids, clips=scores, captions=scores), name):
        for i, position in enumerate(positions.tolist()):
            assert 0 <= position < len(ids)
            assert ids[position] != ids[i] or len(set(ids)) == 1


def test_no_gradient_flows_through_the_choice_of_negatives():
    frames = torch.rand(4, 3, 2, dtype=torch.float64, requires_grad=True)
    clips = Embedded(frames, torch.full((4,), 3))
    scores = torch.rand(4, 4, dtype=torch.float64)
    same = torch.eye(4, dtype=torch.bool)
    seen = []

    def within() -> torch.Tensor:
        seen.append(frame_word(clips, clips))
        return seen[-1]

    batch = BatchScores(scores, torch.arange(4), same, None, within, within)
    for name in ("text_hard", "text_easy", "audio_hard", "audio_easy"):
        assert not any(positions.requires_grad for positions in choose_negatives(batch, name))
    assert len(seen) == 4
    assert not any(scores.requires_grad for scores in seen)


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


@pytest.mark.parametrize("original", ORIGINAL)
@pytest.mark.parametrize("margin", [0.5, 0.1])
def test_negative_sampling_and_gradients_match_original_code(original, margin, goldens, monkeypatch):
    golden = np.load(goldens / "xieh97_frameword.npz")
    key = f"ns_{original}_m{margin}"
    if original == "random-NS":
        clips, captions = torch.from_numpy(golden[f"{key}_picks_audio_text"].T.copy())
        monkeypatch.setattr(terms, "choose_negatives", lambda batch, how: (captions, clips))
    frames, words = (torch.tensor(golden[f"ns_{name}"], requires_grad=True) for name in ("audio", "text"))
    ids = torch.from_numpy(golden["ns_fid"])
    audio, text = (Embedded(v, torch.full((len(v),), v.shape[1])) for v in (frames, words))
    batch = BatchScores(
        frame_word(audio, text),
        torch.arange(len(ids)),
        ids[:, None] == ids[None, :],
        None,
        lambda: frame_word(audio, audio),
        lambda: frame_word(text, text),
    )
    settings = {"kind": "ranking", "weight": 1, "margin": margin, "relax": "none", "reduce": "mean"}
    loss = Ranking.model_validate({**settings, "negatives": ORIGINAL[original]}).value(batch)
    assert loss.item() == pytest.approx(float(golden[f"{key}_loss"]), abs=1e-9)
    loss.backward()
    for leaf, name in ((frames, "audio"), (words, "text")):
        assert np.abs(leaf.grad.numpy() - golden[f"{key}_grad_{name}"]).max() < 1e-6


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_triplet_loss_matches_2022_baseline(margin, goldens, monkeypatch):
    golden = np.load(goldens / "xieh97_dcase2022_crnn.npz")
    key = f"trl_m{margin}"
    clips, captions = torch.from_numpy(golden[f"{key}_imposters_audio_text"].T.copy())
    monkeypatch.setattr(terms, "choose_negatives", lambda batch, how: (captions, clips))
    audio, text = (torch.tensor(golden[f"trl_{name}"], requires_grad=True) for name in ("audio", "text"))
    ids = golden["trl_fid"].tolist()
    settings = {"kind": "ranking", "weight": 1, "margin": margin, "relax": "none", "negatives": "random_apart"}
    # The original takes dot products of vectors that the encoders gave a length of 1.
    loss = Ranking.model_validate(settings).value(batch_of(audio @ text.T, ids))
    assert loss.item() == pytest.approx(float(golden[f"{key}_loss"]), abs=1e-9)
    loss.backward()
    for leaf, name in ((audio, "audio"), (text, "text")):
        assert np.abs(leaf.grad.numpy() - golden[f"{key}_grad_{name}"]).max() < 1e-9
