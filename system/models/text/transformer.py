"""A small text transformer from scratch."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from data_tools.strict import Depth, Size
from system.models.base import Heads
from system.models.costs import TOKENS, Cost, encoder_activations, encoder_flops, encoder_parameters
from system.models.text.base import Encoder, TextSettings


class Transformer(TextSettings):
    """A small text transformer from scratch over the words of the training captions."""

    kind: Literal["transformer"]
    dim: Size  # D, also the size of the audio embedding
    layers: Depth
    heads: Heads
    ffn_dim: Size
    max_words: Size
    dropout: float = Field(ge=0, lt=1)

    reads_vocabulary: ClassVar[bool] = True

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.transformer_encoder import TransformerEncoder

        return TransformerEncoder(self, vocabulary)

    def cost(self, vocabulary: int) -> Cost:
        layers = self.dim, self.layers, self.ffn_dim
        tables = (vocabulary + 1) * self.dim + (self.dim + 1) * self.dim
        parameters = tables + encoder_parameters(*layers, self.max_words)
        activations = encoder_activations(TOKENS, *layers, self.heads)
        return Cost({"text": parameters}, activations, encoder_flops(TOKENS, *layers))
