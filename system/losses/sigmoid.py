"""Sigmoid loss.

Sigmoid loss of SigLIP: every pair of a clip and a caption is classified by itself as matching or not.
"""

import math
from typing import Literal

from pydantic import Field

from system.losses.base import BatchScores, Tensor, Term

LOG_SCALE, BIAS = "sigmoid_log_scale", "sigmoid_bias"  # names of the learned parameters


class Sigmoid(Term):
    """Binary cross entropy of all pairs of a batch, in [0, inf): -(1/B) sum_ij ln sigmoid(z_ij (a s_ij + b)). B is the
    number of items. s_ij is the score of clip i and caption j; z_ij is 1 for items of the same audio, else -1.

    The scale a = exp(a') and the bias b are trained with the model; several loss terms of this kind share them. A stage
    that starts from an earlier stage of its run continues with the a' and b of that stage. With `same_clip: masked`,
    other items with the same audio are left out of the sum.
    Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (2023), section 3.2 and algorithm 1. There a
    begins at 10 and b at -10, and no image is repeated in a batch. The paper uses cosines for s_ij; here any score of a
    recipe is possible.
    """

    kind: Literal["sigmoid"]
    scale: float = Field(10.0, gt=0)  # start value of a
    bias: float = -10.0  # start value of b
    same_clip: Literal["positives", "masked"] = "masked"  # other items of the batch with the same audio

    @property
    def learned(self) -> dict[str, float]:
        """Dict from the name of a trained parameter of the loss to its start value."""
        return {LOG_SCALE: math.log(self.scale), BIAS: self.bias}

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        import torch
        import torch.nn.functional as F

        logits = batch.scores * batch.learned[LOG_SCALE].exp() + batch.learned[BIAS]
        signs = batch.same_clip.to(logits.dtype) * 2 - 1
        losses = -F.logsigmoid(signs * logits)
        if self.same_clip == "masked":
            others = batch.same_clip & ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)
            losses = losses.masked_fill(others, 0.0)
        return losses.sum() / len(logits)
