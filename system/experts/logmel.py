"""Log-mel energies as an expert: no weights, so that everything runs where no checkpoint can be had."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


class LogMel(ExpertSettings):
    """Power mel spectrogram, natural log, `stack` neighbouring columns joined into one frame.

    Periodic Hann window, centred, reflect padding, HTK mel scale without area norm, ln(power + 1e-5), then (x + 6) /
    4, a fixed scaling that brings everyday sound to about [-1.4, 2], so that a linear layer may follow. Dimension
    bands x stack, band index fastest; a last incomplete stack is filled with its last column.
    """

    kind: Literal["logmel"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz
    bands: int = Field(ge=8, le=256)
    window_seconds: float = Field(ge=0.005, le=0.2)
    hop_seconds: float = Field(ge=0.002, le=0.2)
    stack: int = Field(ge=1, le=64)  # columns in a frame

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def dim(self) -> int:
        return self.bands * self.stack

    @property
    def frames_per_second(self) -> float:
        return 1.0 / (self.hop_seconds * self.stack)

    @property
    def cost(self) -> float:
        return 0.0002

    def load(self, device: "torch.device") -> Frames:
        import torch
        from torchaudio.functional import melscale_fbanks

        window = round(self.window_seconds * self.sample_rate)
        hop = round(self.hop_seconds * self.sample_rate)
        size = 1 << (window - 1).bit_length()
        hann = torch.hann_window(window).to(device)
        basis = melscale_fbanks(size // 2 + 1, 0.0, self.sample_rate / 2, self.bands, self.sample_rate).to(device)

        def frames(wave: np.ndarray) -> np.ndarray:
            # Reflect padding needs more samples than it adds; silence fills what a very short clip lacks.
            filled = torch.from_numpy(np.pad(wave, (0, max(0, size - len(wave))))).to(device)
            spectrum = torch.stft(filled, size, hop, window, hann, pad_mode="reflect", return_complex=True)
            power = spectrum.abs().square()
            columns = ((power.T @ basis + 1e-5).log() + 6.0) / 4.0
            short = -len(columns) % self.stack
            columns = torch.cat([columns, columns[-1:].expand(short, -1)])
            return columns.reshape(-1, self.dim).cpu().numpy()

        def all_frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # for so little at a time several threads mostly wait for each other
            try:
                return [frames(wave) for wave in waves]
            finally:
                torch.set_num_threads(threads)

        return all_frames
