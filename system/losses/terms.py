"""The terms of the training loss. Each sees one thing, the scores of a batch, and gives one number.

A new term is a settings class in the schema and a function here, entered in `TERMS`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from system.losses.batch_scores import BatchScores
from system.losses.negatives import NEGATIVES, hardest
from system.recipe import schema

# B items of a batch: clip i and its caption, or its several captions; s_ij the score of clip i and item j's captions


def gaps(batch: BatchScores, margin: float, relaxed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What the hinges of both directions are of, (B, B) each, a row an item: captions as negatives, clips as negatives.

    At (i, j): m r_ij + s_ij - s_ii, and m r_ij + s_ji - s_ii; r_ij is 1 unless relaxed. Places of one clip are no
    negatives, whatever stands there.
    """
    margins = _relax_of(batch) * margin if relaxed else margin
    matching_scores = batch.scores.diagonal()[:, None]
    return margins + batch.scores - matching_scores, margins + batch.scores.T - matching_scores


def _relax_of(batch: BatchScores) -> torch.Tensor:
    if batch.relax is None:
        raise ValueError("a relaxed ranking loss needs the relax factors of the batch")
    return batch.relax


def ranking(batch: BatchScores, settings: schema.Ranking) -> torch.Tensor:
    """Contrastive ranking loss, both directions, its margin relaxed by CIDEr where asked for; in [0, inf).

    With all negatives, and those at (i, j) with j of another clip:
    sum:           (1/B) sum_i  sum_j [m r_ij + s_ij - s_ii]_+ + sum_j [m r_ij + s_ji - s_ii]_+
    mean:          (1/B) sum_i mean_j [m r_ij + s_ij - s_ii]_+ + mean_j [m r_ij + s_ji - s_ii]_+
    hinge_of_mean: (1/B) sum_i [mean_j (m r_ij + s_ij - s_ii)]_+ + [mean_j (m r_ij + s_ji - s_ii)]_+
    With one caption and one clip an item, the three are one: the sums have one j each. An item without any negative
    adds 0, also to the gradient. r = 1 without relax.

    Sources: `sum`: "Take it easy" (2022), section 4, first and third equations, and "On Metric Learning for Audio-Text
    Cross-Modal Retrieval" (2022), equation 2; equation 3 is `negatives: hardest`. `hinge_of_mean`: "On Negative
    Sampling for Contrastive Audio-Text Retrieval" (2023), equation 4, and `mean`: its public code, never below the
    former. Deviation: pairs of one clip that comes twice in a batch are left out, as in both public codes; the papers
    do not say so, and it can only lower the sums.
    """
    negative = ~batch.same_clip
    both = [(gap, negative) for gap in gaps(batch, settings.margin, settings.relax == "cider")]
    if settings.negatives != "all":
        indices = NEGATIVES[settings.negatives](batch)
        both = [
            (gap.gather(1, at[:, None]), negative.gather(1, at[:, None]))
            for (gap, negative), at in zip(both, indices, strict=True)
        ]
    return torch.stack([_reduced(gap, negative, settings.reduce) for gap, negative in both]).sum(0).mean()


def _reduced(gap: torch.Tensor, negative: torch.Tensor, reduce: str) -> torch.Tensor:
    """(B,) of (B, K) gaps, of which those that are of a negative count."""
    counted = gap if reduce == "hinge_of_mean" else gap.relu()
    total = counted.masked_fill(~negative, 0.0).sum(1)
    return total if reduce == "sum" else (total / negative.sum(1).clamp(min=1)).relu()


