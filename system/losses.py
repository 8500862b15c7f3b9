"""The terms of the training loss. Each sees one thing, the scores of a batch, and gives one number.

A new term is a settings class in the schema and a function here, entered in `TERMS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from system import schema

# B items of a batch: clip i and its caption, or its several captions; N captions of the batch in all


@dataclass(frozen=True)
class BatchScores:
    """All that a term may need of a batch.

    each: (B, N), the score of every clip and every single caption, higher is better, float32.
    row_of: (N,) the item each caption belongs to. captions: (N,) their texts.
    same_clip: (B, B) bool, items i and j show the same audio (true on the diagonal): such pairs are never negatives.
    clip_scores, each_caption_scores: give the (B, B) and (N, N) within-modality scores when called.
    """

    each: torch.Tensor
    row_of: torch.Tensor
    captions: Sequence[str]
    same_clip: torch.Tensor
    clip_scores: Callable[[], torch.Tensor]
    each_caption_scores: Callable[[], torch.Tensor]

    @cached_property
    def average(self) -> torch.Tensor:
        """(N, B) weights that average an item's captions: 1 / n for its own n captions, 0 elsewhere."""
        own = nn.functional.one_hot(self.row_of, len(self.each)).to(self.each.dtype)
        return own / own.sum(0)

    @cached_property
    def scores(self) -> torch.Tensor:
        """(B, B), s_ij of clip i and item j, the mean over j's captions; the diagonal holds the matching pairs.

        Source: "Take it easy" (2022), section 4, second equation.
        """
        return self.each @ self.average

    @cached_property
    def caption_scores(self) -> torch.Tensor:
        """(B, B) scores between captions, the mean over all pairs of item i's and item j's."""
        return self.average.T @ self.each_caption_scores() @ self.average


def ranking(batch: BatchScores, settings: schema.Ranking) -> torch.Tensor:
    """Contrastive ranking loss over all negatives, both directions.

    (1/B) sum_{i != j} [m + s_ij - s_ii]_+ + [m + s_ji - s_ii]_+, in [0, inf).
    Source: "Take it easy" (2022), section 4, first equation. Deviation: pairs of one clip that occurs twice in the
    batch are left out of the sum (the paper does not say), which can only lower it.
    """
    matching_scores = batch.scores.diagonal()
    captions_as_negatives = settings.margin + batch.scores - matching_scores[:, None]  # row i: s_ij against s_ii
    clips_as_negatives = settings.margin + batch.scores - matching_scores[None, :]  # column i: s_ji against s_ii
    hinges = captions_as_negatives.relu() + clips_as_negatives.relu()
    return hinges.masked_fill(batch.same_clip, 0.0).sum() / len(batch.scores)


def matching(batch: BatchScores, settings: schema.Matching) -> torch.Tensor:
    """Matching similarity, L_M = -(1/B) sum_i s_ii, in [-1, 1] for cosines.

    Source: "Take it easy" (2022), section 4, last equation.
    """
    return -batch.scores.diagonal().mean()


TERMS: dict[str, Callable[..., torch.Tensor]] = {"ranking": ranking, "matching": matching}


def total(batch: BatchScores, terms: Sequence[schema.Loss]) -> torch.Tensor:
    """The weighted sum of a stage's terms."""
    return torch.stack([term.weight * TERMS[term.kind](batch, term) for term in terms]).sum()


def accuracies(batch: BatchScores) -> tuple[float, float]:
    """m1, m2: share of clips whose own captions score highest in the row, of captions whose own clip does in the
    column.

    A tie with another clip's pair counts as a miss, so that a collapsed model scores 0. Source: "Take it easy"
    (2022), section 4; deviation: the paper's `s_ii = max_j s_ij` counts ties as hits, ours is lower by the share of
    tied rows."""
    own = batch.scores.diagonal()
    others = batch.scores.masked_fill(batch.same_clip, -torch.inf)
    m1 = (own > others.amax(1)).float().mean()
    m2 = (own > others.amax(0)).float().mean()
    return float(m1), float(m2)
