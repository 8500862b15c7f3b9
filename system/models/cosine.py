"""The cosine of two embeddings."""

import torch

from system.models.embeddings import Embeddings, unit_vectors

# B clips, N captions, D embedding


def cosine(clips: Embeddings, captions: Embeddings) -> torch.Tensor:
    """Return (B, N) cosines in [-1, 1] of (B, D) clips and (N, D) captions. An embedding of zeros has cosine 0."""
    return unit_vectors(clips) @ unit_vectors(captions).T
