"""A pre-trained transformer's first token ([CLS]) behind two linear layers."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from data_tools.strict import Size
from system.models.costs import Cost, layer_parameters, mlp_parameters
from system.models.text.base import Encoder
from system.models.text.pretrained import PreTrained, TextSize

BERT = TextSize(108_891_648, 768, 12, 3072, 12)  # bert-base-uncased without its pooler


class FirstToken(PreTrained):
    """A pre-trained transformer's first token ([CLS]); linear to `hidden`, ReLU, linear to `dim`.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2.
    """

    kind: Literal["first_token"]
    trainable: bool
    removed: str  # characters taken out of captions
    dropout: float | None = Field(ge=0, lt=1)  # of the transformer's hidden states and attention; null: as published
    hidden: Size
    dim: Size  # D

    unknown: ClassVar[TextSize] = BERT

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.first_token_encoder import FirstTokenEncoder

        return FirstTokenEncoder(self, banks)

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        """Its file may hold more than is used."""
        tables = sum(int(config[name]) for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
        width, depth, ffn_dim = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
        return (tables + 2) * width + depth * layer_parameters(width, ffn_dim)

    def cost(self, vocabulary: int) -> Cost:
        return self.cost_with(mlp_parameters(self.size().width, self.hidden, self.dim), self.trainable)
