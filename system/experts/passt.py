"""PaSST, frozen.

PaSST, frozen: one frame per segment, or 6.2 per second (stride 16) and 9.9 per second (stride 10).
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.passt_published import DIM, HOP, RATE, VARIANTS, Name


class PasstExpert(SegmentExpert):
    """Frames (T, 768) of PaSST at 32 kHz.
    With output `clip`, the frame of a segment is the mean of the class and distillation tokens. With output `frames`,
    a frame is the mean of the tokens of all patches at the same time.

    Source: Koutini et al. (2022); github.com/kkoutini/passt_hear21 0.0.26. On the examples in tests/golden, frames
    differ from the original's by at most a relative 2e-5.
    Deviation: segments do not overlap (usually 10 s, as in the retrieval systems of 2023 to 2025). The wrapper of
    passt_hear21 for long clips uses a window every 2.5 s.
    """

    kind: Literal["passt"]
    network: Name  # published network, named by its stride (16 or 10), its seconds or its size
    weights: str  # the published file

    usual: ClassVar[dict[str, Any]] = {
        "network": "s16",
        "weights": "passt-s-f128-p16-s16-ap.468.pt",
        "segment_seconds": 10.0,
        "output": "clip",
    }
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = DIM
    parameters: ClassVar[int] = 86_122_270  # of s16, with its three classifiers

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return VARIANTS[self.network].limits

    @property
    def frame_rate_in_segment(self) -> float:
        """Frame rate within a segment, in frames per second of audio."""
        return VARIANTS[self.network].patches(self.segment_seconds * RATE / HOP) / self.segment_seconds

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": VARIANTS[self.network].address}

    def load_network(self) -> Network:
        """Build the network with its published weights."""
        from system.networks.kaldi_log_mel import KaldiLogMel
        from system.networks.passt import Passt, PasstOnWaves

        network = PasstOnWaves(KaldiLogMel(jitter=False), Passt(self.network))
        network.load_published(Path(self.weights))
        return network
