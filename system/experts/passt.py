"""PaSST, frozen.

PaSST, frozen: one frame per segment, or 6.2 per second (stride 16) and 9.9 per second (stride 10).
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.passt_published import DIM, HOP, RATE, VARIANTS, Name


class PasstExpert(SegmentExpert):
    """Frames (T, 768) at 32 kHz: per segment, the mean of the class and distillation tokens; within a segment, patches
    averaged over frequency.

    Source: Koutini et al. (2022); github.com/kkoutini/passt_hear21 0.0.26, to a relative 2e-5 on the stored examples.
    Deviation: segments do not overlap (usually 10 s, as in the retrieval systems of 2023 to 2025); passt_hear21's
    wrapper for long clips has windows every 2.5 s.
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
    cost: ClassVar[float] = 0.08
    parameters: ClassVar[int] = 86_122_270  # of s16, with its three classifiers

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest segment that the network accepts, in seconds."""
        return VARIANTS[self.network].limits

    @property
    def frames_within(self) -> float:
        """Frame rate within a segment, in frames per second of audio."""
        return VARIANTS[self.network].patches(self.segment_seconds * RATE / HOP) / self.segment_seconds

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from the name of the setting that holds the path of a weight file to this path."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from the setting that holds the path of a weight file to the address of the published file."""
        return {"weights": VARIANTS[self.network].address}

    def load_network(self) -> Network:
        """Build the network with its published weights."""
        from system.networks.kaldi_log_mel import KaldiLogMel
        from system.networks.passt import Passt, PasstOnWaves

        network = PasstOnWaves(KaldiLogMel(jitter=False), Passt(self.network))
        network.take_published(Path(self.weights))
        return network
