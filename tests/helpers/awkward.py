"""A small data set whose parts all differ, so that every wrong order is noticed.

Four recordings last 9, 3, 5 and 7 frames: sorted by length their order is 1, 2, 3, 0, whose inverse is 3, 0, 1, 2, so
that an order in place of its inverse shows. Embeddings are drawn, so that no two scores are alike. The queries ask for
recordings in another order than that of the pool; one recording is asked for twice, one never, and two queries have one
text.
"""

import torch

from system.models.batch import Embedded, Ragged

LENGTHS = (9, 3, 5, 7)  # frames of each recording
CLIP_OF = (2, 0, 3, 0)  # the recording that each query asks for
TEXTS = ("a dog barks", "rain", "a dog barks", "wind")
DIM = 6


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def recordings(lengths: tuple[int, ...] = LENGTHS) -> Ragged:
    """Frames of all recordings, (sum of lengths, DIM)."""
    return Ragged(list(drawn(sum(lengths), DIM, seed=1).split(lengths)))


def sentences(count: int = len(TEXTS)) -> Embedded:
    return Embedded(drawn(count, DIM, seed=2))
