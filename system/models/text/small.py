"""A small text transformer from scratch."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import nn

from data_tools.settings import Depth, Size
from data_tools.words import words_of
from system.audio.network import pooled_over_time
from system.devices import on_device
from system.models import Dropout, Heads, SeriesEncoder
from system.models.batch import Embedded
from system.models.text import TextEncoder, TextSettings
from system.moments.labellings import length_mask


class Transformer(TextSettings):
    """A small text transformer from scratch.

    It has vectors of the words of the training captions, a BART-type encoder, the mean over words, and a linear layer.
    Words outside the vocabulary are skipped, so that an unseen word adds no noise.
    """

    kind: Literal["transformer"]
    dim: Size  # D, also the size of the audio embedding
    layers: Depth  # of the encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_words: Size  # of a caption; later words are ignored
    dropout: Dropout  # share of values that are dropped in training

    reads_vocabulary: ClassVar = True

    def build(self, vocabulary: list[str], banks: Path) -> TextEncoder:
        return TransformerEncoder(self, vocabulary)


class TransformerEncoder(TextEncoder):
    """Captions -> embeddings (N, D)."""

    def __init__(self, settings: Transformer, vocabulary: list[str]) -> None:
        super().__init__()
        self.vocabulary, self.longest = vocabulary, settings.max_words
        self.numbers = {word: n for n, word in enumerate(vocabulary, start=1)}  # 0: padding
        self.words = nn.Embedding(len(vocabulary) + 1, settings.dim, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.02)
        sizes = settings.layers, settings.heads, settings.ffn_dim, settings.max_words
        self.encoder = SeriesEncoder(settings.dim, *sizes, settings.dropout)
        self.out = nn.Linear(settings.dim, settings.dim)

    def word_numbers(self, text: str) -> list[int]:
        """Return the numbers of a text's known words."""
        return [self.numbers[word] for word in words_of(text) if word in self.numbers][: self.longest]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(self.word_numbers(text)) for text in texts]

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        numbers = [torch.tensor(self.word_numbers(text) or [0]) for text in texts]
        filled = on_device(nn.utils.rnn.pad_sequence(numbers, batch_first=True), self.device)
        lengths = on_device(torch.tensor([len(n) for n in numbers]), self.device)
        encoded = self.encoder(self.words(filled), length_mask(lengths, filled.shape[1]))
        return Embedded(self.out(pooled_over_time(encoded, lengths, "mean")))

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if not self.word_numbers(text)]
