"""Terms of the loss: worked by hand, against slow oracles, and against the original code."""

import math
import typing
from typing import Any

import numpy as np
import pytest
import torch
from loss_batches import batch_of, ranking

from system.losses import Term
from system.losses import terms as losses
from system.losses.terms import HardNegativeNce, Matching, Negatives, NtXent, Ranking, Sigmoid, WeightedTriplet
from system.models.batch import Embedded
from system.models.scores import cosine
from system.training.step import diagnose
from system.training.validation import accuracies

RANKING, RELAXED = ranking(), ranking(relax="cider")
MATCHING = Matching(kind="matching", weight=3)
NT_XENT = NtXent(kind="nt_xent", weight=1, temperature=0.07)
PUBLIC_NT_XENT = NtXent(kind="nt_xent", weight=1, temperature=0.07, same_clip="negatives")
POSITIVE, NEGATIVE = [0.5, -0.7, 0.2], [0.03, -0.4, 0.9]  # the paper's polynomials
WEIGHTED = {
    clamp: WeightedTriplet(
        kind="weighted_triplet", weight=1, margin=0.2, positive=POSITIVE, negative=NEGATIVE, clamp=clamp
    )
    for clamp in ("sum", "each")
}
HARD = HardNegativeNce(kind="hard_negative_nce", weight=1, temperature=0.2, beta=0.5)
SIGMOID = Sigmoid(kind="sigmoid", weight=1)
ANY_NEGATIVES = typing.get_args(Negatives)
REDUCTIONS = typing.get_args(Ranking.model_fields["reduce"].annotation)
SCORES = [[0.9, 0.3, 0.8], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]]


def learned(scale: float = 10.0, bias: float = -10.0) -> dict[str, torch.Tensor]:
    """Numbers that Sigmoid trains."""
    values = {"sigmoid_log_scale": math.log(scale), "sigmoid_bias": bias}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def drawn(size: int) -> tuple[dict[str, Any], np.ndarray, list[int], np.ndarray]:
    """A batch whose items have 1 to 3 captions; its scores, clips of which some are equal, and margin factors."""
    random = np.random.default_rng(size)
    ids, owner = random.integers(0, max(1, size - 2), size), np.arange(size).repeat(random.integers(1, 4, size))
    each, relax = random.uniform(-1, 1, (size, len(owner))), random.uniform(0.4, 1, (size, size))
    scores = np.stack([each[:, owner == j].mean(1) for j in range(size)], 1)
    return {"scores": each, "row_of": owner, "clips": ids, "relax": relax}, scores, ids.tolist(), relax


def test_ranking_and_matching_losses_match_hand_values():
    # Rows (captions as negatives): .2 + .8 - .9 = .1; .2 + .6 - .5 = .3. Columns (clips): .2 + .3 - .5 = 0;
    # .2 + .8 - .7 = .3; .2 + .6 - .7 = .1. Sum .8, three items.
    batch = batch_of(SCORES)
    assert RANKING.value(batch).item() == pytest.approx(0.8 / 3)
    assert MATCHING.value(batch).item() == pytest.approx(-0.7)
    assert losses.total_loss(batch, [RANKING, MATCHING]).item() == pytest.approx(0.8 / 3 - 2.1)
    # Items 0 and 2 show one clip: cells (0, 2) and (2, 0) leave the sum: -.1 (row 0) and -.3 (column 2).
    assert RANKING.value(batch_of(SCORES, [7, 1, 7])).item() == pytest.approx(0.4 / 3)
    # Gaps with a margin of .2: captions -.4 and .1 | -.2 and .3 | -.5 and -.3, clips -.6 and -.7 | 0 and -.1 | .3 and
    # .1. Means of the hinges .05, .15, 0, 0, 0, .2; of the gaps -.15, .05, -.4, -.65, -.05, .2.
    batch = batch_of(torch.tensor(SCORES, dtype=torch.float64))
    assert ranking(reduce="mean").value(batch).item() == pytest.approx(0.4 / 3)
    assert ranking(reduce="hinge_of_mean").value(batch).item() == pytest.approx(0.25 / 3)
    hardest = ranking("hardest")  # captions .1, .3, -.3, clips -.6, 0, .3
    assert hardest.value(batch).item() == pytest.approx(0.7 / 3)
    relax = [[0.0, 1.0, 0.4], [0.7, 0.0, 0.4], [1.0, 0.7, 0.0]]  # r(c_ij), not symmetric; the diagonal plays no part
    # i = 0: j = 1: .2 + .3 - .9 < 0, .2 + .1 - .9 < 0; j = 2: .08 + .8 - .9 < 0 (s_ij), .08 + .0 - .9 < 0 (s_ji).
    # i = 1: j = 0: .14 + .1 - .5 < 0, .14 + .3 - .5 < 0; j = 2: .08 + .6 - .5 = .18, .08 + .2 - .5 < 0.
    # i = 2: j = 0: .2 + .0 - .7 < 0, .2 + .8 - .7 = .3; j = 1: .14 + .2 - .7 < 0, .14 + .6 - .7 = .04.
    batch = batch_of(SCORES, relax=relax)
    assert RELAXED.value(batch).item() == pytest.approx((0.18 + 0.3 + 0.04) / 3)
    captions, clips = losses.margin_violations(batch, 0.2, relaxed=True)
    assert captions[1, 2].item() == pytest.approx(0.18)
    assert (clips[2, 0].item(), clips[2, 1].item()) == (pytest.approx(0.3), pytest.approx(0.04))
    assert RANKING.value(batch).item() == pytest.approx(0.8 / 3)  # a plain term leaves r alone


