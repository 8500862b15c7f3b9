"""Mel power of waves.

It is computed in float64, by an FFT or by the kernels of published checkpoints. Also contains the front-end of PANNs.

Imports torch, so experts only import this module inside `load`.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from system.networks import COLUMNS_AT_ONCE
from system.networks.published import BANDS, FFT, HIGHEST, HOP, LOWEST, RATE
from system.networks.weights import Weights

# B waves, N samples, T columns, K frequencies of an FFT of `size` samples


class MelPower(nn.Module):
    """Waves (B, N), N >= size -> (B, T, bands) float64, T = 1 + (N - size) // hop: power spectra, summed in bands.

    B waves of N samples have T columns each. window: (size,). basis: (K, bands), mel filters for the K frequencies of
    the FFT. hop: Samples from one column to the next. kernel_errors: (size, 2 K), the rounding errors of published DFT
    kernels in float32. The product of the wave with these errors is added to the FFT, so that the result is that of the
    published kernels. None: only the FFT is computed.
    """

    window: torch.Tensor
    basis: torch.Tensor
    kernel_errors: torch.Tensor | None

    def __init__(
        self, window: torch.Tensor, basis: torch.Tensor, hop: int, kernel_errors: torch.Tensor | None = None
    ) -> None:
        """Store the window, the mel filters and the hop. kernel_errors: Rounding errors of published DFT kernels."""
        super().__init__()
        self.hop = hop
        self.register_buffer("window", window.double(), persistent=False)
        self.register_buffer("basis", basis.double(), persistent=False)
        self.register_buffer("kernel_errors", kernel_errors, persistent=False)

    @classmethod
    def from_kernels(cls, real: torch.Tensor, imaginary: torch.Tensor, basis: torch.Tensor, hop: int) -> "MelPower":
        """Build the layer from a checkpoint's float32 DFT kernels (`real`, `imaginary`) and mel filters (`basis`).

        real, imaginary: (K, 1, size), for K frequencies: cosines and sines times the window. hop: Samples from one
        column to the next. The layer computes an FFT, and adds the product of the wave with the rounding errors of the
        kernels. In empty bands of a recording these errors dominate. 24 recordings of ESC-10 at 48 kHz were computed
        with OpenL3's kernels. The result differs from that of an FFT without the errors by up to 1.0 dB (median of the
        recordings: 0.5 dB), and from that of an FFT in float32 by up to 6.2 dB (median: 5.5 dB).
        """
        kernels = torch.cat([real, imaginary], 1).double().permute(2, 0, 1)  # (size, K, 2)
        window = kernels[:, 0, 0]  # the cosine of frequency 0 is 1
        exact = torch.view_as_real(torch.fft.rfft(window.diag()))
        return cls(window, basis, hop, (kernels - exact).flatten(1).float())

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the mel power spectrograms of waves."""
        columns = waves.unfold(1, len(self.window), self.hop)
        return torch.cat([self._power(part) for part in columns.split(max(1, COLUMNS_AT_ONCE // len(waves)), 1)], 1)

    def compute_centred(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute mel power spectrograms with centred columns, after reflecting the waves at both ends.

        B waves (B, N), N > size // 2 -> T columns each, (B, T, bands), T = 1 + N // hop.
        """
        result: torch.Tensor = self(F.pad(waves, (len(self.window) // 2,) * 2, mode="reflect"))
        return result

    def _power(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the mel power of windows of waves: (B, T, size) -> (B, T, bands)."""
        spectrum = torch.view_as_real(torch.fft.rfft(columns * self.window))
        if self.kernel_errors is not None:
            spectrum += (columns.float() @ self.kernel_errors).view(spectrum.shape)
        return spectrum.square().sum(-1) @ self.basis


def padded_hann(window: int, size: int) -> torch.Tensor:
    """Return a periodic Hann window of `window` samples with zeros on both sides, (size,) float64."""
    before = (size - window) // 2
    return F.pad(torch.hann_window(window, dtype=torch.float64), (before, size - window - before))


def dft_kernels(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosine and sine kernels of a DFT with a periodic Hann window.

    Both are (size // 2 + 1, 1, size) float32.
    Source: torchlibrosa 0.1.0. Deviation: one number of 14,000 differs in its last bit.
    """
    phase = 2 * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size
    window = padded_hann(size, size).numpy()
    real, imaginary = (torch.from_numpy(part * window).float()[:, None] for part in (np.cos(phase), -np.sin(phase)))
    return real, imaginary


class LogMelFrontEnd(nn.Module):
    """B waves (B, N) float32, N > size // 2 -> (B, T, 64) float32 dB, T = 1 + N // hop.

    The steps are: a centred periodic Hann window, reflection at the ends, power by the published float32 kernels in
    float64, 64 bands (Slaney scale and area norm), and 10 log10(max(x, 1e-10)). Silence is -100 dB. The default
    settings are for 32 kHz: size 1024, hop 320, 50 to 14,000 Hz. Their computed kernels and mel filters equal the
    published ones.
    Source: torchlibrosa 0.1.0 with the arguments of PANNs. Deviation: float64. The original in float32 differs from
    this by up to 1.1e-3 dB at 16 kHz. For recordings without sound above 8 kHz (24 of ESC-10), it differs by 0.014 dB
    at 32 kHz.
    """

    def __init__(self, mel: MelPower | None = None) -> None:
        """Store `mel`, the layer for the mel power spectrogram; None for that of PANNs at 32 kHz."""
        super().__init__()
        self.mel = mel or MelPower.from_kernels(*dft_kernels(FFT), mel_basis(), HOP)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel spectrograms of waves in dB."""
        with torch.autocast(waves.device.type, enabled=False):
            return (10.0 * self.mel.compute_centred(waves).clamp_min(1e-10).log10()).float()


def published_log_mel(weights: Weights, size: int, hop: int) -> LogMelFrontEnd:
    """Build the log-mel layer of a PANNs checkpoint from the checkpoint's kernels and mel filters.

    Raises KitError if the kernels or the mel basis are missing in the checkpoint.
    """
    bins = size // 2 + 1
    keys = (f"spectrogram_extractor.stft.conv_{part}.weight" for part in ("real", "imag"))
    real, imaginary = (weights.checked_tensor(key, bins, 1, size) for key in keys)
    return LogMelFrontEnd(
        MelPower.from_kernels(real, imaginary, weights.checked_tensor("logmel_extractor.melW", bins, BANDS), hop)
    )


def mel_basis() -> torch.Tensor:
    """Return the mel filters of PANNs, (513, 64) float32, equal to the published filters."""
    from transformers.audio_utils import mel_filter_bank

    return torch.from_numpy(mel_filter_bank(FFT // 2 + 1, BANDS, LOWEST, HIGHEST, RATE, "slaney", "slaney")).float()
