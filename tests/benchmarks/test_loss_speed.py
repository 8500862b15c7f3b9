"""Every term of the loss and every choice of negatives at a batch of 512, forward and backward, as ratios measured in
one run: `python -m pytest -m benchmark -s`. Nothing here fails for being slow."""

import typing
from collections.abc import Callable
from functools import partial

import pytest
import torch
from benchmarks.timing import best_seconds

from system.losses import Term
from system.losses.terms import BatchScores, Matching, Negatives, NtXent, Ranking, WeightedTriplet

pytestmark = pytest.mark.benchmark

SIZE = 512


def terms() -> dict[str, Term]:
    ranking = {"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"}
    polynomials = {"margin": 0.2, "positive": [0.5, -0.7, 0.2], "negative": [0.03, -0.4, 0.9]}
    found: dict[str, Term] = {
        f"ranking, {negatives}": Ranking.model_validate({**ranking, "negatives": negatives})
        for negatives in typing.get_args(Negatives)
    }
    for reduce in ("mean", "hinge_of_mean"):
        found[f"ranking, all, {reduce}"] = Ranking.model_validate({**ranking, "reduce": reduce})
    found["ranking, all, relaxed"] = Ranking.model_validate({**ranking, "relax": "cider"})
    for clamp in ("sum", "each"):
        weighted = {"kind": "weighted_triplet", "weight": 1, "clamp": clamp, **polynomials}
        found[f"weighted_triplet, {clamp}"] = WeightedTriplet.model_validate(weighted)
    found["matching"] = Matching(kind="matching", weight=1)
    found["nt_xent"] = NtXent(kind="nt_xent", weight=1, temperature=0.07)
    return found


def test_loss_time_is_compared_with_a_matrix_product_and_a_softmax():
    torch.manual_seed(0)
    scores, other = torch.rand(SIZE, SIZE, requires_grad=True), torch.rand(SIZE, SIZE, requires_grad=True)
    same = torch.eye(SIZE, dtype=torch.bool)
    within = torch.rand(SIZE, SIZE)

    def yardstick() -> None:
        (scores @ other).softmax(1).square().sum().backward()

    def step(term: Term) -> None:
        batch = BatchScores(scores, torch.arange(SIZE), same, within, lambda: within, lambda: within)
        term.value(batch).backward()

    named = terms()
    works: list[Callable[[], object]] = [yardstick, *(partial(step, term) for term in named.values())]
    base, *taken = best_seconds(works, 15)
    print(f"\nproduct of two {SIZE} x {SIZE} matrices and softmax, forward and backward: {1e3 * base:.2f} ms")
    for name, seconds in zip(named, taken, strict=True):
        print(f"{name:28} {1e3 * seconds:6.2f} ms  {seconds / base:5.2f} x")
