"""What a text encoder is."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from system.features.bank import Bank
from system.models.similarity import Embedded, joined

# N captions, D embedding

TEXTS_AT_ONCE = {"cpu": 128, "cuda": 512}  # a GPU needs more at once to be busy
QUERIES_AT_ONCE = 16  # of people who wait: 32 in two halves by length take 16 % less than 16 and 16 as they come


class TextEncoder(nn.Module, ABC):
    """Captions -> Embedded (N, D).

    remembers: what it works out of a text is kept for the next time, in memory or in a bank, as suits a data set's
    captions, which come again; not so what people type into a search page.
    vocabulary: words that it was made for, in order; None for a pre-trained one.
    """

    remembers = True
    vocabulary: list[str] | None = None
    _marker: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_marker", torch.empty(0), persistent=False)  # is where the encoder is, parameters or none

    @property
    def device(self) -> torch.device:
        """Where its embeddings are computed."""
        return self._marker.device

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embeddings of the texts, in their order; N >= 1.

        Texts of like length are computed together, so that hardly anything is padded: of 2,560 captions of Clotho, half
        of a batch padded to its longest caption is padding, of sorted chunks of 128 one place in 25.
        """
        lengths = self.lengths(texts)
        order = sorted(range(len(texts)), key=lambda i: lengths[i])
        device = self.device
        size = TEXTS_AT_ONCE[device.type] if self.remembers else QUERIES_AT_ONCE
        parts = [self.embed_alike([texts[i] for i in order[s : s + size]]) for s in range(0, len(order), size)]
        return joined(parts).rows(torch.from_numpy(np.argsort(order)).to(device))

    @abstractmethod
    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        """Embeddings of some texts of about the same length, padded to the longest."""

    @abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens or words of each text."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute before training what stays the same during it."""

    def identity(self) -> str | None:
        """Checksum of a pre-trained encoder; None for one from scratch, whose weights are all in the checkpoints."""
        return None

    def frozen_parameters(self) -> int:
        """Parameters that are used but not trained."""
        return 0

    @abstractmethod
    def unreadable(self, texts: Sequence[str]) -> list[str]:
        """Texts of which the encoder knows no word at all: all clips would score alike."""

    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs beside the weights, and what no `--set` can name there."""
        if self.vocabulary is not None:
            text = json.dumps(self.vocabulary, ensure_ascii=False)
            (folder / "vocabulary.json").write_text(text, encoding="utf-8")


class EmbeddingCache:
    """Embeddings (D,) of texts in a bank, each computed once.

    encode: texts -> (N, D) float32.
    """

    def __init__(self, bank: Bank, encode: Callable[[list[str]], np.ndarray]) -> None:
        self.bank, self.encode = bank, encode

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, D) on the CPU."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.bank}
        if missing:
            vectors = self.encode(list(missing.values()))
            with self.bank.writing() as store:
                for key, vector in zip(missing, vectors, strict=True):
                    store(key, vector[None])
        return torch.from_numpy(np.stack([self.bank.read(key)[0] for key in keys]))


class Tokens:
    """Tokens of texts, special ones included, each text tokenised once where that is wanted.

    tokenise: texts -> a list of token numbers a text.
    """

    def __init__(self, tokenise: Callable[[list[str]], list[list[int]]]) -> None:
        self.tokenise = tokenise
        self._known: dict[str, list[int]] = {}

    def of(self, texts: Sequence[str], remember: bool) -> list[list[int]]:
        known = self._known if remember else {}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), 1024):
            part = missing[start : start + 1024]
            known |= dict(zip(part, self.tokenise(part), strict=True))
        return [known[text] for text in texts]
