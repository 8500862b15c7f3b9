"""BEATs, frozen.

BEATs, frozen: one frame per segment, or about 6.25 per second.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.base import PublishedWeights
from system.experts.segmented import Network, SegmentExpert
from system.networks.beats_published import (
    DIM,
    LICENCE,
    LIMITS,
    PARAMETERS,
    PRETRAINED,
    RATE,
    SHA256,
    Padding,
    find_address,
    frame_count,
)


class BeatsExpert(SegmentExpert, PublishedWeights):
    """Frames (T, 768) of BEATs, of 160 ms at 16 kHz. A frame is the mean of the tokens of 8 bands.
    For one vector per segment, all tokens of the segment are averaged.

    A token is the network's output for one patch of the log-mel, at one time and in one band.

    Source: Chen et al. (2023); github.com/microsoft/unilm, `beats/` at 768a3c8. On the examples in tests/golden, frames
    differ from the original's by at most a relative 1e-4. The classifier of a fine-tuned file is left out.
    """

    kind: Literal["beats"]
    padding: Padding  # alone: as if the clip were alone; original: the mask of the original's batches

    usual: ClassVar[dict[str, Any]] = {
        "weights": PRETRAINED,
        "padding": "alone",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    licence: ClassVar[str] = LICENCE
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = DIM
    parameters: ClassVar[int] = PARAMETERS

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return LIMITS

    @property
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""
        return frame_count(self.segment_seconds) / self.segment_seconds

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": find_address(Path(self.weights))}

    def known_sha256(self) -> dict[str, str]:
        """Return {"weights": sha256 of the published file} if the weights have the published file name; else {}."""
        return {"weights": SHA256} if Path(self.weights).name == PRETRAINED else {}

    def load_network(self) -> Network:
        """Build BEATs with its published weights."""
        from system.networks.beats import Beats

        network = Beats(self.padding)
        network.load_published(Path(self.weights))
        return network
