"""EmbeddingGemma 2's text encoder: settings.

Never imports torch.
"""

from pathlib import Path
from typing import Literal

from system.models.text.base import Encoder
from system.models.text.pretrained import VectorSettings


class EmbeddingGemmaText(VectorSettings):
    """The text encoder of EmbeddingGemma 2: the mean of its tokens. With the audio encoder `hugging_face` of the same
    model it is a zero-shot system. If the model's folder has a prompt for search queries, it precedes each caption.

    Source: transformers' EmbeddingGemma2Model, and the pooling of its sentence-transformers form.
    """

    kind: Literal["embedding_gemma2"]

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder: a published model, followed by an untrained layer if `projection` is linear."""
        from system.models.text.embedding_gemma_encoder import EmbeddingGemmaEncoder
        from system.models.text.pretrained_encoder import Bank

        is_linear = self.projection == "linear"
        return EmbeddingGemmaEncoder(self.model, self.dim, is_linear, self.trainable, Bank(banks, self.kind))
