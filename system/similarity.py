"""Scores of clips against captions from their embeddings."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

# B clips, N captions, L frames or words, D embedding


class Embedded(NamedTuple):
    """What an encoder gives: pooled vectors (B, D) with lengths None, or a padded series (B, L, D) with (B,) real
    lengths."""

    values: torch.Tensor
    lengths: torch.Tensor | None = None

    def rows(self, index: torch.Tensor | list[int]) -> "Embedded":
        """The embeddings at these places, in this order."""
        return Embedded(self.values[index], None if self.lengths is None else self.lengths[index])

    def float(self) -> "Embedded":
        """In float32, whatever the encoder computed in."""
        return Embedded(self.values.float(), self.lengths)


def joined(parts: Sequence[Embedded]) -> Embedded:
    """Embeddings one behind the other; series are filled to the longest."""
    if parts[0].lengths is None:
        return Embedded(torch.cat([part.values for part in parts]))
    longest = max(part.values.shape[1] for part in parts)
    filled = [F.pad(part.values, (0, 0, 0, longest - part.values.shape[1])) for part in parts]
    return Embedded(torch.cat(filled), torch.cat([part.lengths for part in parts if part.lengths is not None]))


def cosine(clips: Embedded, captions: Embedded) -> torch.Tensor:
    """(B, D) and (N, D) -> (B, N) cosines in [-1, 1]; an embedding of zeros scores 0 against everything."""
    return F.normalize(clips.values, dim=-1) @ F.normalize(captions.values, dim=-1).T


SCORES: dict[str, Callable[[Embedded, Embedded], torch.Tensor]] = {"cosine": cosine}
