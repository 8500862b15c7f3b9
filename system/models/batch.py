"""Input of a model.

The input of a model: the audio of a batch of clips, and their captions.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

# B clips, T frames, D values in a frame, N captions


class Series(NamedTuple):
    """Padded series: values (B, T, D), lengths without padding (B,)."""

    values: torch.Tensor
    lengths: torch.Tensor

    def rows(self, index: torch.Tensor) -> "Series":
        """Select the series with the indexes `index`, padded to the longest of them."""
        lengths = self.lengths[index]
        return Series(self.values[index, : int(lengths.max())], lengths)


@dataclass(frozen=True)
class Share:
    """A batch divided into chunks that are embedded one at a time. Chunk i belongs to process i % count.

    chunks: The rows of each chunk; every row of the batch is in exactly one chunk. index: Index of this process.
    """

    chunks: list[list[int]]
    index: int
    count: int

    @property
    def rows(self) -> list[int]:
        """Rows of the batch that this process embeds; the batch's audio has these rows, in this order."""
        return [row for chunk in self.chunks[self.index :: self.count] for row in chunk]


@dataclass(frozen=True)
class Batch:
    """A batch of B items.

    clip_keys: (B,) content keys of the clips. audio: Series by expert. captions: (N,) of all items. row_of: (N,) the
    items of the captions. margin_factors: (B, B), r(c_ij) between the items' captions; None if no loss needs it.
    teachers: (B, N) cosines of clips and captions, by the teacher's name. labels: (B, T) bool for a batch of moments,
    whether an item's sentence is heard in a frame. share: The part of the audio that is loaded; None for all.
    """

    clip_keys: list[str]
    audio: dict[str, Series]
    captions: list[str]
    row_of: torch.Tensor
    margin_factors: torch.Tensor | None = None
    teachers: dict[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None
    share: Share | None = None

    def pinned(self) -> "Batch":
        """Copy the audio to page-locked memory, so that a GPU copies it without waiting."""
        audio = {name: Series(s.values.pin_memory(), s.lengths.pin_memory()) for name, s in self.audio.items()}
        return replace(self, audio=audio)

    def to(self, device: torch.device) -> "Batch":
        """Move the batch to a device."""
        audio = {name: Series(_moved(s.values, device), _moved(s.lengths, device)) for name, s in self.audio.items()}
        factors = None if self.margin_factors is None else _moved(self.margin_factors, device)
        teachers = {name: _moved(cosines, device) for name, cosines in self.teachers.items()}
        labels = None if self.labels is None else _moved(self.labels, device)
        row_of = _moved(self.row_of, device)
        return replace(self, audio=audio, row_of=row_of, margin_factors=factors, teachers=teachers, labels=labels)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a tensor to a device, without waiting for a GPU."""
    if device.type != "cuda":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
