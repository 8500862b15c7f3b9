"""Likelihood of the true moments.

The likelihood of the true labels of all frames: `moment` for frames in a true moment, and `none` for other frames.
"""

from typing import ClassVar, Literal

from system.losses.base import BatchScores, Tensor, Term


class TwoState(Term):
    """Negative log likelihood of the true labels of a recording's frames, as a mean over the batch. With `per_frame`,
    the value of a recording is divided by its number of frames, so that long recordings do not weigh more.

    Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states.
    """

    kind: Literal["two_state"]
    per_frame: bool  # divided by the recording's frames

    of_moments: ClassVar[bool] = True

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        from system.moments.two_state import log_likelihood

        scores, lengths, labels, enter, leave = batch.require_frames()
        found = -log_likelihood(scores, lengths, labels, enter, leave)
        return (found / lengths if self.per_frame else found).mean()
