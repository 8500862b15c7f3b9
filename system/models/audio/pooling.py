"""Frames of clips to one vector each: pooled over what is real, then two linear layers."""

from typing import Literal

import torch
from torch import nn

from system.models.similarity import length_mask

# B clips, T frames, D values in a frame

Pooling = Literal["mean", "max", "max_mean"]


def pooled_over_time(values: torch.Tensor, lengths: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """values (B, T, D), real lengths (B,) >= 1 -> (B, D) float32: mean, maximum, or their sum, over real frames.

    What stands at padded places, even NaN, has no part in it.
    """
    values, padded = values.float(), ~length_mask(lengths, values.shape[1])[..., None]
    parts = []
    if pooling != "max":
        parts.append(values.masked_fill(padded, 0.0).sum(1) / lengths[:, None])
    if pooling != "mean":
        parts.append(values.masked_fill(padded, -torch.inf).amax(1))
    return torch.stack(parts).sum(0)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, ReLU, linear."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
