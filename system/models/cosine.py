"""The cosine of two embeddings."""

import torch

from system.models.embeddings import Embeddings, unit_vectors

# B clips, N captions, D embedding


def cosine(clips: Embeddings, captions: Embeddings) -> torch.Tensor:
    """Compute the cosines of all clips and captions: (B, D) and (N, D) -> (B, N) in [-1, 1].

    An embedding of zeros has cosine 0.
    """
    return unit_vectors(clips) @ unit_vectors(captions).T
