"""M2D and M2D-CLAP, frozen.

M2D and M2D-CLAP 2025, frozen: one frame per segment, or about 6.25 per second (25 with patches of 16 x 4).
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.base import PublishedWeights
from system.experts.segmented import Network, SegmentExpert
from system.networks.m2d_input import M2dInput
from system.networks.m2d_published import (
    CLAP_ADDRESS,
    CLAP_FILE,
    CLAP_GEOMETRY,
    CLAP_PARAMETERS,
    DIM,
    LICENCE,
    PARAMETERS,
    find_address,
)


class M2dExpert(M2dInput, SegmentExpert, PublishedWeights):
    """Frames (T, D) of M2D, one per column of patches, or their mean over a segment.
    D: 3,840 if the vectors of the five bands are joined, 768 for the mean of the bands.

    Source: Niizumi et al. (2024); github.com/nttcslab/m2d at f0c4128, `examples/portable_m2d.py`. On the examples in
    tests/golden, frames differ from the original's by at most a relative 2e-5 (patches of 16 x 4 and 32 kHz were not
    compared). The classifier of a fine-tuned file is left out.
    """

    kind: Literal["m2d"]

    usual: ClassVar[dict[str, Any]] = {
        "weights": "m2d_vit_base-80x608p16x16-221006-mr7.zip",
        "geometry": None,
        "bands": "stacked",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    licence: ClassVar[str] = LICENCE
    parameters: ClassVar[int] = PARAMETERS

    @property
    def rate(self) -> int:
        """Sample rate of the expert's input waves, in Hz."""
        return self.input_geometry.rate

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return self.frame_size

    @property
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""
        return self.input_geometry.frame_count(self.segment_seconds) / self.segment_seconds

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": find_address(Path(self.weights))}

    def load_network(self) -> Network:
        """Build M2D with its published weights."""
        from system.networks.m2d import M2d

        network = M2d(self.input_geometry, self.bands)
        network.load_published(Path(self.weights))
        return network


class M2dClapExpert(SegmentExpert, PublishedWeights):
    """Frames (T, 768) of M2D-CLAP 2025 at 16 kHz.
    With output `clip`, a segment has its audio embedding as the only frame. With output `frames`, a frame is the mean
    of the tokens of the five bands.

    Source: Niizumi et al. (2025); github.com/nttcslab/m2d at f0c4128. On the examples in tests/golden, frames differ
    from the original's by at most a relative 2e-5.
    """

    kind: Literal["m2d_clap"]

    usual: ClassVar[dict[str, Any]] = {"weights": CLAP_FILE, "segment_seconds": 10.0, "output": "clip"}
    address: ClassVar[str] = CLAP_ADDRESS
    licence: ClassVar[str] = LICENCE
    rate: ClassVar[int] = CLAP_GEOMETRY.rate
    dim: ClassVar[int] = DIM
    parameters: ClassVar[int] = CLAP_PARAMETERS

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return CLAP_GEOMETRY.limits

    @property
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""
        return CLAP_GEOMETRY.frame_count(self.segment_seconds) / self.segment_seconds

    def load_network(self) -> Network:
        """Build M2D-CLAP with its published weights."""
        from system.networks.m2d import M2dClap

        network = M2dClap(CLAP_GEOMETRY)
        network.load_published(Path(self.weights))
        return network
