"""What a network on segments of waveforms is. Imports torch."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

# S segments, N samples, L frames, D values


class SegmentNetwork(nn.Module, ABC):
    """Segments (S, N) float32 in [-1, 1], all of one length and filled with silence, and (S,) how many samples of each
    are a clip's, at least 1 -> (S, D), one vector a segment.

    In evaluation the vector of a segment does not depend on the others, unless its docstring says so.
    """

    dim: int  # D

    @abstractmethod
    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """(S, D)."""

    @abstractmethod
    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(S, L, D) in their order in time, and (S,) how many of each begin within the clip, at least 1."""

    @abstractmethod
    def take_published(self, path: Path) -> None:
        """Load a published checkpoint; KitError for another file."""

    def save_assets(self, folder: Path) -> None:
        """Write what it is made from on another machine, beside its weights."""


def begun(lengths: torch.Tensor, size: int, frames: int) -> torch.Tensor:
    """(S,) how many of `frames` frames, spread over `size` samples, begin before `lengths` samples; 1 at least."""
    return (lengths * frames + size - 1).div(size, rounding_mode="floor").clamp(1, frames)


def of_one_length(lengths: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Places of equal lengths, in groups that add up to at most `max_size` (or of one place); every place once."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for length, same in itertools.groupby(order, key=lambda i: lengths[i]):
        while group := list(itertools.islice(same, max(1, max_size // length))):
            yield group
