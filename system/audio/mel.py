"""Spectrograms that several networks share."""

import functools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torchaudio.compliance.kaldi import get_mel_banks
from torchaudio.functional import mask_along_axis_iid, melscale_fbanks

from data_tools.settings import Positive, Strict
from system.devices import on_device

Scale = Literal["htk", "slaney"]

# S waves of N samples, T columns, K frequencies


@functools.lru_cache(maxsize=8)
def kaldi_filters(bands: int, fft: int, rate: int, lowest: float, highest: float) -> Tensor:
    """Return triangles (K, bands) that are linear in mel."""
    triangles, _ = get_mel_banks(bands, fft, float(rate), lowest, highest, 100.0, -500.0, 1.0)  # no warping
    return F.pad(triangles, (0, 1)).T.contiguous()  # the highest frequency has no weight


def power(spectrum: Tensor) -> Tensor:
    """Return the squares of complex magnitudes."""
    return torch.view_as_real(spectrum).square().sum(-1)


class MelSpectrogram(nn.Module):
    """Mel power of waves, in centred columns with reflected ends.

    Waves (S, N) give (S, T, bands) float64, T = 1 + N // hop.
    """

    def __init__(
        self,
        rate: int,
        window: int,
        hop: int,
        fft: int,
        bands: int,
        lowest: float,
        highest: float,
        scale: Scale = "slaney",
    ) -> None:
        super().__init__()
        self.fft, self.hop = fft, hop
        norm = "slaney" if scale == "slaney" else None
        basis = melscale_fbanks(self.fft // 2 + 1, lowest, highest, bands, rate, norm, scale)
        self.window = nn.Buffer(torch.hann_window(window, dtype=torch.float64), persistent=False)
        self.basis = nn.Buffer(basis.double(), persistent=False)

    @torch.no_grad()
    def forward(self, waves: Tensor) -> Tensor:
        waves = F.pad(waves, (0, max(0, self.fft - waves.shape[1])))  # reflection needs more samples than it adds
        size = len(self.window)
        spectrum = torch.stft(waves.double(), self.fft, self.hop, size, self.window, return_complex=True)
        return power(spectrum).transpose(1, 2) @ self.basis


class PublishedDft(nn.Module):
    """Power spectra by DFT kernels, as published checkpoints have them.

    Columns (..., size) give (..., K). They are an FFT in float64, and the rounding errors of the kernels in float32,
    which dominate in the empty bands of a recording.
    """

    def __init__(self, size: int, round_window: bool = False) -> None:
        super().__init__()
        window = torch.hann_window(size, dtype=torch.float64)
        self.window = nn.Buffer(window.float().double(), persistent=False)
        phase = 2 * math.pi / size * torch.outer(torch.arange(size).double(), torch.arange(size // 2 + 1).double())
        waves = torch.stack([phase.cos(), -phase.sin()], 2)
        kernels = (waves * (self.window if round_window else window)[:, None, None]).float()
        errors = (kernels - waves * self.window[:, None, None]).flatten(1).float()
        self.errors = nn.Buffer(errors, persistent=False)

    def forward(self, columns: Tensor) -> Tensor:
        exact = torch.view_as_real(torch.fft.rfft(columns.double() * self.window))
        with torch.autocast(columns.device.type, enabled=False):
            return (exact + (columns.float() @ self.errors).view(exact.shape)).square().sum(-1)


def audioset_log_mel(waves: Tensor, offset: float) -> Tensor:
    """Compute the input of VGGish and YAMNet.

    It is ln(mel magnitude + offset). A column is 400 samples under a periodic Hann window. The first begins with the
    wave; an incomplete one is dropped.

    Returns:
        (S, T, 64), T = 1 + (N - 400) // 160.
    """
    columns = waves.double().unfold(1, 400, 160) * torch.hann_window(400, dtype=torch.float64, device=waves.device)
    basis = on_device(kaldi_filters(64, 512, 16_000, 125.0, 7500.0), waves.device).double()
    return (torch.fft.rfft(columns, 512).abs() @ basis + offset).log().float()


@torch.no_grad()
def kaldi_log_mel(waves: Tensor, exponent: float) -> Tensor:
    """Compute Kaldi's filter bank as BEATs and EAT do.

    Source: torchaudio's `compliance.kaldi.fbank`. Deviation: float64; the original differs by 3e-4 in quiet bands.

    Args:
        waves: (S, N) at 16 kHz, N >= 400.
        exponent: Of the symmetric Hann window.

    Returns:
        (S, T, 128), T = 1 + (N - 400) // 160.
    """
    columns = waves.double().unfold(1, 400, 160)
    columns = columns - columns.mean(-1, keepdim=True)
    before = torch.cat([columns[..., :1], columns[..., :-1]], -1)
    window = torch.hann_window(400, periodic=False, dtype=torch.float64, device=waves.device) ** exponent
    found = power(torch.fft.rfft((columns - 0.97 * before) * window, 512))
    basis = on_device(kaldi_filters(128, 512, 16_000, 20.0, 8000.0), waves.device).double()
    return (found @ basis).clamp_min(2.0**-23).log().float()


class Stripes(Strict):
    """Random stripes of a log-mel, masked in training.

    Source: SpecAugment (Park et al., 2019) by torchaudio, as PaSST uses it. Deviation from torchlibrosa, which PANNs
    use: stripes are drawn as real numbers and rounded down, so that the last position of a stripe is half as frequent
    as the others.
    """

    time: int = Field(ge=0)  # number of stripes of neighbouring columns
    time_width: Positive  # their largest width plus 1, in columns of 10 ms
    bands: int = Field(ge=0)  # number of stripes of neighbouring bands
    band_width: Positive  # their largest width plus 1

    def mask(self, columns: Tensor, value: float) -> Tensor:
        """Set random stripes of each log-mel to a value.

        Args:
            columns: (S, 1, bands, T).
        """
        for axis, count, width in ((3, self.time, self.time_width), (2, self.bands, self.band_width)):
            for _ in range(count):
                columns = mask_along_axis_iid(columns, width, value, axis)
        return columns


class KaldiLogMel(nn.Module):
    """The input of PaSST and EfficientAT.

    Waves (S, N) at 32 kHz give (S, 1, 128, T), T = 1 + (N - 1) // 320. With `jitter`, the edges in training are 0 to 9
    and 14,001 to 16,000 Hz.

    Source: passt_hear21's `AugmentMelSTFT`. Deviation: never in 16 bits.
    """

    def __init__(self, jitter: bool, stripes: Stripes | None = None) -> None:
        super().__init__()
        self.jitter, self.stripes = jitter, stripes
        self.window = nn.Buffer(torch.hann_window(800, periodic=False), persistent=False)
        self.basis = nn.Buffer(kaldi_filters(128, 1024, 32_000, 0, 15_000), persistent=False)

    @torch.no_grad()
    def forward(self, waves: Tensor) -> Tensor:
        with torch.autocast(waves.device.type, enabled=False):
            waves = waves[:, 1:] - 0.97 * waves[:, :-1]
            spectrum = torch.stft(waves, 1024, 320, 800, self.window, return_complex=True)
            basis: Tensor = self.basis
            if self.training and self.jitter:
                lowest, highest = int(torch.randint(10, ())), 16_000 - int(torch.randint(2000, ()))
                basis = on_device(kaldi_filters(128, 1024, 32_000, lowest, highest), waves.device)
            columns = ((basis.T @ power(spectrum) + 1e-5).log() + 4.5)[:, None] / 5
            if self.training and self.stripes:
                columns = self.stripes.mask(columns, 0.9)  # a logarithm of 0, which is loud
            return columns
