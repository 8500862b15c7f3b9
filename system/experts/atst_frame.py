"""ATST-Frame, frozen.

ATST-Frame, frozen: one frame per segment, or 25 per second.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.atst_frame_published import (
    ADDRESS,
    DIM,
    HOP,
    LIMITS,
    PARAMETERS,
    RATE,
    RATE_INSIDE,
    SLICE,
)


class AtstFrameExpert(SegmentExpert):
    """Frames (T, 768) of ATST-Frame, of 40 ms at 32 kHz, or their mean over a segment.
    Log-mel values more than 80 dB below the largest value of the segment are raised to 80 dB below it.

    Source: Li et al. (2023); github.com/OptimusPrimus/salsa. On the examples in tests/golden, frames differ from the
    original's by at most a relative 2e-5. Deviation: the original uses the largest value of the batch, so that a clip's
    frames depend on the other clips (by up to 0.16 in the log-mel's units).
    """

    kind: Literal["atst_frame"]
    weights: str  # the published file

    usual: ClassVar[dict[str, Any]] = {"weights": "atstframe_base.ckpt", "segment_seconds": 10.0, "output": "clip"}
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
        return RATE_INSIDE / HOP / SLICE

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": ADDRESS}

    def load_network(self) -> Network:
        """Build ATST-Frame with its published weights."""
        from system.networks.atst_frame import AtstFrame

        network = AtstFrame(is_floor_of_batch=False)
        network.load_published(Path(self.weights))
        return network
