"""Contrastive ranking loss.

Contrastive ranking loss, with a margin that may be relaxed by CIDEr-D. `margin_violations` applies the margin.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from system.losses.base import BatchScores, Tensor, Term
from system.losses.negatives import NEGATIVES

if TYPE_CHECKING:
    Negatives = str
else:
    Negatives = Literal["all", *NEGATIVES]


class Ranking(Term):
    """Contrastive ranking loss, both directions; in [0, inf). `relax: cider` lowers the margin between clips with
    similar captions, by the recipe's `relevance`.

    negatives: all of the batch, or one caption and one clip per item, chosen by a function of negatives.py.
    reduce, for all negatives, which are the pairs (i, j) with j of another clip:
    sum:           (1/B) sum_i  sum_j [m r_ij + s_ij - s_ii]_+ + sum_j [m r_ij + s_ji - s_ii]_+
    mean:          (1/B) sum_i mean_j [m r_ij + s_ij - s_ii]_+ + mean_j [m r_ij + s_ji - s_ii]_+
    hinge_of_mean: (1/B) sum_i [mean_j (m r_ij + s_ij - s_ii)]_+ + [mean_j (m r_ij + s_ji - s_ii)]_+
    Here s_ij is the score of clip i and the captions of item j, m is the margin, and [x]_+ is max(x, 0). r_ij is the
    factor on the margin of the items i and j, and 1 without relax.
    With one caption and one clip per item, all three are equal, since the sums have one j each. An item without any
    negative adds 0, also to the gradient.

    Sources: `sum`: "Take it easy" (2022), section 4, first and third equations, and "On Metric Learning for Audio-Text
    Cross-Modal Retrieval" (2022), equation 2; equation 3 is `negatives: hardest`. `hinge_of_mean`: "On Negative
    Sampling for Contrastive Audio-Text Retrieval" (2023), equation 4. `mean`: the public code of the same paper; its
    value is never below that of `hinge_of_mean`. Deviation: if a clip is in a batch twice, its pairs are left out, as
    in both public codes. The papers do not mention this; it can only lower the sums.
    """

    kind: Literal["ranking"]
    margin: float = Field(ge=0, le=2)  # wanted difference between the scores of a matching pair and of others
    relax: Literal["none", "cider"]  # cider: lower margins for captions that resemble each other
    negatives: Negatives = "all"
    reduce: Literal["sum", "mean", "hinge_of_mean"] = "sum"  # of the hinges of a batch

    @property
    def needs_relevance(self) -> bool:
        """Whether the loss uses relevance: `relax: cider` multiplies its margins by factors from CIDEr-D."""
        return self.relax == "cider"

    @property
    def idle_setting(self) -> str | None:
        """Message if the setting `relax` or `reduce` has no effect because of `margin` or `negatives`; else None."""
        if self.relax == "cider" and not self.margin:
            return "`relax: cider` has no effect, since the margin is 0; set relax: none, or a margin above 0"
        if self.negatives != "all" and self.reduce != "sum":
            return (
                f"`reduce: {self.reduce}` needs several negatives per item, but `negatives: {self.negatives}` chooses "
                "one; remove reduce"
            )
        return None

    @property
    def hinge_margin(self) -> float:
        """Margin of the loss's hinges."""
        return self.margin

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        import torch

        negative = ~batch.same_clip
        both = [(gap, negative) for gap in margin_violations(batch, self.margin, self.needs_relevance)]
        if self.negatives != "all":
            indices = NEGATIVES[self.negatives](batch)
            both = [
                (gap.gather(1, at[:, None]), negative.gather(1, at[:, None]))
                for (gap, negative), at in zip(both, indices, strict=True)
            ]
        return torch.stack([_reduce_per_item(gap, negative, self.reduce) for gap, negative in both]).sum(0).mean()


def margin_violations(batch: BatchScores, margin: float, relaxed: bool) -> tuple[Tensor, Tensor]:
    """Return two tables (B, B): by how much negative captions, and negative clips, violate the margin.

    The loss applies its hinges to these tables. m is the margin, and s_ij the score of clip i and the captions of item
    j. For captions, the value at (i, j) is m r_ij + s_ij - s_ii. For clips, it is m r_ij + s_ji - s_ii. r_ij is the
    margin factor if `relaxed`, else 1. Values for two items of the same clip have no meaning, since such items are not
    negatives.
    """
    if relaxed and batch.margin_factors is None:
        raise ValueError(
            "relax: cider needs margin factors, which this batch does not have; add the section relevance to the recipe"
        )
    margins = batch.margin_factors * margin if relaxed and batch.margin_factors is not None else margin
    matching_scores = batch.scores.diagonal()[:, None]
    return margins + batch.scores - matching_scores, margins + batch.scores.T - matching_scores


def _reduce_per_item(gap: Tensor, negative: Tensor, reduce: str) -> Tensor:
    """Reduce each item's margin violations (`gap`) to one value by the rule `reduce`.

    negative: (B, K) bool; true for values that count. reduce: `sum` or `mean` of the values, with values below 0 taken
    as 0; or `hinge_of_mean`, the mean of all values, but at least 0.
    """
    counted = gap if reduce == "hinge_of_mean" else gap.relu()
    total = counted.masked_fill(~negative, 0.0).sum(1)
    return total if reduce == "sum" else (total / negative.sum(1).clamp(min=1)).relu()
