"""Score with learned boundaries.

The score of moments with learned weights for a moment's start and end, which depend on frames and sentence.
"""

import torch
import torch.nn.functional as F
from torch import nn

from system.models.moment_score import FrameWeights, MomentScore

# B clips, T frames, D embedding

STEPS = 5.0  # factor of the cosines of changes, in addition to the trained one


class BoundaryScore(MomentScore):
    """A score of moments whose weights of moment starts and ends depend on the frames and the sentence.

    The weight of a start is `enter` + 5 r cosine(u, sentence), and the weight of an end is `leave` + 5 r cosine(v,
    sentence). rate: Trained factor r. changes: Trained linear layer. Its input is the difference and the sum of two
    consecutive frames; its output is the vectors u and v.
    """

    frame_share = 0.5

    def __init__(self, dim: int) -> None:
        """Create the trained parameters. dim: Number of values per embedding, D."""
        super().__init__()
        self.rate, self.changes = nn.Parameter(torch.tensor(1.0)), nn.Linear(2 * dim, 2 * dim)

    def weights(self, cosines: torch.Tensor) -> FrameWeights:
        """Compute the score of each frame, the weight of a moment's start there, and the weight of a moment's end.

        cosines: (B, 3, T), three per frame: the cosines of the sentence with the frame, with u and with v.
        """
        frames, entering, leaving = cosines.unbind(-2)
        steps = STEPS * self.rate
        return FrameWeights(self.scores_of_cosines(frames), self.enter + steps * entering, self.leave + steps * leaving)

    def _vectors_to_compare(self, frames: torch.Tensor) -> torch.Tensor:
        """Return three unit vectors per frame, (B, 3, T, D): of the frame, of a moment's start, of a moment's end.

        The sentence is compared with all three. The start is at the frame, the end before the frame.
        frames: (B, T, D). The frame before the first frame is taken as zeros.
        """
        earlier = F.pad(frames, (0, 0, 1, 0))[:, :-1]
        entering, leaving = self.changes(torch.cat((frames - earlier, frames + earlier), -1)).chunk(2, -1)
        return self._to_unit_length(torch.stack((frames, entering, leaving), 1))
