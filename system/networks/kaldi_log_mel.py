"""Log-mel of PaSST and EfficientAT.

Pre-emphasis, then Kaldi's triangular mel filters; in training, their lowest and highest frequency are random.

Imports torch, so experts only import this module inside `load`.
"""

from typing import NamedTuple

import torch
from torch import nn

from system.compute.device import on_device
from system.networks.augment import draw_stripe_mask
from system.networks.passt_published import BANDS, HOP, RATE

FFT = 1024
WINDOW = 800  # samples
PRE_EMPHASIS = 0.97
SHORTEST = FFT // 2 + 2  # samples: the minimum for reflection at the ends
FLOOR = 1e-5  # of power
MEAN, SCALE = -4.5, 5.0
LOWEST_MOVES, HIGHEST_MOVES = 10, 2000  # Hz, range of the random edges in training
HIGHEST = RATE // 2 - HIGHEST_MOVES // 2  # Hz, fixed highest edge
MASKED = -MEAN / SCALE  # a masked value: the logarithm 0, which is loud

# B waves, N samples, T columns


class Masks(NamedTuple):
    """Number of stripes of a log-mel that are masked in training, and their maximum width plus 1."""

    time_stripes: int
    time_width: int  # columns
    band_stripes: int
    band_width: int  # bands


class KaldiLogMel(nn.Module):
    """B waves (B, N) float32 in [-1, 1] at 32 kHz, N > 513 -> (B, 128, T) float32, T = 1 + (N - 1) // 320.

    The steps are: pre-emphasis x[n + 1] - 0.97 x[n]; reflection at the ends; a symmetric Hann window of 800 in 1,024
    samples; power. Then: 128 triangles of Kaldi (linear in mel); (ln(x + 1e-5) + 4.5) / 5. Silence is -1.4026
    everywhere. In training with `jitter`, the lowest edge is 0 to 9 Hz and the highest 14,001 to 16,000 Hz, drawn once
    for the whole batch. Otherwise they are 0 and 15,000 Hz. In training, random stripes of each clip's spectrogram are
    masked: their logarithms are set to 0, so that their values become 0.9.

    Source: github.com/kkoutini/passt_hear21 0.0.26, `AugmentMelSTFT`. On the examples in tests/golden, results differ
    from the original's by at most 5e-4. Deviations: no 16-bit autocast; with autocast, the original rounds the
    pre-emphasis to half precision (up to 0.11). Random numbers are drawn only if they are used.
    """

    window: torch.Tensor
    basis: torch.Tensor

    def __init__(self, jitter: bool, masks: Masks | None = None) -> None:
        """Prepare the window and the mel filters. jitter: Whether the frequency limits are random in training."""
        super().__init__()
        self.jitter, self.masks = jitter, masks
        self.register_buffer("window", torch.hann_window(WINDOW, periodic=False), persistent=False)
        self.register_buffer("basis", mel_triangles(0, HIGHEST), persistent=False)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Compute the log-mel spectrograms of waves."""
        with torch.autocast(waves.device.type, enabled=False), torch.no_grad():
            waves = waves[:, 1:] - PRE_EMPHASIS * waves[:, :-1]
            spectrum = torch.stft(waves, FFT, HOP, WINDOW, self.window, return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1)
            columns: torch.Tensor = ((self._mel_filters() @ power + FLOOR).log() - MEAN) / SCALE
            return self._mask_stripes(columns) if self.training and self.masks is not None else columns

    def _mask_stripes(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the spectrograms with random stripes masked."""
        assert self.masks is not None
        (batch, bands, length), of = columns.shape, self.masks
        in_time = draw_stripe_mask(batch, length, of.time_stripes, of.time_width, columns.device)
        in_bands = draw_stripe_mask(batch, bands, of.band_stripes, of.band_width, columns.device)
        return columns.masked_fill(in_time[:, None, :] | in_bands[:, :, None], MASKED)

    def _mel_filters(self) -> torch.Tensor:
        """Return the mel filters (128, 513); in training with `jitter`, their frequency limits are random."""
        if not (self.training and self.jitter):
            return self.basis
        lowest, cut = (int(torch.randint(size, ())) for size in (LOWEST_MOVES, HIGHEST_MOVES))
        return on_device(mel_triangles(lowest, RATE // 2 - cut), self.basis.device)


def mel_triangles(lowest: float, highest: float) -> torch.Tensor:
    """Return 128 mel filters, triangles from `lowest` to `highest` Hz: (128, 513) float32.

    The filters have no weight at the highest frequency of the spectrum.
    """
    from torchaudio.compliance.kaldi import get_mel_banks

    triangles, _ = get_mel_banks(BANDS, FFT, float(RATE), lowest, highest, 100.0, -500.0, 1.0)  # no warping: 1
    return torch.nn.functional.pad(triangles, (0, 1))
