"""ATST-Frame: settings.

ATST-Frame on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from typing import Literal

from system.models.audio.segmented import FromPublished, Network
from system.networks.atst_frame_published import ADDRESS, DIM, LIMITS


class AtstFrame(FromPublished):
    """ATST-Frame (base) on segments of 32 kHz waveforms. The vector of a segment is the mean of its frames. The vectors
    of a clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.

    Source: Li et al. (2023). SALSA (2024) uses the network as a retrieval encoder, with segments of 10 s.
    SALSA limits the log-mel to a floor of 80 dB below the largest value of the batch (`floor: batch`).
    """

    kind: Literal["atst_frame"]
    floor: Literal["segment", "batch"]  # whose largest value sets the floor, 80 dB below it; batch: in training

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
        return "ATST-Frame"

    @property
    def depends_on_batch(self) -> bool:
        """Whether a clip's embedding depends on the other clips of the training batch: true with `floor: batch`."""
        return self.trainable and self.floor == "batch"

    @property
    def batch_property(self) -> str | None:
        """Property of a training batch that changes embeddings of clips, as text for messages; None if none does."""
        return "the lowest log-mel value (`floor: batch`)" if self.depends_on_batch else None

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return ADDRESS

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.atst_frame import AtstFrame

        return AtstFrame(self.floor == "batch")
