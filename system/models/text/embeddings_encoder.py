"""Given embeddings of texts: encoder.

Embeddings of texts that another program computed.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.embeddings import read_vectors
from data_tools.errors import KitError
from system.compute.device import on_device
from system.experts.base import file_sha256
from system.models.embeddings import Embedded
from system.models.text.encoder import TextEncoder


class TextEmbeddingsEncoder(TextEncoder):
    """Texts -> their embeddings (N, D) in files of another program."""

    caches_texts = False

    def __init__(self, files: Sequence[str], dim: int) -> None:
        """Read the files. dim: Required number of values per embedding. Raises KitError for files that do not fit."""
        super().__init__()
        self._files = files
        self._vectors = read_vectors(files, "caption").require_dim(dim, files)

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Return the embeddings of some texts. Raises KitError for a text without an embedding."""
        self.prepare(texts)
        values = np.concatenate([self._vectors.read(text) for text in texts])
        return Embedded(on_device(torch.from_numpy(values), self.device))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return 0 for each text, since embeddings from files are not padded."""
        return [0] * len(texts)

    def prepare(self, texts: Sequence[str]) -> None:
        """Check texts before they are used: raise KitError if one of them has no embedding."""
        if absent := self.without_known_words(list(dict.fromkeys(texts))):
            raise KitError(
                f"{' and '.join(self._files)}: no embedding of {counted(len(absent), 'text')}, such as "
                f"{absent[0][:80]!r}; write embeddings of all captions and queries"
            )

    def identity(self) -> str:
        """Return a checksum of the embedding files."""
        return hashlib.sha256("".join(map(file_sha256, map(Path, self._files))).encode()).hexdigest()

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without an embedding."""
        return [text for text in texts if text not in self._vectors]

    def unknown_words(self, text: str) -> list[str]:
        """Return an empty list, since texts are looked up as a whole, not by word."""
        return []
