"""Teachers' cosines for a batch.

The teachers' cosines of a batch's clips and captions, from embeddings that were computed once.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from data_tools.manifest import Clip
from system.batches.sampler import Item

# B clips, N captions of a batch, D values of a teacher's embedding


def caption_key(clip: Clip, number: int) -> str:
    """Return the key under which the embedding of a clip's caption `number` is stored.

    The embedding is by a teacher, a trained model whose scores the loss imitates. Equal captions of two clips have
    different keys.
    """
    return hashlib.sha256(f"{clip.id}\0{number}\0{clip.captions[number]}".encode()).hexdigest()


class Rows(Protocol):
    """A bank, or any other table of (1, D) embeddings by key."""

    def read(self, key: str) -> np.ndarray:
        """Return the embedding, (1, D), that is stored under a key."""
        ...


class Taught(NamedTuple):
    """A teacher's embeddings, each (1, D), in two banks: clips by content key, and captions by caption_key."""

    clips: Rows
    captions: Rows


class Teachers:
    """The teachers of a stage, by name."""

    def __init__(self, banks: Mapping[str, Taught]) -> None:
        """Store the embeddings of clips and captions by each teacher."""
        self.banks = banks

    def cosines(self, items: Sequence[Item], keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return a dict from teacher to its cosines (B, N) of B clips and N captions. keys: Checksums of clips' audio.

        A teacher is a trained model whose scores the loss imitates. Its cosines are float32 in [-1, 1].
        """
        captions = [caption_key(item.clip, number) for item in items for number in item.numbers]
        return {
            name: torch.from_numpy(
                read_unit_embeddings(taught.clips, keys) @ read_unit_embeddings(taught.captions, captions).T
            )
            for name, taught in self.banks.items()
        }


def read_unit_embeddings(bank: Rows, keys: Sequence[str]) -> np.ndarray:
    """Read the embeddings (n, D) float32 of the given keys from a bank, scaled to length 1.

    An embedding of only zeros is not scaled.
    """
    rows = np.concatenate([bank.read(key) for key in keys])
    scaled: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return scaled
