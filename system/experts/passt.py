"""PaSST, frozen: a frame a segment, or 6.2 a second (stride 16) and 9.9 a second (stride 10)."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from system.experts.segmented import Network, SegmentExpert
from system.networks.passt_published import DIM, HOP, RATE, VARIANTS, Name


class PasstExpert(SegmentExpert):
    """Frames (T, 768) at 32 kHz: of a segment, the mean of the two tokens of the whole; within it, patches averaged
    over frequency.

    Source: Koutini et al. (2022); github.com/kkoutini/passt_hear21 0.0.26, to a relative 2e-5 on the stored examples.
    Deviation: segments of 10 s that do not overlap, as the retrieval systems of 2023 to 2025 have them; passt_hear21's
    own wrapper for long clips has windows every 2.5 s.
    """

    kind: Literal["passt"]
    network: Name  # which of the published ones: strides of 16 or 10, seconds or blocks
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
        return VARIANTS[self.network].limits

    @property
    def frames_within(self) -> float:
        return VARIANTS[self.network].patches(self.segment_seconds * RATE / HOP) / self.segment_seconds

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        return {"weights": VARIANTS[self.network].address}

    def load_network(self) -> Network:
        from system.networks.kaldi_log_mel import KaldiLogMel
        from system.networks.passt import Passt, PasstOnWaves

        network = PasstOnWaves(KaldiLogMel(jitter=False), Passt(self.network))
        network.take_published(Path(self.weights))
        return network
