"""BEATs: settings.

BEATs on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from system.models.audio.segmented import FromPublished, Network
from system.networks.beats_published import DIM, LICENCE, LIMITS, PRETRAINED, RATE, Padding, find_address


class Beats(FromPublished):
    """BEATs (base) on segments of 16 kHz waveforms. The vector of a segment is the mean of its tokens. The vectors of a
    clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.

    Source: Chen et al. (2023); as a retrieval encoder, AISTAT (2025), which does not publish its pooling.
    """

    kind: Literal["beats"]
    padding: Padding  # alone: as if the clip were alone; original: the mask of the original's batches
    gradient_decay: float = Field(1.0, gt=0, le=1)  # factor of the gradient for each block below; published: 0.6

    licence: ClassVar[str] = LICENCE

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return RATE

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return DIM

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return LIMITS

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return "BEATs"

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return find_address(Path(self.weights or PRETRAINED))

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.beats import Beats

        return Beats(self.padding, self.gradient_decay)
