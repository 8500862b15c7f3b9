"""Clips in segments of one length, and what these come to: for networks that hear a fixed time at once."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from system.models.batch import Series
from system.networks.augment import random_parts

# B clips, N samples, S segments of all clips, D values


class Segments(NamedTuple):
    """waves: (S, size), filled with silence. lengths: (S,) samples that are the clip's. clips: (S,) which clip each is
    of, in order."""

    waves: torch.Tensor
    lengths: torch.Tensor
    clips: torch.Tensor


def segmented(waves: Series, size: int, hop: int) -> Segments:
    """Segments of the clips (B, N).

    One begins every `hop` samples as long as there is something new to hear; the last is filled with silence. A clip of
    at most `size` samples is one.
    """
    counts = 1 + ((waves.lengths - size).clamp(min=0) + hop - 1) // hop
    clips = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=int(counts.sum()))
    number = torch.arange(len(clips), device=counts.device) - (counts.cumsum(0) - counts)[clips]
    samples = (number * hop)[:, None] + torch.arange(size, device=counts.device)
    values = waves.values[..., 0]
    values = F.pad(values, (0, max(0, (int(counts.max()) - 1) * hop + size - values.shape[1])))
    silent = samples >= waves.lengths[clips][:, None]
    return Segments(values[clips[:, None], samples].masked_fill(silent, 0), (~silent).sum(1), clips)


def cut(waves: Series, max_samples: int) -> Series:
    """With a random part of every longer clip, for training."""
    values, lengths = random_parts(waves.values[..., 0], waves.lengths, max_samples)
    return Series(values[..., None], lengths)


class SegmentMean(nn.Module):
    """(S, D) of segments -> (B, D), the mean of each clip's.

    Source: the DCASE 2025 baseline and SALSA (2024), which count by the clip's duration as `segmented` does.
    """

    def forward(self, values: torch.Tensor, clips: torch.Tensor, size: int) -> torch.Tensor:
        return averaged(values, torch.ones_like(values[:, :1]), clips, size)


class SegmentAttention(nn.Module):
    """(S, D) of segments -> (B, D), their mean weighted by the softmax of a linear layer over each clip's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Linear(dim, 1)

    def forward(self, values: torch.Tensor, clips: torch.Tensor, size: int) -> torch.Tensor:
        scores = self.weight(values).float()
        highest = scores.new_full((size, 1), -torch.inf).scatter_reduce(0, clips[:, None], scores.detach(), "amax")
        return averaged(values, (scores - highest[clips]).exp(), clips, size)


def averaged(values: torch.Tensor, weights: torch.Tensor, clips: torch.Tensor, size: int) -> torch.Tensor:
    """(S, D), weights (S, 1) above 0 -> (B, D) in float32 or wider."""
    values = values if values.dtype == torch.float64 else values.float()
    total = values.new_zeros(size, 1).index_add(0, clips, weights.to(values.dtype))
    return values.new_zeros(size, values.shape[1]).index_add(0, clips, values * weights) / total
