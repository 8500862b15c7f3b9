"""Weighted triplet loss.

Maximum polynomial loss: polynomials of the scores of the matching pair and of the hardest negative.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from system.losses.base import BatchScores, Tensor, Term
from system.losses.negatives import hardest


class WeightedTriplet(Term):
    """Maximum polynomial loss, in [0, inf): polynomials P of a pair's score and N of its hardest negative's score.

    P(s) = sum_p a_p s^p and N(s) = sum_q b_q s^q. The settings `positive` and `negative` are the coefficients a_p and
    b_q, beginning with the constant. s_ij is the score of clip i and the captions of item j. The hardest negatives are
    h_i = max_j s_ij and h'_i = max_j s_ji, over items j of other clips. [x]_+ is max(x, 0).
    clamp sum, as in the paper: (1/B) sum_i [P(s_ii) + N(h_i)]_+ + [P(s_ii) + N(h'_i)]_+
    clamp each, as in the public code, only for negatives that violate the margin m:
    (1/B) sum_i ([P(s_ii)]_+ + [N(h_i)]_+ where h_i + m > s_ii) + ([P(s_ii)]_+ + [N(h'_i)]_+ where h'_i + m > s_ii)
    An item without any negative adds 0, also to the gradient.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), equations 4-6; `each` is its public code.
    Deviations: max{N^q} of equation 6 is computed as the power of the hardest negative's score, since the text says
    that the max selects the hardest pair. The maximum of the powers would only differ for negatives below 0. The public
    code fails on a matching pair with s_ii >= 1 - 1e-5. Here such a pair counts like all other pairs; its [P]_+ is
    below 4e-6 with the paper's numbers. If such pairs were left out, a model that gives every pair the score 1 would
    have a loss of 0 instead of 1.06.
    """

    kind: Literal["weighted_triplet"]
    margin: float = Field(ge=0, le=2)  # read by clamp `each`
    positive: Annotated[list[float], Field(min_length=1)]  # coefficients of P, starting with that of s^0
    negative: Annotated[list[float], Field(min_length=1)]  # coefficients of N, starting with that of s^0
    clamp: Literal["sum", "each"]  # clamp the sum of P and N at 0, or each of them

    @property
    def idle_setting(self) -> str | None:
        """Message if `margin` is set but has no effect, since clamp is `sum`; else None."""
        unused = self.clamp == "sum" and self.margin
        return "clamp `sum` does not use `margin`; set margin to 0, or clamp to `each`" if unused else None

    @property
    def hinge_margin(self) -> float | None:
        """Margin that decides which negatives count; None if `clamp` is `sum`, since the loss then has no margin."""
        return self.margin if self.clamp == "each" else None

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        matching_scores = batch.scores.diagonal()
        positive = _polynomial(self.positive, matching_scores)
        total = matching_scores.new_zeros(len(matching_scores))
        for scores, indices in zip((batch.scores, batch.scores.T), hardest(batch), strict=True):
            highest = scores.gather(1, indices[:, None])[:, 0]
            counts = ~batch.same_clip.gather(1, indices[:, None])[:, 0]
            negative = _polynomial(self.negative, highest)
            if self.clamp == "sum":
                term = (positive + negative).relu()
            else:
                term = positive.relu() + negative.relu()
                counts &= highest + self.margin > matching_scores
            total = total + term.masked_fill(~counts, 0.0)
        return total.mean()


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return the values of a polynomial at the numbers `x`. The first coefficient is the constant."""
    value = x.new_zeros(len(x))
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value
