"""Encoder of frozen word vectors."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.words import words_of
from system.compute.device import on_device
from system.experts.base import file_sha256
from system.models.embeddings import Embedded
from system.models.text.encoder import TextEncoder
from system.models.text.vector_file import WordVectorFile

# N captions, W words, D embedding


class WordVectorsEncoder(TextEncoder):
    """Embeds captions by a file of word vectors: one vector of length 1 per word (N, W, D), or their mean (N, D).

    A word missing from the file is looked up with a capital first letter. If that is missing too, its parts between
    hyphens and apostrophes are looked up, and the mean of their vectors is used. Words that are still unknown get a
    random vector. Captions are lower-cased, and their punctuation is removed. A mean is scaled to length 1.
    Source: github.com/xieh97/contrastive-negative-sampling and dcase2022-audio-retrieval. Deviations: the public code
    lists replacements of unknown words by hand (a -> A, walkie-talkie -> walkie, talkie). This class finds these two,
    but does not replace axe by Axe if the file has axe. The public code draws its one random vector again until its
    product with every word is below 0.25; this class draws it once.
    """

    def __init__(
        self,
        path: Path,
        dim: int,
        embedding: Literal["words", "mean"],
        unknown: Literal["each", "one"],
        padding: Literal["masked", "counted"],
    ) -> None:
        """Open a file of word vectors.

        path: The file. dim: Number of values per vector. embedding: Return the vectors of all words, or their mean.
        unknown: Each unknown word gets a different random vector, or all get one vector. padding: In training, padding
        is masked, or is counted as words.
        """
        super().__init__()
        self.path, self.dim, self.embedding, self.unknown = path, dim, embedding, unknown
        self.counts_padding = padding == "counted"
        self.file = WordVectorFile(path, dim)
        self._vectors: dict[str, np.ndarray | None] = {}

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embed all texts together, since padding costs no computation."""
        return self.embed_batch(texts)

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Embed some texts of similar length, padded to the longest."""
        words = [words_of(text) or [""] for text in texts]
        lengths = torch.tensor([len(caption) for caption in words])
        longest = int(lengths.max())
        values = np.zeros((len(texts), longest, self.dim), np.float32)
        for row, caption in zip(values, words, strict=True):
            row[: len(caption)] = [self.vector(word) for word in caption]
        series = on_device(torch.from_numpy(values), self.device)
        if self.embedding == "mean":  # padding only changes the length of a mean, which is scaled to 1
            return Embedded(F.normalize(series.sum(1), dim=-1))
        series = F.normalize(series, dim=-1)
        counted = self.counts_padding and self.training
        lengths = torch.full_like(lengths, longest) if counted else lengths
        return Embedded(series, on_device(lengths, self.device))

    def vector(self, word: str) -> np.ndarray:
        """Return a word's vector (D,) in the file; for an unknown word, a random vector of length 1."""
        known = self._find_vector(word)
        return known if known is not None else self._random_vector(word if self.unknown == "each" else "")

    def _find_vector(self, word: str) -> np.ndarray | None:
        """Return a word's vector in the file, or the mean of the vectors of its parts; None if no part is known."""
        if word in self._vectors:
            return self._vectors[word]
        mean = self._look_up(word)
        if mean is None:
            parts = [self._look_up(part) for part in re.split("['’-]", word)]
            found = [vector for vector in parts if vector is not None]
            mean = np.mean(found, axis=0) if found else None
        if self.caches_texts:
            self._vectors[word] = mean
        return mean

    def _look_up(self, word: str) -> np.ndarray | None:
        """Return the file's vector of a word, or else of the capitalised word; None if both are missing."""
        found = self.file.get(word)
        return found if found is not None else self.file.get(word.capitalize())

    def _random_vector(self, seed: str) -> np.ndarray:
        """Return a random vector of length 1; the same seed always returns the same vector."""
        numbers = np.frombuffer(hashlib.sha256(seed.encode()).digest(), np.uint32)
        vector = np.random.default_rng(numbers.tolist()).standard_normal(self.dim)
        return np.array(vector / np.linalg.norm(vector), np.float32)

    def prepare(self, texts: Sequence[str]) -> None:
        """Look up and cache the vectors of all words of `texts`, before training."""
        for text in texts:
            for word in words_of(text):
                self._find_vector(word)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of words of each text, for grouping by length."""
        return [len(words_of(text)) for text in texts]

    def identity(self) -> str | None:
        """Return the sha256 of the file of word vectors, never None."""
        return file_sha256(self.path)

    def frozen_parameters(self) -> int:
        """Return the number of values in the file of word vectors."""
        return len(self.file) * self.dim

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without any known word."""
        return [text for text in texts if all(self._find_vector(word) is None for word in words_of(text))]
