"""Waveforms, for networks that are computed in every step."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from system.audio.base import Device, ExpertSettings, Frames

FULL_SCALE = 32_768  # stored value of a sample of 1.0


def to_int16(wave: np.ndarray) -> np.ndarray:
    """Convert a wave (N,) float32 in [-1, 1] to 16-bit integers (N, 1); louder samples are clipped."""
    scaled = wave * FULL_SCALE
    return scaled.round(out=scaled).clip(-FULL_SCALE, FULL_SCALE - 1, out=scaled).astype(np.int16)[:, None]


class Waveform(ExpertSettings):
    """Frames (N, 1), one per sample: 16-bit integers."""

    kind: Literal["waveform"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz

    dim: ClassVar[int] = 1
    dtype: ClassVar[str] = "int16"

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def frames_per_second(self) -> float:
        return float(self.sample_rate)

    def load(self, device: Device) -> Frames:
        return lambda waves: [to_int16(wave) for wave in waves]
