"""Interface of networks on segments."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

# S segments, N samples, L frames, D values


class SegmentNetwork(nn.Module, ABC):
    """A network that gives each of S segments a vector of D values, (S, D), or several frames.

    Input: the segments, (S, N) float32 in [-1, 1], padded with silence to N samples; and their lengths without padding,
    (S,) samples, at least 1.

    In evaluation the vector of a segment does not depend on other segments, unless the docstring of a subclass states
    that it does.
    """

    dim: int  # D

    @abstractmethod
    def forward(self, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the vector of each segment. Returns: (S, D)."""

    @abstractmethod
    def frames(self, waves: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute each segment's frames, and the number of its frames that begin before the end of the clip.

        Returns: The L frames of D values of S segments, (S, L, D), in order of time; and the numbers (S,), at least 1.
        """

    @abstractmethod
    def load_published(self, path: Path) -> None:
        """Load a published checkpoint into the network. Raises KitError if the file is something else."""

    def save_assets(self, folder: Path) -> None:
        """Write the files, other than weights, that another machine needs to build the network."""


def count_clip_frames(lengths: torch.Tensor, size: int, frames: int) -> torch.Tensor:
    """Return the number of frames that begin before the end of the clip, for each segment.

    The rest of a segment is padding. lengths: (S,) number of samples of the clip in each of S segments. size: Number of
    samples of a segment. frames: Number of frames of a segment. Returns: (S,), at least 1.
    """
    return (lengths * frames + size - 1).div(size, rounding_mode="floor").clamp(1, frames)


def group_by_length(lengths: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Yield groups of indexes of equal `lengths`, whose sum per group is at most `max_size`.

    A group with only one index may have a larger length.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for length, same in itertools.groupby(order, key=lambda i: lengths[i]):
        while group := list(itertools.islice(same, max(1, max_size // length))):
            yield group