def slow_ranking(scores: np.ndarray, ids: list[int], relax: np.ndarray | float = 1, reduce: str = "sum") -> float:
    margins, total = 0.2 * relax * np.ones_like(scores), 0.0
    for matrix in (scores, scores.T):
        for i in range(len(scores)):
            gaps = [margins[i, j] + matrix[i, j] - scores[i, i] for j in range(len(scores)) if ids[i] != ids[j]]
            hinges = [max(0.0, gap) for gap in gaps]
            if gaps:
                of_item = {"sum": sum(hinges), "mean": np.mean(hinges), "hinge_of_mean": max(0.0, float(np.mean(gaps)))}
                total += float(of_item[reduce])
    return total / len(scores)


def slow_nt_xent(scores: np.ndarray, clips: list[int], temperature: float, beta: float = 0.0) -> float:
    """Negatives weighted by e^(beta l), n in all; those of plain NT-Xent count 1 each."""
    total, size = 0.0, len(scores)
    for logits in (scores / temperature, scores.T / temperature):
        for i in range(size):
            others = np.array([logits[i, j] for j in range(size) if clips[j] != clips[i]])
            weights = np.exp(beta * others)
            negatives = len(others) * (weights * np.exp(others)).sum() / weights.sum() if len(others) else 0.0
            total -= logits[i, i] - math.log(math.exp(logits[i, i]) + negatives)
    return total / size / 2


def slow_sigmoid(scores: np.ndarray, clips: list[int], scale: float, bias: float) -> float:
    total, size = 0.0, len(scores)
    for i in range(size):
        for j in range(size):
            sign = 1 if i == j else -1
            if i == j or clips[i] != clips[j]:
                total += math.log(1 + math.exp(-sign * (scale * scores[i, j] + bias)))
    return total / size


def test_contrastive_losses_match_hand_values():
    # NT-Xent. Rows: -ln(e / (e + 1)) twice; columns the same: ln(1 + 1/e).
    found = NtXent(kind="nt_xent", weight=1, temperature=1.0).value(batch_of([[1.0, 0.0], [0.0, 1.0]]))
    assert found.item() == pytest.approx(np.log(1 + np.exp(-1)))
    # Sigmoid of scale 2 and bias -1: logits 1 and -1 on the diagonal, -1 and 0 elsewhere.
    found = SIGMOID.value(batch_of([[1.0, 0.0], [0.5, 0.0]], learned=learned(2.0, -1.0)))
    matching = math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1))
    assert found.item() == pytest.approx((matching + math.log(1 + math.exp(-1)) + math.log(2)) / 2)
    assert SIGMOID.learned == {"sigmoid_log_scale": pytest.approx(math.log(10)), "sigmoid_bias": -10.0}


def test_loss_diagnostics_match_hand_values():
    relax = np.full((3, 3), 0.4)
    batch = batch_of(SCORES, relax=relax)
    losses.total_loss(batch, [RELAXED, MATCHING])
    seen = {name: value.item() for name, value in diagnose(batch, [RELAXED, MATCHING]).items()}
    # Hardest by row .8, .6, .2, by column .1, .3, .8. Full margin: 4 hinges of 12 are above zero (see by hand above);
    # with .08 two are left: row 1, .08 + .6 - .5, and column 2, .08 + .8 - .7.
    assert seen["positive"] == pytest.approx(0.7)
    assert seen["hardest_negative"] == pytest.approx(2.8 / 6)
    assert seen["violations"] == pytest.approx(4 / 12)
    assert seen["violations_relaxed"] == pytest.approx(2 / 12)
    assert diagnose(batch, [MATCHING, WEIGHTED["each"]])["violations"].item() == pytest.approx(4 / 12)
    assert diagnose(batch, [ranking("semi_hard", "mean")])["violations"].item() == pytest.approx(4 / 12)
    for term in (NT_XENT, WEIGHTED["sum"]):  # they read no margin
        assert set(diagnose(batch_of(SCORES), [term])) == {"positive", "hardest_negative"}
    assert "violations_relaxed" not in diagnose(batch_of(SCORES), [RANKING])
    alone = diagnose(batch_of(torch.ones(2, 2), [3, 3]), [RANKING])
    assert {name: value.item() for name, value in alone.items()} == {
        "positive": 1,
        "hardest_negative": 0,
        "violations": 0,
    }
    # Items 0 and 1 show one clip: (0, 1) and (1, 0) are no negatives.
    pair = diagnose(batch_of([[0.9, 0.8, 0.1], [0.7, 0.5, 0.2], [0.3, 0.4, 0.6]], [0, 0, 1]), [RANKING])
    assert pair["hardest_negative"].item() == pytest.approx((0.1 + 0.2 + 0.4 + 0.3 + 0.4 + 0.2) / 6)


