"""Log-mel of BEATs and EAT.

Computes Kaldi's filter bank at 16 kHz, in float64. Imports torch, so experts only import this module inside `load`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from system.networks import COLUMNS_AT_ONCE

Window = Literal["povey", "hann"]

RATE = 16_000  # Hz
FFT = 512
WINDOW = 400  # samples
HOP = 160  # samples from one column to the next: 100 columns per second
BANDS = 128
LOWEST, HIGHEST = 20.0, 8000.0  # Hz
PRE_EMPHASIS = 0.97
MIN_POWER = 2.0**-23
POVEY = 0.85  # exponent of a Hann window

# B waves, N samples, T columns


class KaldiFbank(nn.Module):
    """Waves (B, N) in [-1, 1] at 16 kHz, N >= 400 -> (B, T, 128) float32, T = 1 + (N - 400) // 160, natural logarithm.

    Each column has 400 samples. Its mean is subtracted. Pre-emphasis follows: x[j] - 0.97 x[j - 1] (the first
    sample: times 0.03). Then come a symmetric window (Povey: a Hann window to the power of 0.85), and zeros up to 512
    samples. The power is summed by 128 triangles, linear in mel from 20 to 8,000 Hz. The value is ln(max(x, 2**-23)).
    The ends are not padded. There is no dither, and no value for the total energy.
    Source: torchaudio 2.11 `compliance.kaldi.fbank`, as BEATs and EAT call it. Deviation: float64; the original in
    float32 differs from it by up to 3e-4 in quiet bands.
    """

    window: torch.Tensor
    basis: torch.Tensor

    def __init__(self, window: Window, scale: float = 1.0) -> None:
        """Prepare the window and the mel filters. scale: Factor that multiplies the samples of waves."""
        super().__init__()
        self.scale = scale
        self.register_buffer("window", symmetric_window(window), persistent=False)
        self.register_buffer("basis", mel_triangles().double().T.contiguous(), persistent=False)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel spectrograms of waves."""
        with torch.autocast(waves.device.type, enabled=False), torch.no_grad():
            columns = (waves * self.scale).unfold(1, WINDOW, HOP)
            parts = columns.split(max(1, COLUMNS_AT_ONCE // len(waves)), 1)
            return torch.cat([self._log_mel(part.double()) for part in parts], 1)

    def _log_mel(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel of columns of samples: (B, T, 400) -> (B, T, 128) float32."""
        columns = columns - columns.mean(-1, keepdim=True)
        before = torch.cat([columns[..., :1], columns[..., :-1]], -1)
        windowed = F.pad((columns - PRE_EMPHASIS * before) * self.window, (0, FFT - WINDOW))
        power = torch.view_as_real(torch.fft.rfft(windowed)).square().sum(-1)
        return (power @ self.basis).clamp_min(MIN_POWER).log().float()


def column_counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of spectrogram columns of waves with `lengths` (B,) samples; at least 1 per wave."""
    return ((lengths - WINDOW).clamp(min=0) // HOP) + 1


def symmetric_window(window: Window) -> torch.Tensor:
    """Return the symmetric Hann or Povey window of a spectrogram's columns, (400,) float64."""
    hann = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64)
    return hann**POVEY if window == "povey" else hann


def mel_triangles() -> torch.Tensor:
    """Return 128 mel filters of Kaldi: (128, 257) float32, without weight at the highest frequency of the spectrum."""
    from torchaudio.compliance.kaldi import get_mel_banks

    triangles, _ = get_mel_banks(BANDS, FFT, float(RATE), LOWEST, HIGHEST, 100.0, -500.0, 1.0)  # no warping: 1
    return F.pad(triangles, (0, 1))
