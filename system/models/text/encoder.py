"""What a text encoder is."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from data_tools.words import words_of
from system.compute.device import suited_to
from system.models.embeddings import Embedded, joined

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
        order = torch.tensor(self.lengths(texts)).argsort(stable=True)
        size = suited_to(self.device, TEXTS_AT_ONCE) if self.remembers else QUERIES_AT_ONCE
        parts = [self.embed_alike([texts[i] for i in rows.tolist()]) for rows in order.split(size)]
        return joined(parts).rows(order.argsort().to(self.device))

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

    def unknown_words(self, text: str) -> list[str]:
        """Words of a text that the encoder does not know, each once, in their order."""
        return [word for word in dict.fromkeys(words_of(text)) if self.unreadable([word])]

    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs beside the weights, and what no `--set` can name there."""
        if self.vocabulary is not None:
            text = json.dumps(self.vocabulary, ensure_ascii=False)
            (folder / "vocabulary.json").write_text(text, encoding="utf-8")
