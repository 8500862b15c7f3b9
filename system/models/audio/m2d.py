"""M2D and M2D-CLAP: settings.

M2D and M2D-CLAP 2025 on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from pathlib import Path
from typing import ClassVar, Literal

from system.models.audio.segmented import FromPublished, Network
from system.networks.m2d_input import M2dInput
from system.networks.m2d_published import (
    CLAP_ADDRESS,
    CLAP_GEOMETRY,
    DIM,
    LICENCE,
    find_address,
)


class M2d(M2dInput, FromPublished):
    """M2D (base) on segments of waveforms. The vector of a segment is the mean of its frames. The vectors of a clip's
    segments are pooled, and mapped to the size of text embeddings by a linear layer.

    Source: Niizumi et al., "Masked Modeling Duo" (2024). The results of linear evaluation and of
    fine-tuning in that paper correspond to the setting `bands: stacked`.
    """

    kind: Literal["m2d"]

    licence: ClassVar[str] = LICENCE

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return self.input_geometry.rate

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return self.frame_size

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return "M2D"

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return find_address(Path(self.weights or ""))

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.m2d import M2d

        return M2d(self.input_geometry, self.bands)


class M2dClap(FromPublished):
    """M2D-CLAP 2025 on segments of 16 kHz waveforms. The vector of a segment is its audio embedding (768 values). The
    vectors of a clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.

    Source: Niizumi et al., "M2D-CLAP" (2025). Its text encoder is a separate model: BERT base, with the first token of
    the last layer, without projection.
    """

    kind: Literal["m2d_clap"]

    licence: ClassVar[str] = LICENCE

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return CLAP_GEOMETRY.rate

    @property
    def vector_dim(self) -> int:
        """Number of values in the vector that the network returns per segment."""
        return DIM

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return CLAP_GEOMETRY.limits

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return "M2D-CLAP 2025"

    @property
    def trained_on_captions(self) -> bool:
        """Whether the published weights were trained on captioned clips, perhaps including the ranked clips."""
        return self.has_weights

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return CLAP_ADDRESS

    def build_network(self) -> Network:
        """Build the network with untrained weights."""
        from system.networks.m2d import M2dClap

        return M2dClap(CLAP_GEOMETRY)
