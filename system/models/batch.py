"""Input of a model.

The input of a model: the audio of a batch of clips, and their captions.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from system.compute.device import on_device

# B clips, T frames, D values in a frame, N captions


class Series(NamedTuple):
    """Padded series: values (B, T, D), lengths without padding (B,).

    Lengths stay in the CPU's memory, so that reading them never waits for a GPU.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def rows(self, index: torch.Tensor) -> "Series":
        """Return the series at the indexes `index`, padded to the longest of them."""
        lengths = self.lengths[index]
        return Series(self.values[on_device(index, self.values.device), : int(lengths.max())], lengths)


@dataclass(frozen=True)
class Share:
    """A batch divided into chunks that are embedded one at a time. Chunk i belongs to process i % count.

    chunks: Indexes of the batch's items in each chunk; every item is in exactly one chunk. index: Index of this
    process. count: Number of processes.
    """

    chunks: list[list[int]]
    index: int
    count: int

    @property
    def rows(self) -> list[int]:
        """Indexes of the batch's items that this process embeds. The batch's audio has these items in this order."""
        return [row for chunk in self.chunks[self.index :: self.count] for row in chunk]


@dataclass(frozen=True)
class Batch:
    """A batch of B items.

    clip_keys: (B,) content keys (checksums of the audio) of the clips. audio: Dict from expert to the clips' padded
    frames. captions: (N,) captions of all items. row_of: (N,) index of the item to which each caption belongs.
    margin_factors: (B, B) factors in [0, 1] on the margin of the ranking loss, by the similarity of two items'
    captions; None if no loss needs them. teachers: Dict from teacher to cosines (B, N) of clips and captions.
    labels: (B, T) bool, whether an item's sentence is heard in a frame; None if the items are not moments.
    share: The chunks whose audio is loaded; None if all audio is loaded.
    """

    clip_keys: list[str]
    audio: dict[str, Series]
    captions: list[str]
    row_of: torch.Tensor
    margin_factors: torch.Tensor | None = None
    teachers: dict[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None
    share: Share | None = None

    def pin_audio(self) -> "Batch":
        """Return the batch with its audio in page-locked memory, which a GPU copies without waiting."""
        audio = {name: Series(s.values.pin_memory(), s.lengths) for name, s in self.audio.items()}
        return replace(self, audio=audio)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with all tensors on a device, except the lengths of its series, which stay on the CPU."""
        audio = {name: Series(on_device(s.values, device), s.lengths) for name, s in self.audio.items()}
        factors = None if self.margin_factors is None else on_device(self.margin_factors, device)
        teachers = {name: on_device(cosines, device) for name, cosines in self.teachers.items()}
        labels = None if self.labels is None else on_device(self.labels, device)
        row_of = on_device(self.row_of, device)
        return replace(self, audio=audio, row_of=row_of, margin_factors=factors, teachers=teachers, labels=labels)
