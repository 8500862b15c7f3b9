"""Input of a model: clips of a batch, and captions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from system.compute.device import on_device
from system.compute.processes import process_count, process_index

# B clips, T frames, D values in a frame, N captions


class Series(NamedTuple):
    """Padded series.

    Their lengths are in the CPU's memory, so that reading them never waits for a GPU.
    """

    values: Tensor  # (B, T, D)
    lengths: Tensor  # (B,), without padding

    def rows(self, index: Tensor) -> "Series":
        """Return the series at some indexes, without needless padding."""
        lengths = self.lengths[index]
        return Series(self.values[on_device(index, self.values.device), : int(lengths.max())], lengths)


@dataclass(frozen=True)
class Batch:
    """A batch of B items."""

    clip_keys: list[str]  # (B,), of the clips' contents
    audio: dict[str, Series]  # the clips' frames, by expert
    captions: list[str]  # (N,), of all items
    row_of: Tensor  # (N,), the item of each caption
    margin_factors: Tensor | None = None  # (B, B) in [0, 1], by the similarity of two items' captions
    teachers: dict[str, Tensor] = field(default_factory=dict)  # cosines (B, N), by teacher
    labels: Tensor | None = None  # (B, T) bool, whether a frame is in an item's moment
    chunks: list[list[int]] | None = None  # items by chunk; only this process's have audio; None: all items have it

    def pin_audio(self) -> "Batch":
        """Return the batch with its audio in page-locked memory.

        A GPU copies it without waiting.
        """
        return replace(self, audio={name: Series(s.values.pin_memory(), s.lengths) for name, s in self.audio.items()})

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors on a device.

        The lengths of series stay in the CPU's memory.
        """

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(one) for name, one in value.items()}
            if isinstance(value, Series):
                return value._replace(values=on_device(value.values, device))
            return on_device(value, device) if isinstance(value, Tensor) else value

        return replace(self, **{name: moved(value) for name, value in vars(self).items()})


def own_rows(chunks: Sequence[Sequence[int]]) -> list[int]:
    """Return the items that this process embeds.

    Of n processes, each embeds every n-th chunk.
    """
    return [row for chunk in chunks[process_index() :: process_count()] for row in chunk]