def weighted_triplet(batch: BatchScores, settings: schema.WeightedTriplet) -> torch.Tensor:
    """Maximum polynomial loss, in [0, inf): P of the matching pair's score, N of the hardest negative's.

    P(s) = sum_p a_p s^p with `positive` as a_p, N(s) = sum_q b_q s^q with `negative` as b_q; h_i = max_j s_ij and
    h'_i = max_j s_ji over the items j of other clips.
    clamp sum:  (1/B) sum_i [P(s_ii) + N(h_i)]_+ + [P(s_ii) + N(h'_i)]_+
    clamp each: (1/B) sum_i ([P(s_ii)]_+ + [N(h_i)]_+ where h_i + m > s_ii) + ([P(s_ii)]_+ + [N(h'_i)]_+ where ...)
    An item without any negative adds 0, also to the gradient.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equations 4-6; `each` is its public code.
    Deviations: max{N^q} of equation 6 is read as the power of the hardest negative's score (the text says that the max
    selects the hardest pair), not as the largest power, which differs for negatives below 0 only. The public code fails
    on a matching pair of s_ii >= 1 - 1e-5; here such a pair counts like every other ([P]_+ below 4e-6 with the paper's
    numbers): to leave it out would give a collapsed model, all scores 1, a loss of 0 instead of 1.06.
    """
    matching_scores = batch.scores.diagonal()
    positive = _polynomial(settings.positive, matching_scores)
    found = torch.zeros_like(matching_scores)
    for scores, indices in zip((batch.scores, batch.scores.T), hardest(batch), strict=True):
        highest = scores.gather(1, indices[:, None])[:, 0]
        counts = ~batch.same_clip.gather(1, indices[:, None])[:, 0]
        negative = _polynomial(settings.negative, highest)
        if settings.clamp == "sum":
            term = (positive + negative).relu()
        else:
            term = positive.relu() + negative.relu()
            counts &= highest + settings.margin > matching_scores
        found = found + term.masked_fill(~counts, 0.0)
    return found.mean()


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    """The constant's coefficient first."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def matching(batch: BatchScores, settings: schema.Matching) -> torch.Tensor:
    """Matching similarity, L_M = -(1/B) sum_i s_ii, in [-1, 1] for cosines.

    Source: "Take it easy" (2022), section 4, last equation.
    """
    return -batch.scores.diagonal().mean()


def nt_xent(batch: BatchScores, settings: schema.NtXent) -> torch.Tensor:
    """Cross entropy of finding each clip's captions, and each caption's clip, in the batch; in [0, inf).

    -(1/B) sum_i [ln softmax_j(s_ij / t)_i + ln softmax_j(s_ji / t)_i] with directions `sum`, half of it with `mean`.
    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equation 7, which is `sum` with same_clip
    `negatives`; its public code takes the `mean`. Deviation of same_clip `left_out`: other items that show the same
    audio are left out of the denominators, which can only lower it; the public code meant to, but its mask has no
    effect.
    """
    logits = batch.scores / settings.temperature
    targets = torch.arange(len(logits), device=logits.device)
    if settings.same_clip == "masked":
        others = batch.same_clip.clone().fill_diagonal_(False)
        logits = logits.masked_fill(others, -torch.inf)
    both = F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)
    return both / 2 if settings.directions == "mean" else both


TERMS: dict[str, Callable[..., torch.Tensor]] = {
    "ranking": ranking,
    "weighted_triplet": weighted_triplet,
    "matching": matching,
    "nt_xent": nt_xent,
}


def asks_relax(terms: Sequence[schema.Loss]) -> bool:
    return any(isinstance(term, schema.Ranking) and term.relax == "cider" for term in terms)


def total(batch: BatchScores, terms: Sequence[schema.Loss]) -> torch.Tensor:
    """The weighted sum of a stage's terms."""
    return torch.stack([term.weight * TERMS[term.kind](batch, term) for term in terms]).sum()


@torch.no_grad()
def diagnose(batch: BatchScores, terms: Sequence[schema.Loss]) -> dict[str, torch.Tensor]:
    """What the loss sees, by name; items that share a clip are no negatives.

    positive, hardest_negative: mean score of the matching pairs, and of each item's hardest negative in both
    directions, over the items that have one (0 where none has). violations, violations_relaxed: share of all negatives
    of both directions, chosen by the loss or not, whose hinge is above zero, by the first term that has a margin
    (ranking, and weighted_triplet with clamp `each`), and with the relaxed margin where it has one.
    """
    highest = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    highest = torch.cat([highest.amax(0), highest.amax(1)])
    mask = highest.isfinite()
    found = {
        "positive": batch.scores.diagonal().mean(),
        "hardest_negative": highest.where(mask, 0.0).sum() / mask.sum().clamp(min=1),
    }
    margined = next((term for term in terms if _has_margin(term)), None)
    if isinstance(margined, schema.Ranking | schema.WeightedTriplet):
        found["violations"] = _violations(batch, margined.margin, False)
        if asks_relax([margined]):
            found["violations_relaxed"] = _violations(batch, margined.margin, True)
    return found


def _has_margin(term: schema.Loss) -> bool:
    return isinstance(term, schema.Ranking) or (isinstance(term, schema.WeightedTriplet) and term.clamp == "each")


def _violations(batch: BatchScores, margin: float, relaxed: bool) -> torch.Tensor:
    negative = ~batch.same_clip
    above = sum((negative & (gap > 0)).sum() for gap in gaps(batch, margin, relaxed))
    return above / (2 * negative.sum().clamp(min=1))


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """m1, m2: share of clips whose own captions score highest in the row, of captions whose own clip does in the
    column.

    A tie with another clip's pair counts as a miss, so that a collapsed model scores 0. Source: "Take it easy"
    (2022), section 4; deviation: the paper's `s_ii = max_j s_ij` counts ties as hits, ours is lower by the share of
    tied rows."""
    matching_scores = batch.scores.diagonal()
    others = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    m1 = (matching_scores > others.amax(1)).float().mean()
    m2 = (matching_scores > others.amax(0)).float().mean()
    return float(m1), float(m2)
