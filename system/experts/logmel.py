"""Log-mel energies as an expert: no weights, so that everything runs where no checkpoint can be had."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


class MelSettings(ExpertSettings):
    """Mel power, of which several experts take logarithms: periodic Hann window, centred, reflect padding, FFT of the
    next power of two; silence fills a clip up to one FFT. Computed in float64."""

    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)
    window_seconds: float = Field(ge=0.005, le=0.2)
    hop_seconds: float = Field(ge=0.002, le=0.2)

    usual: ClassVar[dict[str, Any]] = {"bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}

    @property
    def rate(self) -> int:
        return self.sample_rate

    def mel_power(
        self, device: "torch.device", lowest: float, highest: float, scale: str = "htk", norm: str | None = None
    ) -> "Callable[[np.ndarray], torch.Tensor]":
        """A function: wave (N,) -> (T, bands) float64, T = 1 + max(N, size of the FFT) // hop.

        lowest, highest: Hz. scale: "htk" or "slaney". norm: "slaney" for triangles of area 1 Hz, None for height 1.
        """
        import torch
        from transformers.audio_utils import mel_filter_bank

        from system.networks.spectrum import MelPower, hann

        window, hop = (round(seconds * self.sample_rate) for seconds in (self.window_seconds, self.hop_seconds))
        size = 1 << (window - 1).bit_length()
        basis = mel_filter_bank(size // 2 + 1, self.bands, lowest, highest, self.sample_rate, norm, scale)
        mel = MelPower(hann(window, size), torch.from_numpy(basis), hop).to(device)

        def power(wave: np.ndarray) -> torch.Tensor:
            filled = np.pad(wave, (0, max(0, size - len(wave))))  # reflect padding needs more samples than it adds
            return mel.centred(torch.from_numpy(filled)[None].to(device))[0]

        return power


class LogMel(MelSettings):
    """Power mel spectrogram, natural log, `stack` neighbouring columns joined into one frame.

    HTK mel scale without area norm, ln(power + 1e-5), then (x + 6) / 4, a fixed scaling that brings everyday sound to
    about [-1.4, 2], so that a linear layer may follow. Dimension bands x stack, band index fastest; a last incomplete
    stack is filled with its last column.
    """

    kind: Literal["logmel"]
    stack: int = Field(ge=1, le=64)  # columns in a frame

    usual: ClassVar[dict[str, Any]] = MelSettings.usual | {"sample_rate": 16_000, "stack": 4}
    cost: ClassVar[float] = 0.001  # a front-end in float64

    @property
    def dim(self) -> int:
        return self.bands * self.stack

    @property
    def frames_per_second(self) -> float:
        return 1.0 / (self.hop_seconds * self.stack)

    def load(self, device: "torch.device") -> Frames:
        import torch

        power = self.mel_power(device, 0.0, self.sample_rate / 2)

        def frames(wave: np.ndarray) -> np.ndarray:
            columns = ((power(wave) + 1e-5).log() + 6.0) / 4.0
            short = -len(columns) % self.stack
            columns = torch.cat([columns, columns[-1:].expand(short, -1)])
            return columns.reshape(-1, self.dim).float().cpu().numpy()

        def all_frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # for so little at a time several threads mostly wait for each other
            try:
                return [frames(wave) for wave in waves]
            finally:
                torch.set_num_threads(threads)

        return all_frames
