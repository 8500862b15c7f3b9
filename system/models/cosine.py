"""The cosine of two embeddings."""

import torch

from system.models.embeddings import Embeddings, unit_vectors

# B clips, N captions, D embedding


def cosine(clips: Embeddings, captions: Embeddings) -> torch.Tensor:
    """(B, D) and (N, D) -> (B, N) cosines in [-1, 1]; an embedding of zeros scores 0 against everything."""
    return unit_vectors(clips) @ unit_vectors(captions).T
