"""Terms of the loss: worked by hand, against slow oracles, and against the original code."""

import dataclasses
import itertools
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from system import losses, schema

RANKING = schema.Ranking(kind="ranking", weight=1, margin=0.2, relax="none")
RELAXED = schema.Ranking(kind="ranking", weight=1, margin=0.2, relax="cider")
MATCHING = schema.Matching(kind="matching", weight=3)
NT_XENT = schema.NtXent(kind="nt_xent", weight=1, temperature=0.07)


def batch_scores(scores: Any, clip_ids: list[int] | None = None, relax: Any = None) -> losses.BatchScores:
    scores = torch.as_tensor(scores)
    relax = None if relax is None else torch.as_tensor(relax, dtype=scores.dtype)
    ids = torch.tensor(clip_ids if clip_ids is not None else list(range(len(scores))))
    return losses.BatchScores(
        scores, torch.arange(len(scores)), ids[:, None] == ids[None, :], relax, lambda: scores, lambda: scores
    )


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


def test_relaxed_ranking_by_hand() -> None:
    scores = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]
    relax = [[0.0, 1.0, 0.4], [0.7, 0.0, 0.4], [1.0, 0.7, 0.0]]  # r(c_ij), not symmetric; the diagonal plays no part
    # i = 0: j = 1: .2 + .3 - .9 < 0, .2 + .1 - .9 < 0; j = 2: .08 + .8 - .9 < 0 (s_ij), .08 + .0 - .9 < 0 (s_ji).
    # i = 1: j = 0: .14 + .1 - .5 < 0, .14 + .3 - .5 < 0; j = 2: .08 + .6 - .5 = .18, .08 + .2 - .5 < 0.
    # i = 2: j = 0: .2 + .0 - .7 < 0, .2 + .8 - .7 = .3; j = 1: .14 + .2 - .7 < 0, .14 + .6 - .7 = .04.
    batch = batch_scores(scores, relax=relax)
    assert losses.ranking(batch, RELAXED).item() == pytest.approx((0.18 + 0.3 + 0.04) / 3)
    captions, clips = losses.hinges(batch, 0.2, relaxed=True)
    assert captions[1, 2].item() == pytest.approx(0.18)
    assert (clips[0, 2].item(), clips[1, 2].item()) == (pytest.approx(0.3), pytest.approx(0.04))
    assert losses.ranking(batch, RANKING).item() == pytest.approx(0.8 / 3)  # a plain term leaves r alone


def slow_ranking(scores: np.ndarray, ids: list[int], margin: float, relax: np.ndarray | None = None) -> float:
    total = 0.0
    for i, j in itertools.product(range(len(scores)), repeat=2):
        if ids[i] != ids[j]:
            m = margin if relax is None else margin * relax[i, j]
            total += max(0.0, m + scores[i, j] - scores[i, i]) + max(0.0, m + scores[j, i] - scores[i, i])
    return total / len(scores)


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_ranking_equals_the_equation(size: int) -> None:
    random = np.random.default_rng(size)
    scores, ids = random.uniform(-1, 1, (size, size)), random.integers(0, max(1, size - 2), size).tolist()
    relax = random.uniform(0.4, 1, (size, size))
    plain = losses.ranking(batch_scores(scores, ids), RANKING).item()
    assert plain == pytest.approx(slow_ranking(scores, ids, 0.2))
    relaxed = losses.ranking(batch_scores(scores, ids, relax), RELAXED).item()
    assert relaxed == pytest.approx(slow_ranking(scores, ids, 0.2, relax))
    assert losses.ranking(batch_scores(scores, ids, np.ones_like(relax)), RELAXED).item() == plain


@pytest.mark.parametrize("captions", [[1] * 7, [5] * 7, [1, 5, 2, 3, 1, 4, 5]])
def test_the_loss_of_several_captions_equals_a_loop_over_them(captions: list[int]) -> None:
    random = np.random.default_rng(sum(captions))
    size, total = len(captions), sum(captions)
    owner = np.repeat(np.arange(size), captions)
    each, relax = random.uniform(-1, 1, (size, total)), random.uniform(0, 1, (size, size))
    expected = np.array(
        [[np.mean([each[i, n] for n in range(total) if owner[n] == j]) for j in range(size)] for i in range(size)]
    )
    plain = batch_scores(np.zeros((size, size)), relax=relax)
    batch = dataclasses.replace(plain, each=torch.tensor(each), row_of=torch.tensor(owner))
    assert np.allclose(batch.scores.numpy(), expected)
    ids = list(range(size))
    assert losses.ranking(batch, RELAXED).item() == pytest.approx(slow_ranking(expected, ids, 0.2, relax))
    assert losses.matching(batch, MATCHING).item() == pytest.approx(-np.diagonal(expected).mean())


