"""EAT: settings.

EAT on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from typing import ClassVar, Literal

from system.models.audio.segmented import FromPublished, Network
from system.networks.eat_published import LICENCE, LONGEST, RATE, SHORTEST, VARIANTS, Columns, Name, Vector


class Eat(FromPublished):
    """EAT on segments of 16 kHz waveforms. The vector of a segment is its class token, or the mean of its patch tokens.
    The vectors of a clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.

    Source: Chen et al. (2024); as a retrieval encoder, AISTAT (2025), which does not publish its pooling.
    """

    kind: Literal["eat"]
    network: Name  # published network
    columns: Columns  # of the input; 1024: zeros follow a shorter clip; multiple_of_16: as if the clip were alone
    vector: Vector  # of a segment: the class token, or the mean of the patch tokens

    licence: ClassVar[str] = LICENCE

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return RATE

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return VARIANTS[self.network].dim

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return SHORTEST, LONGEST[self.columns]

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return f"EAT {self.network}"

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return VARIANTS[self.network].address

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.eat import Eat

        return Eat(self.network, self.columns, self.vector)
