"""Sum of the loss terms, and diagnostics.

The training loss of a batch is the sum of a stage's terms. Diagnostics are mean scores, and shares of a batch: of pairs
that violate the margin, and of captions and clips whose match has the highest score.
"""

from collections.abc import Sequence

import torch

from system.losses.base import BatchScores, Term
from system.losses.ranking import margin_violations

# B items of a batch, each a clip with one or several captions; s_ij the score of clip i and item j's captions


def need_relevance(terms: Sequence[Term]) -> bool:
    """Return whether any loss uses relevance (`relax: cider`), which reduces its margins for similar captions."""
    return any(term.needs_relevance for term in terms)


def total_loss(batch: BatchScores, terms: Sequence[Term]) -> torch.Tensor:
    """Compute the training loss of a batch: the weighted sum of the losses in `terms`."""
    return torch.stack([term.weight * term.value(batch) for term in terms]).sum()


@torch.no_grad()
def diagnose(batch: BatchScores, terms: Sequence[Term]) -> dict[str, torch.Tensor]:
    """Return a dict from name to diagnostic of a batch: scores of positives and negatives, violations of the margin.

    Items of the same clip are no negatives of each other.
    positive: Mean score of the matching pairs.
    hardest_negative: Mean score of the hardest negatives of all items in both directions; 0 without any negative.
    violations: Share of all negatives in both directions that violate the margin of the first loss term with a margin
    (ranking, or weighted_triplet with clamp `each`). Negatives that the loss does not choose count too.
    violations_relaxed: This share for the relaxed margin, if the loss term has one.
    """
    highest = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    highest = torch.cat([highest.amax(0), highest.amax(1)])
    mask = highest.isfinite()
    shares = {
        "positive": batch.scores.diagonal().mean(),
        "hardest_negative": highest.where(mask, 0.0).sum() / mask.sum().clamp(min=1),
    }
    if hinges := [(term.hinge_margin, term.needs_relevance) for term in terms if term.hinge_margin is not None]:
        margin, is_relaxed = hinges[0]
        negative = ~batch.same_clip
        for name, relaxed in (("violations", False), ("violations_relaxed", True))[: 1 + is_relaxed]:
            above = torch.stack(
                [(negative & (gap > 0)).sum() for gap in margin_violations(batch, margin, relaxed)]
            ).sum()
            shares[name] = above / (2 * negative.sum().clamp(min=1))
    return shares


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """Return the shares of clips (m1) and of captions (m2) whose matching partner has the highest score in the batch.

    A tie with another pair counts as a miss. A model that gives all pairs the same score thus has the accuracy 0.
    Source: "Take it easy" (2022), section 4. Deviation: the paper's `s_ii = max_j s_ij` counts ties as hits. The
    accuracies here are lower by the share of rows with ties.
    """
    matching_scores = batch.scores.diagonal()
    others = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    m1 = (matching_scores > others.amax(1)).float().mean()
    m2 = (matching_scores > others.amax(0)).float().mean()
    return float(m1), float(m2)
