"""The interface of text encoders."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from data_tools.words import words_of
from system.compute.device import on_device, suited_to
from system.models.embeddings import Embedded, concatenate_embeddings

# N captions, D embedding

TEXTS_AT_ONCE = {"cpu": 128, "cuda": 512}  # a GPU needs more at once to be busy
QUERIES_AT_ONCE = 16  # of waiting users: 32 queries sorted by length into halves take 16 % less time than unsorted ones


class TextEncoder(nn.Module, ABC):
    """Embeds N captions: as vectors (N, D), or as padded series of word vectors.

    caches_texts: Whether results for a text are cached, in memory or on disk. This is useful for captions of data
    sets, which are used again, but not for the queries of a search page. vocabulary: Words that the encoder was built
    for, in order; None for a pre-trained encoder.
    """

    caches_texts = True
    vocabulary: list[str] | None = None
    _marker: torch.Tensor

    def __init__(self) -> None:
        """Register an empty buffer whose device is the device of the encoder."""
        super().__init__()
        self.register_buffer("_marker", torch.empty(0), persistent=False)  # has the encoder's device

    @property
    def device(self) -> torch.device:
        """Device of the encoder's computations."""
        return self._marker.device

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embed texts, at least one, in their order.

        Texts of similar length are computed together to reduce padding. In a batch of 2,560 captions of Clotho that is
        padded to its longest caption, half is padding; in chunks of 128 captions, sorted by length, 4 % is padding.
        """
        order = torch.tensor(self.lengths(texts)).argsort(stable=True)
        size = suited_to(self.device, TEXTS_AT_ONCE) if self.caches_texts else QUERIES_AT_ONCE
        parts = [self.embed_batch([texts[i] for i in rows.tolist()]) for rows in order.split(size)]
        return concatenate_embeddings(parts).rows(on_device(order.argsort(), self.device))

    @abstractmethod
    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Embed a batch of texts of similar length, padded to the longest."""

    @abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens, words or characters of each text; 0 for texts that are not padded."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute and store results, such as vectors, for texts that do not change during training."""

    def identity(self) -> str | None:
        """Return the checksum of a pre-trained encoder's weights; None for an encoder that is trained from scratch.

        All weights of an encoder that is trained from scratch are in checkpoints, so it needs no checksum.
        """
        return None

    def frozen_parameters(self) -> int:
        """Count the parameters that are not trained."""
        return 0

    @abstractmethod
    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without any known word.

        For such a text, all clips would have the same score.
        """

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that the encoder does not know, each once, in the order of the text."""
        return [word for word in dict.fromkeys(words_of(text)) if self.without_known_words([word])]

    @property
    def logit_numbers(self) -> tuple[float, float] | None:
        """Published scale and offset for dot products of clips and texts; None for encoders without these numbers."""
        return None

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs, in addition to the weights, to use the encoder.

        Files whose path a setting (`--set`) can replace are left out.
        """
        if self.vocabulary is not None:
            text = json.dumps(self.vocabulary, ensure_ascii=False)
            (folder / "vocabulary.json").write_text(text, encoding="utf-8")
