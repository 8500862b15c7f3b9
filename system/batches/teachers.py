"""What teachers say of a batch: the cosines of its clips and captions, from embeddings that were computed once."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from data_tools.manifest import Clip
from system.batches.sampler import Item

# B clips, N captions of a batch, D values of a teacher's embedding


def caption_key(clip: Clip, number: int) -> str:
    """Of a clip's caption in a bank: two clips with the same caption have each its own. number: among the clip's."""
    return hashlib.sha256(f"{clip.id}\0{number}\0{clip.captions[number]}".encode()).hexdigest()


class Rows(Protocol):
    """A bank, or anything else that has (1, D) by a key."""

    def read(self, key: str) -> np.ndarray: ...


class Taught(NamedTuple):
    """A teacher's embeddings, each (1, D). clips: by content. captions: by caption_key."""

    clips: Rows
    captions: Rows


class Teachers:
    """The teachers of a stage, by name."""

    def __init__(self, banks: Mapping[str, Taught]) -> None:
        self.banks = banks

    def cosines(self, items: Sequence[Item], keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """(B, N) float32 by teacher, in [-1, 1]. keys: contents of the items' clips."""
        captions = [caption_key(item.clip, number) for item in items for number in item.numbers]
        return {
            name: torch.from_numpy(units(taught.clips, keys) @ units(taught.captions, captions).T)
            for name, taught in self.banks.items()
        }


def units(bank: Rows, keys: Sequence[str]) -> np.ndarray:
    """(n, D) float32 of length 1; of zeros, zeros."""
    rows = np.concatenate([bank.read(key) for key in keys])
    units: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return units
