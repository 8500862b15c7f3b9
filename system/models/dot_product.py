"""Scores by dot products of embeddings."""

import torch
from torch import nn

from system.models.embeddings import Embedded, Embeddings
from system.models.moment_score import FrameWeights, MomentScore

# B clips, N captions, T frames, D embedding


class DotProduct(nn.Module):
    """Clips (B, D) and captions (N, D) -> (B, N) logits: scale x dot product + offset.

    The published scale and offset are set by set_scale_and_offset.
    """

    def __init__(self) -> None:
        """Create the trained parameters: scale, which starts at 1, and offset, which starts at 0."""
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))

    def set_scale_and_offset(self, scale: float, offset: float) -> None:
        """Set the score's scale and offset to published numbers."""
        _set_number(self.scale, scale)
        _set_number(self.offset, offset)

    def forward(self, clips: Embeddings, captions: Embedded) -> torch.Tensor:
        """Score clips against captions: (B, N) logits."""
        return self.scale * (clips.values @ captions.values.T) + self.offset


class FrameDotProducts(MomentScore):
    """Frames (B, T, D) and captions (N, D) -> (B, N), the highest logit of a clip's frames.

    A frame's logit is scale x (dot product of frame and caption) + offset. When windows are found, the logits are the
    scores of frames, as the scaled cosines are in MomentScore.
    """

    unit_length = False
    published_threshold = 0.3  # github.com/facebookresearch/perception_models, apps/pe

    def set_scale_and_offset(self, scale: float, offset: float) -> None:
        """Set the score's scale and offset to published numbers."""
        _set_number(self.scale, scale)
        _set_number(self.offset, offset)

    def _clip_scores_of_weights(self, weights: FrameWeights, lengths: torch.Tensor) -> torch.Tensor:
        """Return the clip scores (R,) of R pairs of clip and caption: the highest frame score of each pair."""
        padding = torch.arange(weights.scores.shape[1], device=lengths.device) >= lengths[:, None]
        highest: torch.Tensor = weights.scores.masked_fill(padding, -torch.inf).amax(1)
        return highest


def _set_number(parameter: nn.Parameter, value: float) -> None:
    """Set the value of a parameter that consists of one number."""
    with torch.no_grad():
        parameter.fill_(value)
