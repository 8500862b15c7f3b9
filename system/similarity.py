"""Scores of clips against captions from their embeddings."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

# B clips, N captions, L frames or words, D embedding


class Embedded(NamedTuple):
    """What an encoder gives: pooled vectors (B, D) with lengths None, or a padded series (B, L, D) with (B,) real
    lengths."""

    values: torch.Tensor
    lengths: torch.Tensor | None = None


def cosine(clips: Embedded, captions: Embedded) -> torch.Tensor:
    """(B, D) and (N, D) -> (B, N) cosines in [-1, 1]; an embedding of zeros scores 0 against everything."""
    return F.normalize(clips.values, dim=-1) @ F.normalize(captions.values, dim=-1).T