ORIGINAL = {
    "triplet_sum": RANKING,
    "triplet_max": ranking("hardest"),
    "triplet_weighted": WEIGHTED["each"],
    "ntxent": PUBLIC_NT_XENT,
}


@pytest.mark.parametrize("name", ORIGINAL)
def test_metric_learning_losses_and_gradients_match_original_code(name, goldens):
    golden = np.load(goldens / "losses.npz")
    assert len(golden["cases"]) == 15
    for case in golden["cases"]:
        given = [f"{case}_audio", f"{case}_text"] if case.startswith("emb") else [f"{case}_sim"]
        leaves = [torch.tensor(golden[key], requires_grad=True) for key in given]
        scores = cosine(*map(Embedded, leaves)) if len(leaves) == 2 else leaves[0]
        loss = losses.total_loss(batch_of(scores, golden[f"{case}_labels"].tolist()), [ORIGINAL[name]])
        assert loss.item() == pytest.approx(float(golden[f"{case}_{name}_loss"]), abs=1e-9)
        loss.backward()
        for key, leaf in zip(given, leaves, strict=True):
            expected = golden[f"{case}_{name}_grad_{key.split('_')[1]}"]
            assert np.abs(leaf.grad.numpy() - expected).max() < 1e-9


def test_weighted_triplet_matches_hand_values_and_is_finite_for_a_collapsed_model():
    # P(.9) = .5 - .63 + .162 = .032, P(.5) = .2, P(.7) = .108. Hardest caption .8, .6, .2, clip .1, .3, .8:
    # N(.8) = .03 - .32 + .576 = .286, N(.6) = .114, N(.2) = -.014; N(.1) = -.001, N(.3) = -.009, N(.8) = .286.
    batch = batch_of(torch.tensor(SCORES, dtype=torch.float64))
    total = (0.032 + 0.286) + (0.2 + 0.114) + (0.108 - 0.014) + (0.032 - 0.001) + (0.2 - 0.009) + (0.108 + 0.286)
    assert WEIGHTED["sum"].value(batch).item() == pytest.approx(total / 3)
    # Above s_ii - .2: .8 of .9, .6 of .5; .2 of .7 is not; of the clips .3 of .5 is not (the comparison is strict and
    # .3 + .2 is .5), .8 of .7 is.
    each = (0.032 + 0.286) + (0.2 + 0.114) + (0.108 + 0.286)
    assert WEIGHTED["each"].value(batch).item() == pytest.approx(each / 3)
    # P(1) = 0 and N(1) = .53, in both directions of every item.
    for clamp in WEIGHTED.values():
        found = clamp.value(batch_of(torch.ones(3, 3))).item()
        assert found == pytest.approx(1.06, abs=1e-6)
    # N(-1) = .03 + .4 + .9 = 1.33, where N(0) is .03; P(.5) = .5 - .35 + .05 = .2.
    batch = batch_of([[0.5, -1.0], [-1.0, 0.5]])
    assert WEIGHTED["sum"].value(batch).item() == pytest.approx(2 * (0.2 + 1.33))


