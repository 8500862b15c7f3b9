"""The cross-entropy of every frame: whether it is in a true moment."""

from typing import ClassVar, Literal

from system.losses.base import BatchScores, Tensor, Term


class FrameCrossEntropy(Term):
    """Binary cross-entropy of the frames' scores, the mean over a recording's frames, then over the batch: the
    likelihood of `two_state` per frame where nothing is said of transitions. It trains no transition.
    """

    kind: Literal["frame_cross_entropy"]

    of_moments: ClassVar[bool] = True

    def value(self, batch: BatchScores) -> Tensor:
        import torch
        import torch.nn.functional as F

        scores, lengths, labels, _, _ = batch.of_frames()
        each = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        mask = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
        return (each.masked_fill(~mask, 0.0).sum(1) / lengths).mean()
