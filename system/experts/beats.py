"""BEATs, frozen.

BEATs, frozen: one frame per segment, or about 6.25 per second.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.base import PublishedWeights
from system.experts.segmented import Network, SegmentExpert
from system.networks.beats_published import (
    ADDRESS,
    DIM,
    LICENCE,
    LIMITS,
    PARAMETERS,
    RATE,
    Padding,
    frame_count,
)


class BeatsExpert(SegmentExpert, PublishedWeights):
    """Frames (T, 768) of 160 ms at 16 kHz, each the mean over 8 bands, or the mean of all tokens of a segment.

    Source: Chen et al. (2023); github.com/microsoft/unilm, `beats/` at 768a3c8, to a relative 1e-4 on the stored
    examples. The predictor of a fine-tuned file is left out.
    """

    kind: Literal["beats"]
    padding: Padding  # alone: as if the clip were alone; original: the mask of the original's batches

    usual: ClassVar[dict[str, Any]] = {
        "weights": "BEATs_iter3_plus_AS2M.pt",
        "padding": "alone",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    address: ClassVar[str] = ADDRESS
    licence: ClassVar[str] = LICENCE
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = DIM
    cost: ClassVar[float] = 0.11
    parameters: ClassVar[int] = PARAMETERS

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return LIMITS

    @property
    def frames_within(self) -> float:
        """Number of frames per second of audio within a segment."""
        return frame_count(self.segment_seconds) / self.segment_seconds

    def load_network(self) -> Network:
        """Build BEATs with its published weights."""
        from system.networks.beats import Beats

        network = Beats(self.padding)
        network.take_published(Path(self.weights))
        return network
