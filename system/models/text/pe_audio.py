"""PE-AV's text encoder: settings.

Never imports torch.
"""

from pathlib import Path
from typing import ClassVar, Literal

from system.models.text.base import Encoder
from system.models.text.pretrained import VectorSettings


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
