"""Waveforms as they are, for networks that are trained or that hear every clip anew in training."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


class Waveform(ExpertSettings):
    """Frames (N, 1), a frame a sample, 16-bit integers: 32,767 is full scale, what lies beyond it is cut.

    Rounding is at most 1.6e-5 of full scale, nothing for 16-bit files at this rate.
    """

    kind: Literal["waveform"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz

    dim: ClassVar[int] = 1
    dtype: ClassVar[str] = "int16"
    cost: ClassVar[float] = 0.0005

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def frames_per_second(self) -> float:
        return float(self.sample_rate)

    def load(self, device: "torch.device") -> Frames:
        return lambda waves: [(np.clip(wave, -1.0, 1.0) * 32767.0).round().astype(np.int16)[:, None] for wave in waves]
