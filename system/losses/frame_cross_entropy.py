"""Cross-entropy of frames.

The cross-entropy of frames, with labels that tell whether a frame is in a true moment.
"""

from typing import ClassVar, Literal

from system.losses.base import BatchScores, Tensor, Term


class FrameCrossEntropy(Term):
    """Binary cross-entropy of the frames' scores: the mean over a recording's frames, then over the batch. This loss
    neither uses nor trains the model's weights of moment starts and ends. If these weights are 0, it equals the loss
    `two_state` (likelihood of the true moments) with `per_frame`, which divides by the number of frames.
    """

    kind: Literal["frame_cross_entropy"]

    of_moments: ClassVar[bool] = True

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        import torch
        import torch.nn.functional as F

        scores, lengths, labels, _, _ = batch.require_frames()
        losses = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        mask = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
        return (losses.masked_fill(~mask, 0.0).sum(1) / lengths).mean()
