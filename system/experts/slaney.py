"""Log-mel energies as the DCASE 2022 baseline computes them."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from system.experts.base import Device, Frames
from system.experts.logmel import MelSettings

FLOOR = float(np.spacing(1.0))  # 2.2e-16, added to every power
SILENCE = float(np.log(FLOOR))  # -36.04


class LogMelSlaney(MelSettings):
    """Frames (T, bands), T = 1 + N // hop: ln(power + 2.2e-16) of mel bands between two frequencies.

    Periodic Hann window, centred, reflect padding, FFT of the next power of two, Slaney's mel scale and area norm;
    silence fills a clip up to one FFT. Kept in float32: float16 has steps of 0.03 at the level of silence.
    Source: librosa 0.8.1's melspectrogram as github.com/xieh97/dcase2022-audio-retrieval calls it (5e-7 on test waves).
    Version 2; version 1 had an FFT in float32, off by up to 2.5 in bands that a recording leaves empty, and by 0.003 in
    bands up to 8 kHz. librosa from 0.9.0 on fills the ends with silence, which changes the first and the last frame by
    up to 1.5.
    """

    kind: Literal["logmel_slaney"]
    lowest: float = Field(ge=0)  # Hz
    highest: float = Field(gt=0)  # Hz

    usual: ClassVar[dict[str, Any]] = MelSettings.usual | {"sample_rate": 44_100, "lowest": 12, "highest": 8_000}
    version: ClassVar[int] = 2
    dtype: ClassVar[str] = "float32"
    cost: ClassVar[float] = 0.0005

    @model_validator(mode="after")
    def _frequencies_rise(self) -> "LogMelSlaney":
        if not self.lowest < self.highest <= self.sample_rate / 2:
            raise ValueError(
                f"lowest {self.lowest:g} and highest {self.highest:g} Hz: they must rise, up to half of sample_rate"
            )
        return self

    @property
    def dim(self) -> int:
        return self.bands

    @property
    def frames_per_second(self) -> float:
        return 1.0 / self.hop_seconds

    def load(self, device: Device) -> Frames:
        power = self.mel_power(device, self.lowest, self.highest, scale="slaney", norm="slaney")
        return lambda waves: [(power(wave) + FLOOR).log().float().cpu().numpy() for wave in waves]
