"""Score with learned boundaries.

The score of moments with learned weights of beginning and ending a moment, by frames and sentence.
"""

import torch
import torch.nn.functional as F
from torch import nn

from system.models.moment_score import FrameWeights, MomentScore

# B clips, T frames, D embedding

STEPS = 5.0  # factor of the cosines of changes, in addition to the trained one


class BoundaryScore(MomentScore):
    """A score of moments whose transitions depend on the frames and the sentence; see score.BoundaryMoments.

    rate: Trained factor r of the cosines of changes. changes: Linear layer W from the change between two frames, and
    their sum, to a vector of entering and one of leaving.
    """

    frame_share = 0.5

    def __init__(self, dim: int) -> None:
        """dim: Size of embeddings, D."""
        super().__init__()
        self.rate, self.changes = nn.Parameter(torch.tensor(1.0)), nn.Linear(2 * dim, 2 * dim)

    def weights(self, cosines: torch.Tensor) -> FrameWeights:
        """Convert cosines (B, 3, T) of frames, of entering and of leaving to the weights of labellings."""
        frames, entering, leaving = cosines.unbind(-2)
        steps = STEPS * self.rate
        return FrameWeights(self.affine(frames), self.enter + steps * entering, self.leave + steps * leaving)

    def _compared(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the unit vectors (B, 3, T, D) of frames, of entering and of leaving; a frame of zeros is before all.

        frames: (B, T, D).
        """
        earlier = F.pad(frames, (0, 0, 1, 0))[:, :-1]
        entering, leaving = self.changes(torch.cat((frames - earlier, frames + earlier), -1)).chunk(2, -1)
        return self._scaled(torch.stack((frames, entering, leaving), 1))