def test_a_relaxed_loss_without_factors_is_a_mistake_in_the_code() -> None:
    with pytest.raises(ValueError, match="needs the relax factors"):
        losses.ranking(batch_scores(torch.ones(2, 2)), RELAXED)


def slow_nt_xent(scores: np.ndarray, ids: list[int], temperature: float) -> float:
    total, size = 0.0, len(scores)
    for matrix in (scores / temperature, scores.T / temperature):
        for i in range(size):
            others = [matrix[i, j] for j in range(size) if i == j or ids[i] != ids[j]]
            total -= matrix[i, i] - np.log(np.sum(np.exp(others)))
    return total / size / 2


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_nt_xent_equals_its_definition(size: int) -> None:
    random = np.random.default_rng(size)
    scores, ids = random.uniform(-1, 1, (size, size)), random.integers(0, max(1, size - 2), size).tolist()
    assert losses.nt_xent(batch_scores(scores, ids), NT_XENT).item() == pytest.approx(slow_nt_xent(scores, ids, 0.07))


def test_nt_xent_by_hand() -> None:
    # Rows: -ln(e / (e + 1)) twice; columns the same: ln(1 + 1/e).
    found = losses.nt_xent(
        batch_scores([[1.0, 0.0], [0.0, 1.0]]), schema.NtXent(kind="nt_xent", weight=1, temperature=1.0)
    )
    assert found.item() == pytest.approx(np.log(1 + np.exp(-1)))


def test_nt_xent_equals_the_original_code(shared: Path) -> None:
    golden = np.load(shared / "golden/losses.npz")
    seen = 0
    for n in range(10):
        labels = golden[f"sim{n}_labels"].tolist()
        scores = torch.tensor(golden[f"sim{n}_sim"], requires_grad=True)
        loss = losses.nt_xent(batch_scores(scores, labels), NT_XENT)
        expected = float(golden[f"sim{n}_ntxent_loss"])
        if len(set(labels)) < len(labels):  # the original leaves clips that come twice in its denominators
            assert loss.item() < expected
            continue
        assert loss.item() == pytest.approx(expected, abs=1e-9)
        loss.backward()
        assert np.abs(scores.grad.numpy() - golden[f"sim{n}_ntxent_grad_sim"]).max() < 1e-9
        seen += 1
    assert seen >= 5


def test_what_the_loss_sees_by_hand() -> None:
    scores = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]
    relax = np.full((3, 3), 0.4)
    batch = batch_scores(scores, relax=relax)
    losses.total(batch, [RELAXED, MATCHING])
    seen = {name: value.item() for name, value in losses.diagnose(batch, [RELAXED, MATCHING]).items()}
    # Hardest by row .8, .6, .2, by column .1, .3, .8. Full margin: 4 hinges of 12 are above zero (see by hand above);
    # with .08 two are left: row 1, .08 + .6 - .5, and column 2, .08 + .8 - .7.
    assert seen["positive"] == pytest.approx(0.7)
    assert seen["hardest_negative"] == pytest.approx(2.8 / 6)
    assert seen["violations"] == pytest.approx(4 / 12)
    assert seen["violations_relaxed"] == pytest.approx(2 / 12)
    assert "violations" not in losses.diagnose(batch_scores(scores), [NT_XENT])
    assert "violations_relaxed" not in losses.diagnose(batch_scores(scores), [RANKING])
    alone = losses.diagnose(batch_scores(torch.ones(2, 2), [3, 3]), [RANKING])
    assert all(np.isfinite(value.item()) for value in alone.values())


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
    relax = torch.rand(5, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda s: losses.total(batch_scores(s, [0, 1, 2, 0, 4], relax), [RELAXED, MATCHING, NT_XENT]), scores
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
