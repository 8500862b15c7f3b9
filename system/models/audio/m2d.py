"""M2D and M2D-CLAP: settings.

M2D and M2D-CLAP 2025 on waveforms, trained or frozen, followed by an embedding layer. Never imports torch.
"""

from pathlib import Path
from typing import Literal, Self, cast

from pydantic import ValidationError, model_validator

from data_tools.documents.strict import mistakes
from system.models.audio.segmented import FromPublished, Network
from system.networks.m2d_published import (
    CLAP_ADDRESS,
    CLAP_GEOMETRY,
    DIM,
    LICENCE,
    Bands,
    Geometry,
    address_of,
    chosen_geometry,
)


class M2d(FromPublished):
    """M2D base on waveforms in segments, the mean of its frames, then over the segments; linear to the text size.

    Source: Niizumi et al., "Masked Modeling Duo" (2024), whose linear and fine-tuned results have `bands: stacked`.
    """

    kind: Literal["m2d"]
    geometry: str | None  # input, such as 80x608p16x16; null: read from the name of the .zip, or of the .pth's folder
    bands: Bands  # of a frame: stacked (3,840 values), as published, or their mean (768)

    @model_validator(mode="after")
    def _require_geometry(self) -> Self:
        """Raise an error if the geometry is not known."""
        try:
            chosen_geometry(self.geometry, self.weights)
        except ValueError as error:
            raise cast(ValidationError, mistakes([(("geometry",), str(error))])) from None
        return self

    @property
    def input(self) -> Geometry:
        """Input of the network."""
        return chosen_geometry(self.geometry, self.weights)

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return self.input.rate

    @property
    def vector_dim(self) -> int:
        """Number of values in the network's vectors."""
        return DIM * self.input.rows if self.bands == "stacked" else DIM

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return self.input.limits

    @property
    def title(self) -> str:
        """Name of the network, for messages."""
        return "M2D"

    @property
    def licence(self) -> str:
        """Licence of the published weights."""
        return LICENCE

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return address_of(Path(self.weights or ""))

    def build_network(self) -> Network:
        """Build the network with new weights."""
        from system.networks.m2d import M2d

        return M2d(self.input, self.bands)


class M2dClap(FromPublished):
    """M2D-CLAP 2025 on waveforms at 16 kHz in segments, its audio embedding (768), then the mean over the segments;
    linear to the text size.

    Source: Niizumi et al., "M2D-CLAP" (2025). Its text encoder is not in the audio network: BERT base, the first token
    of the last layer without projection.
    """

    kind: Literal["m2d_clap"]

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return CLAP_GEOMETRY.rate

    @property
    def vector_dim(self) -> int:
        """Number of values in the network's vectors."""
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
        """Whether the published weights were trained on captioned clips, so that ranked clips may be among them."""
        return self.has_weights

    @property
    def licence(self) -> str:
        """Licence of the published weights."""
        return LICENCE

    def published_address(self) -> str:
        """Return the address where the weights are published."""
        return CLAP_ADDRESS

    def build_network(self) -> Network:
        """Build the network with new weights."""
        from system.networks.m2d import M2dClap

        return M2dClap(CLAP_GEOMETRY)
