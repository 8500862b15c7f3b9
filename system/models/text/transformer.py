"""A small text transformer from scratch."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from data_tools.settings import Depth, Size
from data_tools.words import words_of
from system.models.base import Heads
from system.models.text.base import Encoder, TextSettings


class Transformer(TextSettings):
    """A small text transformer from scratch over the words of the training captions: word vectors, a BART-type encoder,
    the mean over words, and a linear layer.

    Words outside the vocabulary are skipped, so that an unseen word adds no noise. A text is cut after `max_words`
    known words.
    """

    kind: Literal["transformer"]
    dim: Size  # D, also the size of the audio embedding
    layers: Depth  # of the encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_words: Size  # of a caption; later words are ignored
    dropout: float = Field(ge=0, lt=1)  # share of values that are dropped in training

    reads_vocabulary: ClassVar[bool] = True

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder with untrained weights."""
        import torch
        from torch import nn

        from system.compute.device import on_device
        from system.models.embeddings import Embedded
        from system.models.text.encoder import TextEncoder
        from system.networks.layers import SeriesEncoder, length_mask, masked_mean

        dim, number = self.dim, {word: n for n, word in enumerate(vocabulary, start=1)}  # 0: padding
        settings = self

        class TransformerEncoder(TextEncoder):
            def __init__(self) -> None:
                """Build the word vectors, the encoder and the linear layer with untrained weights."""
                super().__init__()
                self.vocabulary = vocabulary
                self._known: dict[str, list[int]] = {}
                self.words = nn.Embedding(len(vocabulary) + 1, dim, padding_idx=0)
                nn.init.normal_(self.words.weight, std=0.02)
                sizes = settings.layers, settings.heads, settings.ffn_dim, settings.max_words
                self.encoder = SeriesEncoder(dim, *sizes, settings.dropout)
                self.out = nn.Linear(dim, dim)

            def word_indexes(self, text: str) -> list[int]:
                """Return the indexes of a text's words in the vocabulary; unknown words are left out."""
                known = self._known if self.caches_texts else {}
                if text not in known:
                    known[text] = [number[word] for word in words_of(text) if word in number][: settings.max_words]
                return known[text]

            def lengths(self, texts: Sequence[str]) -> list[int]:
                """Return the number of known words of each text, for grouping by length."""
                return [len(self.word_indexes(text)) for text in texts]

            def embed_batch(self, texts: Sequence[str]) -> Embedded:
                """Embed some texts of similar length, padded to the longest."""
                numbers = [torch.tensor(self.word_indexes(text) or [0]) for text in texts]
                filled = on_device(nn.utils.rnn.pad_sequence(numbers, batch_first=True), self.device)
                mask = length_mask(torch.tensor([len(n) for n in numbers]), filled.shape[1])
                mask = on_device(mask, self.device)
                return Embedded(self.out(masked_mean(self.encoder(self.words(filled), mask), mask)))

            def without_known_words(self, texts: Sequence[str]) -> list[str]:
                """Return the texts without any known word."""
                return [text for text in texts if not self.word_indexes(text)]

        return TransformerEncoder()
