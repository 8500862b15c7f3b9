"""Diagnostics of a batch: scores of positives and negatives, violations of the margin, accuracies."""

from collections.abc import Sequence
from math import inf

import torch

from system.losses.terms import BatchScores, Ranking, Term, WeightedTriplet, margin_violations


@torch.no_grad()
def diagnose(batch: BatchScores, terms: Sequence[Term]) -> dict[str, torch.Tensor]:
    """Compute means of scores, and the shares of negatives that violate the margin of the first term with hinges.

    Returns:
        positive: of matching pairs. hardest_negative: of the hardest negatives, 0 without any. violations, and
        violations_relaxed for a relaxed margin; negatives that the loss does not choose count too.
    """
    highest = batch.scores.masked_fill(batch.same_clip, -inf)
    highest = torch.cat([highest.amax(0), highest.amax(1)])
    known, negative = highest.isfinite(), ~batch.same_clip
    hardest = highest.where(known, 0.0).sum() / known.sum().clamp(min=1)
    found = {"positive": batch.scores.diagonal().mean(), "hardest_negative": hardest}
    hinges = [term for term in terms if isinstance(term, Ranking | WeightedTriplet)]
    hinges = [term for term in hinges if not isinstance(term, WeightedTriplet) or term.clamp == "each"]
    for relaxed in (False, True)[: 1 + hinges[0].needs_relevance] if hinges else ():
        gaps = margin_violations(batch, hinges[0].margin, relaxed)
        above = torch.stack([(negative & (gap > 0)).sum() for gap in gaps]).sum()
        found["violations_relaxed" if relaxed else "violations"] = above / (2 * negative.sum().clamp(min=1))
    return found


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """Return the shares of clips (m1) and of captions (m2) whose match has the highest score of the batch.

    Source: "Take it easy" (2022), section 4. Deviation: a tie counts as a miss; the paper's s_ii = max_j s_ij counts
    it as a hit, so that a model with equal scores would have the accuracy 1.
    """
    matching, others = batch.scores.diagonal(), batch.scores.masked_fill(batch.same_clip, -inf)
    return tuple(float((matching > others.amax(dim)).float().mean()) for dim in (1, 0))  # type: ignore[return-value]
