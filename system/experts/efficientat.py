"""EfficientAT, frozen.

EfficientAT, frozen: one frame per segment, or 3.1 per second.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.efficientat_published import LIMITS, STRIDE, VARIANTS, Name
from system.networks.passt_published import HOP, RATE


class EfficientATExpert(SegmentExpert):
    """Frames (T, D) of EfficientAT at 32 kHz: the map of the last layer, averaged over frequency.
    For one vector per segment, the map is also averaged over time. D: 384 (mn04), 960 (mn10), 1,920 (mn20), 3,840
    (mn40).

    Source: Schmid et al. (2023); github.com/fschmid56/EfficientAT. On the examples in tests/golden, frames differ from
    the original's by at most a relative 1e-4 (mn40: 1e-3).
    """

    kind: Literal["efficientat"]
    network: Name  # published network, named by ten times the width of its layers
    weights: str  # the published file

    usual: ClassVar[dict[str, Any]] = {
        "network": "mn10",
        "weights": "mn10_as_mAP_471.pt",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    rate: ClassVar[int] = RATE
    parameters: ClassVar[int] = 4_876_831  # of mn10, with its classifier

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return VARIANTS[self.network].dim

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return LIMITS

    @property
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""
        return RATE / HOP / STRIDE

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": VARIANTS[self.network].address}

    def load_network(self) -> Network:
        """Build the network with its published weights."""
        from system.networks.efficientat import MobileNet, MobileNetOnWaves
        from system.networks.kaldi_log_mel import KaldiLogMel

        network = MobileNetOnWaves(KaldiLogMel(jitter=False), MobileNet(self.network), self.dim)
        network.load_published(Path(self.weights))
        return network
