"""PE-AV's text encoder: settings.

Never imports torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from system.models.text.base import Encoder
from system.models.text.pretrained import VectorSettings

if TYPE_CHECKING:
    from torch import nn


class PeAudioText(VectorSettings):
    """The text encoder of PE-AV or PE-A-Frame with its projection. It needs the score `dot_product` (PE-AV) or
    `frame_dot_products` (PE-A-Frame), since its embeddings do not have unit length.

    Source: Meta's Perception Encoder Audiovisual (2025).
    """

    kind: Literal["pe_audio"]

    frozen_scores: ClassVar[tuple[str, ...]] = ("dot_product", "frame_dot_products")

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder: a published model, followed by an untrained layer if `projection` is linear."""
        from system.models.text.pe_audio_encoder import PeAudioEncoder
        from system.models.text.pretrained_encoder import Bank

        return PeAudioEncoder(self.model, self.dim, self.projection == "linear", self.trainable, Bank(banks, self.kind))

    def network_without_weights(self, config: dict[str, Any]) -> tuple["nn.Module", int]:
        """Build an untrained network from a config.json; return the network, and the size of its vectors."""
        from transformers import AutoConfig, AutoModel

        sizes = {"model_type": "modernbert", **config["text_config"]}
        network = AutoModel.from_config(AutoConfig.for_model(**sizes))
        return network, network.config.hidden_size