def slow_weighted(scores: np.ndarray, ids: list[int], settings: WeightedTriplet) -> float:
    total = 0.0
    for matrix in (scores, scores.T):
        for i in range(len(scores)):
            others = [matrix[i, j] for j in range(len(scores)) if ids[i] != ids[j]]
            p = sum(a * matrix[i, i] ** n for n, a in enumerate(settings.positive))
            if settings.clamp == "each":
                others = [s for s in others if s + settings.margin > matrix[i, i]]
            if others:
                q = sum(b * max(others) ** n for n, b in enumerate(settings.negative))
                total += max(p + q, 0) if settings.clamp == "sum" else max(p, 0) + max(q, 0)
    return total / len(scores)


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_losses_match_loops_over_their_definitions(size):
    facts, scores, ids, relax = drawn(size)
    batch = batch_of(**facts, learned=learned(5.0, -2.0))
    assert batch.scores.numpy() == pytest.approx(scores)

    def value(term: Term, **changes: Any) -> float:
        found: float = term.model_copy(update=changes).value(batch).item()
        return found

    assert value(MATCHING) == pytest.approx(-np.diagonal(scores).mean())
    for reduce in REDUCTIONS:
        assert value(RANKING, reduce=reduce) == pytest.approx(slow_ranking(scores, ids, 1, reduce))
        assert value(RELAXED, reduce=reduce) == pytest.approx(slow_ranking(scores, ids, relax, reduce))
    for settings in WEIGHTED.values():
        other = settings.model_copy(update={"positive": [0.1, -0.3, 0.2, 0.4], "negative": [-0.2, 0.9]})
        assert value(other) == pytest.approx(slow_weighted(scores, ids, other))
    assert value(NT_XENT) == pytest.approx(slow_nt_xent(scores, ids, 0.07))
    assert value(PUBLIC_NT_XENT) == pytest.approx(slow_nt_xent(scores, [*range(size)], 0.07))
    assert value(PUBLIC_NT_XENT, directions="sum") == pytest.approx(2 * value(PUBLIC_NT_XENT))
    for beta in (0.0, 0.25, 1.0):
        assert value(HARD, beta=beta) == pytest.approx(slow_nt_xent(scores, ids, 0.2, beta), rel=1e-10)
    assert value(SIGMOID) == pytest.approx(slow_sigmoid(scores, ids, 5.0, -2.0), rel=1e-12)


@pytest.mark.parametrize("term", [RELAXED, MATCHING, NT_XENT, *WEIGHTED.values(), HARD, SIGMOID], ids=str)
def test_gradients_of_losses_match_finite_differences(term):
    facts, _, _, _ = drawn(5)
    numbers = learned(5.0, -2.0)

    def loss(scores: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        batch = batch_of(**facts | {"scores": scores}, learned=dict(zip(numbers, values, strict=True)))
        return losses.total_loss(batch, [term]) + 0 * sum(values)

    leaves = [torch.tensor(facts["scores"]), *numbers.values()]
    assert torch.autograd.gradcheck(loss, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("negatives", ANY_NEGATIVES[1:])
def test_all_ranking_loss_reductions_are_equal_for_one_negative(negatives):
    _, scores, ids, relax = drawn(6)
    batch, found = batch_of(scores, ids, relax=relax), set()
    for reduce in REDUCTIONS:
        torch.manual_seed(1)
        found.add(ranking(negatives, reduce, relax="cider").value(batch).item())
    assert len(found) == 1


def every_term() -> list[Term]:
    rankings = [ranking(negatives, reduce) for negatives in ANY_NEGATIVES for reduce in REDUCTIONS]
    return [
        *rankings,
        RELAXED,
        ranking("semi_hard", relax="cider"),
        *WEIGHTED.values(),
        NT_XENT,
        PUBLIC_NT_XENT,
        HARD,
        SIGMOID,
    ]


@pytest.mark.parametrize("term", every_term(), ids=str)
def test_items_without_negatives_add_no_loss_or_gradient(term):
    """A batch of one clip, and one whose items are all captions of one; same-clip NT-Xent has negatives even there."""
    for ids in ([0], [3, 3, 3, 3]):
        scores = torch.rand(len(ids), len(ids), requires_grad=True)
        batch = batch_of(scores, ids, relax=np.ones((len(ids), len(ids))), learned=learned())
        loss = losses.total_loss(batch, [term])
        loss.backward()
        if term is not SIGMOID and (term is not PUBLIC_NT_XENT or len(ids) == 1):
            assert loss.item() == 0
            assert not scores.grad.any()
        assert torch.isfinite(scores.grad).all()


def test_accuracies_and_violations_in_a_batch_match_hand_values():
    assert accuracies(batch_of(SCORES)) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    # Rows: .9 loses against .95, .5 against .6, .7 wins. Columns: .9 wins, .5 wins, .7 loses against .95.
    assert accuracies(batch_of([[0.9, 0.3, 0.95], [0.1, 0.5, 0.6], [0.0, 0.2, 0.7]])) == (
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )
    assert accuracies(batch_of(torch.ones(4, 4))) == (0.0, 0.0)
    assert accuracies(batch_of(torch.ones(2, 2), [3, 3])) == (1.0, 1.0)
    # Gaps of -0.3: below a margin of 0.2, above one of 0.5.
    batch = batch_of([[0.5, 0.2], [0.2, 0.5]])
    narrow, wide = ranking(margin=0.2), ranking(margin=0.5)
    assert diagnose(batch, [narrow, wide])["violations"] == 0
    assert diagnose(batch, [wide, narrow])["violations"] == 1
    assert diagnose(batch, [MATCHING, wide, narrow])["violations"] == 1
