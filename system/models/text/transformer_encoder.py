"""A small transformer from scratch."""

from collections.abc import Sequence

import torch
from torch import nn

from system.models.similarity import Embedded
from system.models.text.encoder import TextEncoder
from system.models.text.transformer import Transformer
from system.networks.attention import SeriesEncoder, masked_mean
from system.words import words_of


class TransformerEncoder(TextEncoder):
    """Word vectors, a BART-type encoder, mean over words, linear.

    Words outside the vocabulary are skipped, so that an unseen word adds no untrained noise; a text is cut after
    `max_words` known words.
    """

    def __init__(self, settings: Transformer, vocabulary: list[str]) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.number = {word: n for n, word in enumerate(vocabulary, start=1)}  # 0 fills
        self.max_words = settings.max_words
        self._known: dict[str, list[int]] = {}
        self.words = nn.Embedding(len(vocabulary) + 1, settings.dim, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.02)
        self.encoder = SeriesEncoder(
            settings.dim, settings.layers, settings.heads, settings.ffn_dim, settings.max_words, settings.dropout
        )
        self.out = nn.Linear(settings.dim, settings.dim)

    def _numbers(self, text: str) -> list[int]:
        known = self._known if self.remembers else {}
        if text not in known:
            known[text] = [self.number[word] for word in words_of(text) if word in self.number][: self.max_words]
        return known[text]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(self._numbers(text)) for text in texts]

    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        numbers = [self._numbers(text) or [0] for text in texts]
        lengths = torch.tensor([len(n) for n in numbers])
        filled = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.long)
        for row, n in zip(filled, numbers, strict=True):
            row[: len(n)] = torch.tensor(n)
        device = self.device
        mask = (torch.arange(filled.shape[1]) < lengths[:, None]).to(device)
        return Embedded(self.out(masked_mean(self.encoder(self.words(filled.to(device)), mask), mask)))

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if not self._numbers(text)]
