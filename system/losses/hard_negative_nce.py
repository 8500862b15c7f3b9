"""Hard-negative NCE.

Contrastive loss that weights each negative by its score, so that hard negatives count more.
"""

import math
from typing import Literal

from pydantic import Field

from system.losses.base import BatchScores, Temperature, Tensor, Term


class HardNegativeNce(Term):
    """Cross entropy with weighted negatives, the mean over both directions.

    -(1/B) sum_i ln(e^{l_ii} / (alpha e^{l_ii} + sum_j w_ij e^{l_ij})). The logits are l_ij = s_ij / t for
    B items, with the score s_ij of clip i and the captions of item j, and the temperature t. The weights are
    w_ij = n_i e^{beta l_ij} / sum_k e^{beta l_ik}; both sums are over the n_i items of other clips. With alpha = 1 and
    beta = 0, the loss equals `nt_xent` with same_clip `masked` and directions `mean`. The gradient of the weights is
    computed too, as in the paper's equation. An item without negatives adds ln alpha, which has no gradient. With alpha
    below 1, the loss may be negative, but not below ln alpha.
    Source: Radenovic et al., "Filtering, Distillation, and Hard Negatives for Vision-Language Pre-Training" (2023),
    equations 4 to 6. The paper uses alpha 1 and, for its largest models, beta 0.25. The weights are those of Robinson
    et al., "Contrastive Learning with Hard Negative Samples" (2021). Deviation: items with the same audio are no
    negatives.
    """

    kind: Literal["hard_negative_nce"]
    temperature: Temperature | Literal["learned"]  # scores are divided by it; learned: the model's
    alpha: float = Field(1.0, gt=0, le=1)  # factor of the matching pair in the denominator
    beta: float = Field(ge=0, le=10)  # 0: all negatives count equally

    @property
    def learned_temperature(self) -> bool:
        """Whether the loss uses the temperature that is trained with the model."""
        return self.temperature == "learned"

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        logits = batch.scores / batch.divisor(self.temperature)
        return (
            self._loss_of_direction(logits, batch.same_clip) + self._loss_of_direction(logits.T, batch.same_clip)
        ) / 2

    def _loss_of_direction(self, logits: Tensor, same_clip: Tensor) -> Tensor:
        """Return the mean loss of classifying row i of `logits` as column i. same_clip: Pairs of one clip."""
        import torch

        matching = logits.diagonal()
        counts = (~same_clip).sum(1)
        lowest = torch.finfo(logits.dtype).min / 4  # of no weight, and with finite gradients for rows without negatives
        weights = (self.beta * logits).masked_fill(same_clip, lowest)
        weighted = (weights + logits).masked_fill(same_clip, lowest)
        log_counts = counts.clamp(min=1).to(logits.dtype).log()
        negatives = log_counts + weighted.logsumexp(1) - weights.logsumexp(1)
        negatives = negatives.masked_fill(counts == 0, lowest)
        return (torch.logaddexp(matching + math.log(self.alpha), negatives) - matching).mean()
