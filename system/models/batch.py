"""What a model is handed: the audio of a batch of clips, and their captions."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

# B clips, T frames, D values in a frame, N captions


class Series(NamedTuple):
    """Padded series: values (B, T, D), real lengths (B,)."""

    values: torch.Tensor
    lengths: torch.Tensor

    def rows(self, index: torch.Tensor) -> "Series":
        """Some of the series, no longer than they need to be."""
        lengths = self.lengths[index]
        return Series(self.values[index, : int(lengths.max())], lengths)


@dataclass(frozen=True)
class Share:
    """A batch divided into parts that are embedded at a time; part i is of process i % count.

    parts: of each, its rows of the batch; each row is in one of them. index: which process this is.
    """

    parts: list[list[int]]
    index: int
    count: int

    @property
    def rows(self) -> list[int]:
        """The rows that this process embeds: its audio is of these, in this order."""
        return [row for part in self.parts[self.index :: self.count] for row in part]


@dataclass(frozen=True)
class Batch:
    """clip_keys: (B,) contents of the clips. audio: by expert. captions: (N,) of all items. row_of: (N,) their items.
    relax: (B, B), r(c_ij) between the items' captions; None where no loss asks for it. teachers: (B, N) by name,
    cosines of clips and captions by models that are learned from. labels: (B, T) bool of a batch of moments, the frames
    in which an item's sentence is heard. share: what of the audio is there; None for all."""

    clip_keys: list[str]
    audio: dict[str, Series]
    captions: list[str]
    row_of: torch.Tensor
    relax: torch.Tensor | None = None
    teachers: dict[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None
    share: Share | None = None

    def to(self, device: torch.device) -> "Batch":
        audio = {name: Series(_moved(s.values, device), _moved(s.lengths, device)) for name, s in self.audio.items()}
        relax = None if self.relax is None else _moved(self.relax, device)
        teachers = {name: _moved(cosines, device) for name, cosines in self.teachers.items()}
        labels = None if self.labels is None else _moved(self.labels, device)
        row_of = _moved(self.row_of, device)
        return replace(self, audio=audio, row_of=row_of, relax=relax, teachers=teachers, labels=labels)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
