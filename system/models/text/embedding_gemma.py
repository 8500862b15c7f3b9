"""EmbeddingGemma 2's text encoder: settings.

Never imports torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from system.models.text.base import Encoder
from system.models.text.pretrained import VectorSettings

if TYPE_CHECKING:
    from torch import nn


class EmbeddingGemmaText(VectorSettings):
    """The text encoder of EmbeddingGemma 2: the mean of its tokens. With `hugging_face` and the same model for audio it
    is a zero-shot system. A caption follows the model's prompt for search queries, if its folder has one.

    Source: transformers' EmbeddingGemma2Model, and the pooling of its sentence-transformers form.
    """

    kind: Literal["embedding_gemma2"]

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder with its published weights."""
        from system.models.text.embedding_gemma_encoder import EmbeddingGemmaEncoder
        from system.models.text.pretrained_encoder import Bank

        is_linear = self.projection == "linear"
        return EmbeddingGemmaEncoder(self.model, self.dim, is_linear, self.trainable, Bank(banks, self.kind))

    def network_without_weights(self, config: dict[str, Any]) -> tuple["nn.Module", int]:
        """Build the network of a config.json without its weights. Returns: The network and the width of its vectors."""
        from transformers import EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel

        sizes = EmbeddingGemma2TextConfig.from_dict(config["text_config"])
        return EmbeddingGemma2TextModel(sizes), sizes.embedding_dim
