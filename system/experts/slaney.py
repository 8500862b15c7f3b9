"""Log-mel energies as the DCASE 2022 baseline computes them."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


class LogMelSlaney(ExpertSettings):
    """Frames (T, bands), T = 1 + N // hop: ln(power + 2.2e-16) of mel bands between two frequencies.

    Periodic Hann window, centred, reflect padding, FFT of the next power of two, Slaney's mel scale and area norm.
    Source: librosa 0.8.1's melspectrogram as github.com/xieh97/dcase2022-audio-retrieval calls it.
    """

    kind: Literal["logmel_slaney"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)
    window_seconds: float = Field(ge=0.005, le=0.2)
    hop_seconds: float = Field(ge=0.002, le=0.2)
    lowest: float = Field(ge=0)  # Hz
    highest: float = Field(gt=0)  # Hz

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def dim(self) -> int:
        return self.bands

    @property
    def frames_per_second(self) -> float:
        return 1.0 / self.hop_seconds

    def load(self, device: "torch.device") -> Frames:
        raise NotImplementedError
