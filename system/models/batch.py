"""What a model reads, a batch of clips and captions, and what it returns, embeddings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from system.devices import on_device
from system.processes import gather, process_count, process_index

# B clips, T frames, D values in a frame, N captions

MAX_PADDED = 1 << 24  # most values of a part's clips, padded to its longest one


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


# B clips or captions, L frames or words, D embedding; F frames of all clips together


class Embedded(NamedTuple):
    """Output of an encoder: vectors, or padded series."""

    values: Tensor  # (B, D), or (B, L, D)
    lengths: Tensor | None = None  # (B,) without padding; None for vectors

    @property
    def size(self) -> int:
        """Number of clips or captions."""
        return len(self.values)

    def rows(self, index: Tensor | list[int] | slice) -> "Embedded":
        """Return the embeddings at some indexes."""
        return Embedded(self.values[index], None if self.lengths is None else self.lengths[index])

    def float(self) -> "Embedded":
        """Convert the embeddings to float32."""
        return Embedded(self.values.float(), self.lengths)

    def to(self, device: torch.device) -> "Embedded":
        """Move the embeddings to a device."""
        return Embedded(self.values.to(device), None if self.lengths is None else self.lengths.to(device))


class Ragged(NamedTuple):
    """Series of a pool without padding.

    One long clip does not lengthen the others.
    """

    series: list[Tensor]  # (T, D) each

    @property
    def size(self) -> int:
        """Number of series."""
        return len(self.series)

    @property
    def values(self) -> Tensor:
        """Return a copy of all series, one after the other, (F, D)."""
        return torch.cat(self.series)

    @property
    def lengths(self) -> Tensor:
        """Lengths of the series, (B,)."""
        return torch.tensor([len(one) for one in self.series], device=self.series[0].device)

    def rows(self, index: Tensor | list[int]) -> "Ragged":
        """Return the series at some indexes."""
        return Ragged([self.series[row] for row in index])

    def float(self) -> "Ragged":
        """Convert the series to float32."""
        return Ragged([one.float() for one in self.series])

    def padded_parts(self) -> Iterator[tuple[list[int], Embedded]]:
        """Yield groups of series of similar length, padded.

        Yields:
            Indexes of the series, and the series, of at most MAX_PADDED values.
        """
        for rows in groups_of_similar_length([len(one) for one in self.series], MAX_PADDED // self.series[0].shape[1]):
            yield rows, self.rows(rows).padded()

    def padded(self) -> Embedded:
        """Return all series padded with zeros to the longest."""
        return Embedded(pad_sequence(self.series, batch_first=True), self.lengths)


def groups_of_similar_length(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Divide series by length, the shortest first.

    Args:
        most: Largest size of a group that is padded to its longest series; a series alone may have more.

    Yields:
        Indexes of the series.
    """
    order, begin = sorted(range(len(lengths)), key=lengths.__getitem__), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * lengths[order[end]] > most:
            yield order[begin:end]
            begin = end


Embeddings = Embedded | Ragged


class Units(Embedded):
    """Vectors (B, D), each of length 1 or 0."""


def are_units(values: Tensor) -> bool:
    """Return whether vectors have length 1 or 0 already.

    Scaling them again would change their last digits.
    """
    lengths = values.norm(dim=-1)
    return bool((((lengths - 1).abs() < 1e-5) | (lengths == 0)).all())


def unit_vectors(embedded: Embeddings) -> Tensor:
    """Scale vectors (B, D) to length 1; zeros stay zeros."""
    return embedded.values if isinstance(embedded, Units) else F.normalize(embedded.values, dim=-1)


def join_embeddings(parts: Sequence[Embedded], rows: Sequence[Tensor]) -> Embedded:
    """Join embeddings, padded to the longest, in one copy.

    A second copy of a long recording would need several GB.

    Args:
        rows: Places of each part's items in the result.
    """
    first = parts[0].values
    shape = max(part.values.shape[1:-1] for part in parts)
    values = first.new_zeros(sum(part.size for part in parts), *shape, first.shape[-1])
    for part, at in zip(parts, rows, strict=True):
        values[on_device(at, first.device), : part.values.shape[1]] = part.values
    lengths = [part.lengths for part in parts if part.lengths is not None]
    return Embedded(
        values, torch.cat(lengths)[torch.cat(list(rows)).argsort().to(lengths[0].device)] if lengths else None
    )


def gather_embeddings(local: Sequence[Embedded], count: int, device: torch.device) -> list[Embedded]:
    """Exchange the embeddings of chunks among processes, without gradients.

    Args:
        local: Of this process's chunks.
        count: Number of all chunks; chunk i belongs to process i % n.
        device: Of the result.

    Returns:
        The embeddings of all chunks, in order, in every process.
    """
    here = [Embedded(part.values.detach(), part.lengths) for part in local]
    if process_count() == 1:
        return here
    gathered = gather([part.to(torch.device("cpu")) for part in here])
    return [gathered[number % len(gathered)][number // len(gathered)].to(device) for number in range(count)]
