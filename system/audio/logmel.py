"""Log-mel frames, which need no weights.

They are the kit's own, and those of the DCASE 2022 baseline.
"""

from collections.abc import Callable
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from system.audio import ExpertSettings, Frames
from system.audio.mel import MelSpectrogram, Scale

FLOOR = float(np.spacing(1.0))  # 2.2e-16, added to every power
SILENCE = float(np.log(FLOOR))  # -36.04


class _LogMel(ExpertSettings):
    """Settings of log-mel frames.

    A column is centred under a periodic Hann window, with an FFT of the next power of two.
    """

    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)  # number of mel bands
    window_seconds: float = Field(ge=0.005, le=0.2)  # length of a column's window
    hop_seconds: float = Field(ge=0.002, le=0.2)  # from one column to the next

    @property
    def rate(self) -> int:
        return self.sample_rate

    def computed_by(
        self, device: torch.device, lowest: float, highest: float, scale: Scale, scaled: Callable[[Tensor], Tensor]
    ) -> Frames:
        """Return the function from waves to frames.

        Args:
            scaled: Makes frames of mel power (T, bands).
        """
        window, hop = (round(seconds * self.sample_rate) for seconds in (self.window_seconds, self.hop_seconds))
        fft = 1 << (window - 1).bit_length()
        mel = MelSpectrogram(self.sample_rate, window, hop, fft, self.bands, lowest, highest, scale).to(device)

        def compute(wave: np.ndarray) -> np.ndarray:
            return np.asarray(scaled(mel(torch.from_numpy(wave)[None].to(device))[0]).float().cpu())

        return lambda waves: [compute(wave) for wave in waves]


class LogMel(_LogMel):
    """The kit's own log-mel: frames of `stack` neighbouring columns.

    A value is (ln(power + 1e-5) + 6) / 4 on HTK's mel scale without area norm; everyday sounds have about -1.4 to 2.
    The index of the band changes fastest; the last column is repeated to fill the last frame.
    """

    kind: Literal["logmel"]
    stack: int = Field(ge=1, le=64)  # columns per frame

    @property
    def dim(self) -> int:
        return self.bands * self.stack

    @property
    def frames_per_second(self) -> float:
        return 1.0 / (self.hop_seconds * self.stack)

    @property
    def first_centre(self) -> float:
        return self.hop_seconds * (self.stack - 1) / 2

    def load(self, device: torch.device) -> Frames:
        return self.computed_by(device, 0.0, self.sample_rate / 2, "htk", self.stacked)

    def stacked(self, power: Tensor) -> Tensor:
        """Make frames of mel power (T, bands)."""
        columns = ((power + 1e-5).log() + 6.0) / 4.0
        return torch.cat([columns, columns[-1:].expand(-len(columns) % self.stack, -1)]).reshape(-1, self.dim)


class LogMelSlaney(_LogMel):
    """The log-mel of the DCASE 2022 baseline.

    Frames (T, bands), T = 1 + N // hop, are ln(power + 2.2e-16) on Slaney's mel scale with area norm.

    Source: librosa 0.8.1's melspectrogram as github.com/xieh97/dcase2022-audio-retrieval calls it; equal by 5e-7.
    librosa 0.9.0 and later pad with silence, which changes the first and the last frame by up to 1.5.
    """

    kind: Literal["logmel_slaney"]
    lowest: float = Field(ge=0)  # Hz
    highest: float = Field(gt=0)  # Hz

    dtype: ClassVar = "float32"  # float16 has steps of 0.03 at silence
    first_centre: ClassVar = 0.0

    @model_validator(mode="after")
    def _require_rising_frequencies(self) -> Self:
        if not self.lowest < self.highest <= self.sample_rate / 2:
            raise ValueError("lowest must be below highest, and highest at most half of sample_rate")
        return self

    @property
    def dim(self) -> int:
        return self.bands

    @property
    def frames_per_second(self) -> float:
        return 1.0 / self.hop_seconds

    def load(self, device: torch.device) -> Frames:
        return self.computed_by(device, self.lowest, self.highest, "slaney", lambda power: (power + FLOOR).log())
