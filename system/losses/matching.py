"""Matching loss.

Matching similarity: minus the mean score of the matching pairs.
"""

from typing import Literal

from system.losses.base import BatchScores, Tensor, Term


class Matching(Term):
    """Matching similarity, L_M = -(1/B) sum_i s_ii, in [-1, 1] for cosines.

    B is the number of items of the batch, and s_ii the score of clip i with its own captions.
    Source: "Take it easy" (2022), section 4, last equation.
    """

    kind: Literal["matching"]

    def value(self, batch: BatchScores) -> Tensor:
        """Return the loss of a batch, a tensor that can be differentiated."""
        return -batch.scores.diagonal().mean()
