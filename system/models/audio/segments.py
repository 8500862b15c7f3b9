"""Cut clips into segments, pool their vectors.

This is for networks with inputs of a fixed length.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from system.compute.device import on_device
from system.models.batch import Series
from system.networks.augment import crop_longer_waves

# B clips, N samples, S segments of all clips, D values


class Segments(NamedTuple):
    """Segments of clips.

    waves: (S, size), padded with silence. lengths: (S,) numbers of samples without padding. clips: (S,) index of each
    segment's clip, ascending.
    """

    waves: torch.Tensor
    lengths: torch.Tensor
    clips: torch.Tensor


def cut_into_segments(waves: Series, size: int, hop: int) -> Segments:
    """Cut padded clips into segments of `size` samples; return the segments of all clips.

    waves: (B, N) samples.
    A segment begins every `hop` samples, until all samples of the clip are in a segment. The last segment is
    padded with silence. A clip of at most `size` samples has one segment.
    """
    values, device = waves.values[..., 0], waves.values.device
    counts = 1 + ((waves.lengths - size).clamp(min=0) + hop - 1) // hop
    clips = torch.arange(len(counts)).repeat_interleave(counts)
    number = torch.arange(len(clips)) - (counts.cumsum(0) - counts)[clips]
    ends = on_device(waves.lengths[clips][:, None], device)
    samples = on_device((number * hop)[:, None], device) + torch.arange(size, device=device)
    values = F.pad(values, (0, max(0, (int(counts.max()) - 1) * hop + size - values.shape[1])))
    silent, clips = samples >= ends, on_device(clips, device)
    return Segments(values[clips[:, None], samples].masked_fill(silent, 0), (~silent).sum(1), clips)


def crop_long_clips(waves: Series, max_samples: int) -> Series:
    """Cut a random part of `max_samples` samples out of every longer clip, for training."""
    values, lengths = crop_longer_waves(waves.values[..., 0], waves.lengths, max_samples)
    return Series(values[..., None], lengths)


class SegmentMean(nn.Module):
    """Vectors (S, D) of segments -> (B, D), the mean per clip; with `by_length`, weighted by samples without padding.

    Without `by_length`, all segments have equal weights. Source of equal weights: the DCASE 2025 baseline and SALSA
    (2024).
    """

    def __init__(self, by_length: bool = False) -> None:
        """Store `by_length`: whether segments are weighted by their number of samples without padding."""
        super().__init__()
        self.by_length = by_length

    def forward(self, values: torch.Tensor, clips: torch.Tensor, size: int, lengths: torch.Tensor) -> torch.Tensor:
        """Return the mean vector of each clip's segments, (B, D); with `by_length`, weighted by their lengths.

        values: (S, D) vectors of the segments. clips: (S,) index of each segment's clip. size: Number of clips, B.
        lengths: (S,) numbers of samples without padding.
        """
        weights = lengths[:, None].float() / lengths.max() if self.by_length else torch.ones_like(values[:, :1])
        return average_per_clip(values, weights, clips, size)


class SegmentAttention(nn.Module):
    """Vectors (S, D) of segments -> (B, D), the mean per clip, weighted by the softmax of a linear layer."""

    def __init__(self, dim: int) -> None:
        """Build the linear layer that weights segments. dim: Number of values of a segment's vector."""
        super().__init__()
        self.weight = nn.Linear(dim, 1)

    def forward(self, values: torch.Tensor, clips: torch.Tensor, size: int, lengths: torch.Tensor) -> torch.Tensor:
        """Return the mean vector of each clip's segments, (B, D), weighted by attention.

        values: (S, D) vectors of the segments. clips: (S,) index of each segment's clip. size: Number of clips, B.
        lengths: Not used.
        """
        scores = self.weight(values).float()
        highest = scores.new_full((size, 1), -torch.inf).scatter_reduce(0, clips[:, None], scores.detach(), "amax")
        return average_per_clip(values, (scores - highest[clips]).exp(), clips, size)


def average_per_clip(values: torch.Tensor, weights: torch.Tensor, clips: torch.Tensor, size: int) -> torch.Tensor:
    """Compute the weighted mean of each clip's segments. clips: Clip of each segment. size: Number of clips.

    values (S, D) of S segments -> (B, D) of B clips, in float32 or wider. weights: (S, 1) above 0.
    """
    values = values if values.dtype == torch.float64 else values.float()
    total = values.new_zeros(size, 1).index_add(0, clips, weights.to(values.dtype))
    return values.new_zeros(size, values.shape[1]).index_add(0, clips, values * weights) / total
