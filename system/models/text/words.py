"""Frozen word vectors of a file in word2vec's binary format."""

import hashlib
import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from data_tools.errors import KitError
from data_tools.files import checksum, replacing
from data_tools.settings import Size
from data_tools.words import words_of
from system.audio import Need
from system.devices import on_device
from system.models.batch import Embedded
from system.models.text import TextEncoder, TextSettings

# N captions, W words, V words of a file, D values of a vector

LONGEST_WORD = 4096  # bytes


class WordVectors(TextSettings):
    """A vector per word of length 1, or their mean.

    A word is looked up in lower case, then with a capital letter, then by the mean of its parts between hyphens and
    apostrophes. Words that are not in the file get one random vector. The mean is scaled to length 1. In training,
    padding counts as words of the series, as in the public code.

    Source: github.com/xieh97/contrastive-negative-sampling (2023, section 4.2) and dcase2022-audio-retrieval.
    Deviations: the public code lists replacements of unknown words by hand (a -> A, walkie-talkie -> walkie, talkie),
    which are found here, except axe -> Axe if the file has axe. It draws its random vector until the product with every
    word is below 0.25; here it is drawn once.
    """

    kind: Literal["word_vectors"]
    vectors: str  # the file of word vectors (.bin)
    dim: Size  # D of the file, checked when it is read
    embedding: Literal["words", "mean"]  # one vector per word, or their mean

    @property
    def depends_on_batch(self) -> bool:
        return self.embeds_series

    @property
    def is_trained(self) -> bool:
        return False

    def needs(self) -> list[Need]:
        place = "code.google.com/archive/p/word2vec (GoogleNews-vectors-negative300.bin.gz, unpacked)"
        return [Need("vectors", self.vectors, place)]

    def build(self, vocabulary: list[str], banks: Path) -> TextEncoder:
        return WordVectorsEncoder(self)


class WordVectorsEncoder(TextEncoder):
    """Word vectors (N, W, D) of captions, or their mean."""

    def __init__(self, settings: WordVectors) -> None:
        super().__init__()
        self.counts_padding = settings.embeds_series
        self.settings, self.file = settings, WordVectorFile(Path(settings.vectors), settings.dim)
        numbers = np.frombuffer(hashlib.sha256(b"").digest(), np.uint32).tolist()
        vector = np.random.default_rng(numbers).standard_normal(settings.dim)
        self.unknown = np.array(vector / np.linalg.norm(vector), np.float32)

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embed all texts together, since padding costs no computation."""
        return self.embed_batch(texts)

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        found = [[self.find(word) for word in words_of(text) or [""]] for text in texts]
        rows = [np.stack([self.unknown if one is None else one for one in caption]) for caption in found]
        series = on_device(pad_sequence([*map(torch.from_numpy, rows)], batch_first=True), self.device)
        if self.settings.embedding == "mean":
            return Embedded(F.normalize(series.sum(1), dim=-1))
        lengths = [series.shape[1] if self.training else len(row) for row in rows]
        return Embedded(F.normalize(series, dim=-1), on_device(torch.tensor(lengths), self.device))

    def find(self, word: str) -> np.ndarray | None:
        """Return the vector (D,) of a known word, or the mean of its parts."""
        found = self.file.get(word)
        if found is None:
            parts = [vector for part in re.split("['’-]", word) if (vector := self.file.get(part)) is not None]
            found = np.mean(parts, axis=0) if parts else None
        return found

    def identity(self) -> str:
        return checksum(self.file.path)

    def frozen_parameters(self) -> int:
        return len(self.file) * self.settings.dim

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if all(self.find(word) is None for word in words_of(text))]


class WordVectorFile:
    """Vectors by word, in word2vec's binary format.

    The first line has V and D. Then come each word, a blank, and D little-endian float32 numbers. The file is read once
    to find the words; the first of equal words counts.
    """

    def __init__(self, path: Path, dim: int) -> None:
        """Open a file.

        Raises:
            KitError: It is missing, cut, of another format, or of another dimension.
        """
        self.path, self.dim, self._offsets = path, dim, dict[bytes, int]()
        if path.suffix != ".bin":
            raise KitError(f"{path}: not word2vec's binary format; name a .bin file")
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            offset = self._bytes.find(b"\n", 0, 64) + 1
            self._count, size = map(int, self._bytes[:offset].split())
            for _ in range(self._count if size == dim else 0):
                if (blank := self._bytes.find(b" ", offset, offset + LONGEST_WORD)) < 0:
                    raise ValueError("a word has no end")
                word = self._bytes[offset:blank].lstrip(b"\n")  # some writers end a vector with a line end
                self._offsets.setdefault(word, blank + 1)
                offset = blank + 1 + 4 * dim
            if offset > len(self._bytes):
                raise ValueError("it is cut")
        except (OSError, ValueError) as error:
            raise KitError(f"{path} cannot be read as a .bin file of word2vec ({error}); download it again") from error
        if size != dim:
            raise KitError(f"{path} has vectors of {size} values, not {dim}; set text.dim to {size}")

    def __len__(self) -> int:
        return self._count

    def get(self, word: str) -> np.ndarray | None:
        """Return the vector (D,) of a word, or of the word with a capital letter."""
        offset = self._offsets.get(word.encode()) or self._offsets.get(word.capitalize().encode())
        return np.frombuffer(self._bytes, "<f4", self.dim, offset).astype(np.float32) if offset else None


def write_word_vectors(path: Path, words: dict[str, np.ndarray]) -> None:
    """Write vectors (D,) by word in word2vec's binary format."""
    dim = len(next(iter(words.values())))
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {dim}\n".encode())
        for word, vector in words.items():
            file.write(word.encode() + b" " + np.asarray(vector, "<f4").tobytes())
