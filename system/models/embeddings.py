"""Embeddings: vectors or series.

Embeddings of clips and captions: vectors, or series of frames or words.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from system.networks.layers import length_mask

# B clips or captions, L frames or words, D embedding; F frames of all clips together

MAX_PADDED = 1 << 24  # most values of a part's clips, padded to its longest one


class Embedded(NamedTuple):
    """Output of an encoder: pooled vectors (B, D) with lengths None, or padded series (B, L, D) with lengths (B,).
    Lengths do not count padding.
    """

    values: torch.Tensor
    lengths: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Number of clips or captions, B."""
        return len(self.values)

    def rows(self, index: torch.Tensor | list[int] | slice) -> "Embedded":
        """Return the embeddings at the indexes `index`, in this order."""
        return Embedded(self.values[index], None if self.lengths is None else self.lengths[index])

    def float(self) -> "Embedded":
        """Convert the embeddings to float32."""
        return Embedded(self.values.float(), self.lengths)


class Ragged(NamedTuple):
    """Series of a pool, concatenated without padding: values (F, D), lengths (B,) whose sum is F."""

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def size(self) -> int:
        """Number of series, one per clip, B."""
        return len(self.lengths)

    def rows(self, index: torch.Tensor | list[int]) -> "Ragged":
        """Return the series at the indexes `index`, in this order."""
        index = torch.as_tensor(index, device=self.lengths.device)
        lengths = self.lengths[index]
        skipped = (self.lengths.cumsum(0) - self.lengths)[index] - (lengths.cumsum(0) - lengths)
        frames = torch.arange(int(lengths.sum()), device=lengths.device) + skipped.repeat_interleave(lengths)
        return Ragged(self.values[frames], lengths)

    def float(self) -> "Ragged":
        """Convert the series to float32."""
        return Ragged(self.values.float(), self.lengths)

    def padded_parts(self) -> Iterator[tuple[torch.Tensor, Embedded]]:
        """Yield the (P,) indexes and the padded series of groups of P series of similar length, shortest first.

        A group has at most MAX_PADDED values, or only one series.
        """
        order, dim = self.lengths.argsort(stable=True), self.values.shape[1]
        lengths, begin = self.lengths[order].tolist(), 0
        for end in range(1, len(lengths) + 1):
            if end == len(lengths) or (end + 1 - begin) * lengths[end] * dim > MAX_PADDED:
                yield order[begin:end], self.rows(order[begin:end]).padded()
                begin = end

    def padded(self) -> Embedded:
        """Return all series padded with zeros to the longest: (B, L, D) with their lengths."""
        mask = length_mask_of(self)
        values = self.values.new_zeros(*mask.shape, self.values.shape[1])
        values[mask] = self.values
        return Embedded(values, self.lengths)


Embeddings = Embedded | Ragged


def concatenate_embeddings(parts: Sequence[Embedded]) -> Embedded:
    """Concatenate the embeddings of several groups of clips or captions. Series are padded to the longest."""
    if parts[0].lengths is None:
        return Embedded(torch.cat([part.values for part in parts]))
    longest = max(part.values.shape[1] for part in parts)
    filled = [F.pad(part.values, (0, 0, 0, longest - part.values.shape[1])) for part in parts]
    return Embedded(torch.cat(filled), torch.cat([part.lengths for part in parts if part.lengths is not None]))


class Units(Embedded):
    """Pooled vectors (B, D), each of length 1 or 0."""


def prepare_for_scoring(clips: Embeddings) -> Embeddings:
    """Scale the pooled vectors of clips to length 1, so that scoring is fast; return series unchanged."""
    return clips if clips.lengths is not None else Units(unit_vectors(clips))


def unit_vectors(embedded: Embeddings) -> torch.Tensor:
    """Scale vectors (B, D) to length 1. Vectors of zeros stay zeros."""
    return embedded.values if isinstance(embedded, Units) else F.normalize(embedded.values, dim=-1)


def length_mask_of(series: Embeddings) -> torch.Tensor:
    """Return the mask (B, L) of padded series: true for frames or words, false for padding."""
    if series.lengths is None:
        raise ValueError(
            "the score frame_word needs one embedding per frame and per word, but these embeddings are pooled; "
            "use encoders that return series"
        )
    longest = max(1, int(series.lengths.max())) if isinstance(series, Ragged) else series.values.shape[1]
    return length_mask(series.lengths, longest)
