"""The text encoders.

To add one, write its file here and add a line to KINDS. A file is imported when a recipe names its kind.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from data_tools.words import words_of
from system.devices import suited_to
from system.models import EncoderKind
from system.models.batch import Embedded, join_embeddings

KINDS = {  # kind: module
    "clap": "system.models.text.joint",
    "pe_audio": "system.models.text.joint",
    "embeddings": "system.models.text.given",
    "published": "system.models.text.published",
    "transformer": "system.models.text.small",
    "word_vectors": "system.models.text.words",
}

# N captions, D embedding

TEXTS_AT_ONCE = {"cpu": 128, "cuda": 512}  # a GPU needs more at once to be busy
QUERIES_AT_ONCE = 16  # of waiting users: 32 queries sorted by length into halves take 16 % less time than unsorted ones


class TextSettings(EncoderKind):
    """Settings of one kind of text encoder.

    A subclass adds its `kind`, and `dim` as a field.
    """

    modules: ClassVar = KINDS
    reads_vocabulary: ClassVar[bool] = False  # whether it is built for the words of the training captions

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def dim(self) -> int:
            """Number of values per embedding, equal for texts and clips."""
            ...

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return True

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        """Return why a text has no embedding, by the settings."""
        return None

    @abstractmethod
    def build(self, vocabulary: list[str], banks: Path) -> "TextEncoder":
        """Build the encoder.

        Args:
            vocabulary: Words of all training captions, if the encoder `reads_vocabulary`.
            banks: Folder of stored vectors.
        """


class TextEncoder(nn.Module, ABC):
    """A network from texts to embeddings.

    They are vectors (N, D), or series of words (N, W, D).
    """

    counts_padding = False  # whether padding of a training batch counts as words
    caches_texts = True  # false for private queries, which must not be stored
    logit_numbers: tuple[float, float] | None = None  # published scale and offset for dot products
    vocabulary: list[str] | None = None  # words that the encoder was built for, in order

    def __init__(self) -> None:
        super().__init__()
        self._marker = nn.Buffer(torch.empty(0), persistent=False)  # has the encoder's device

    @property
    def device(self) -> torch.device:
        """Device of the encoder's computations."""
        return self._marker.device

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embed texts, those of similar length together."""
        order = torch.tensor(self.lengths(texts)).argsort(stable=True)
        size = suited_to(self.device, TEXTS_AT_ONCE) if self.caches_texts else QUERIES_AT_ONCE
        rows = order.split(size)
        return join_embeddings([self.embed_batch([texts[i] for i in some.tolist()]) for some in rows], rows)

    @abstractmethod
    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Embed texts of similar length."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the length of each text, for grouping.

        It is 0 if nothing is padded.
        """
        return [0] * len(texts)

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute and store what does not change in training."""

    def identity(self) -> str | None:
        """Return a checksum of the published files, if any.

        It is None if all weights are in checkpoints.
        """
        return None

    def frozen_parameters(self) -> int:
        """Count the parameters that are not trained."""
        return 0

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts that give all clips the same score."""
        return [text for text in texts if not words_of(text)]

    def unknown_words(self, text: str) -> list[str]:
        """Return a text's words that the encoder does not know."""
        return [word for word in dict.fromkeys(words_of(text)) if self.without_known_words([word])]

    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs besides the weights.

        Files that settings name are left out.
        """
        if self.vocabulary is not None:
            (folder / "vocabulary.json").write_text(json.dumps(self.vocabulary, ensure_ascii=False), encoding="utf-8")
