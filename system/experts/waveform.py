"""Unchanged waveforms.

Unchanged waveforms, for audio networks that are trained or computed again in every training step.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from system.experts.base import Device, ExpertSettings, Frames

FULL_SCALE = 32_768  # stored value of a sample of 1.0


def to_int16(wave: np.ndarray) -> np.ndarray:
    """Convert a wave (N,) float32 in [-1, 1] to 16-bit integers (N, 1); louder samples are clipped."""
    limits = np.iinfo(np.int16)
    scaled = wave * FULL_SCALE
    return scaled.round(out=scaled).clip(limits.min, limits.max, out=scaled).astype(np.int16)[:, None]


class Waveform(ExpertSettings):
    """Frames (N, 1), one per sample: 16-bit integers in units of 1 / 32,768; louder samples are clipped.

    Rounding errors are at most 1.6e-5 of full scale (3.1e-5 for a sample of 1.0). They are 0 for 16-bit files that have
    this expert's sample rate.
    """

    kind: Literal["waveform"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz

    usual: ClassVar[dict[str, Any]] = {"sample_rate": 32_000}
    dim: ClassVar[int] = 1
    dtype: ClassVar[str] = "int16"

    @property
    def rate(self) -> int:
        """Sample rate of the input waves, in Hz."""
        return self.sample_rate

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return float(self.sample_rate)

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        return lambda waves: [to_int16(wave) for wave in waves]
