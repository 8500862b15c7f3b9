"""EfficientAT: settings.

EfficientAT on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from typing import Literal

from system.models.audio.segmented import FromPublished, Network, SpecAugment
from system.networks.efficientat_published import LIMITS, VARIANTS, Name


class EfficientAT(FromPublished):
    """A MobileNetV3 of EfficientAT on segments of 32 kHz waveforms. The vector of a segment is the output of the last
    layer, averaged over time and frequency. The vectors of a clip's segments are pooled, and mapped to the size of text
    embeddings by a linear layer.

    Source: Schmid et al. (2023); as a retrieval encoder, SALSA (2024), which uses mn40 on segments of 10 s.
    """

    kind: Literal["efficientat"]
    network: Name  # published network, named by ten times the width of its layers
    edge_jitter: bool  # in training, move the lowest and highest frequency of the log-mel
    spec_augment: SpecAugment | None  # stripes of the log-mel that are masked in training

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return VARIANTS[self.network].dim

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return LIMITS

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return f"EfficientAT {self.network}"

    @property
    def depends_on_batch(self) -> bool:
        """Whether a clip's embedding depends on the other clips of the batch: true if batch norms are trained."""
        return self.trainable

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return VARIANTS[self.network].address

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.efficientat import MOMENTUM, MOMENTUM_FROM_SCRATCH, MobileNet, MobileNetOnWaves
        from system.networks.kaldi_log_mel import KaldiLogMel, Masks

        network = MobileNet(self.network, MOMENTUM_FROM_SCRATCH if self.weights is None else MOMENTUM)
        masks = None if self.spec_augment is None else Masks(**self.spec_augment.model_dump())
        return MobileNetOnWaves(KaldiLogMel(self.edge_jitter, masks), network, self.vector_dim)
