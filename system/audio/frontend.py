"""What PANNs hear: the log-mel of 32 kHz waves, on whatever device trains, and stripes of it left out in training."""

import torch
from torch import nn

from system import schema
from system.audio.published import BANDS, FFT, HIGHEST, HOP, LOWEST, RATE

# B clips, N samples, T columns


class LogMel(nn.Module):
    """Waves (B, N) float32, N > 512 -> (B, T, 64) dB, T = 1 + N // 320.

    Periodic Hann 1024, hop 320, centred, reflected at the ends, power, 64 bands from 50 to 14,000 Hz (Slaney scale and
    area norm), 10 log10(max(x, 1e-10)); silence is -100 dB. Always float32: 16 bits hold no power spectrum.
    Source: torchlibrosa 0.1.0 as PANNs call it. Deviations: FFT for DFT by convolution, the basis computed, not read
    from the checkpoint (3e-8 of at most 0.02); together 1.5e-4 dB on test waves.
    """

    window: torch.Tensor
    basis: torch.Tensor

    def __init__(self) -> None:
        from torchaudio.functional import melscale_fbanks

        super().__init__()
        basis = melscale_fbanks(FFT // 2 + 1, LOWEST, HIGHEST, BANDS, RATE, norm="slaney", mel_scale="slaney")
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("window", torch.hann_window(FFT), persistent=False)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        with torch.autocast(waves.device.type, enabled=False):
            spectrum = torch.stft(waves, FFT, HOP, window=self.window, pad_mode="reflect", return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1)
            return 10.0 * (power.transpose(1, 2) @ self.basis).clamp_min(1e-10).log10()


def spec_augment(columns: torch.Tensor, settings: schema.SpecAugment) -> torch.Tensor:
    """(B, 1, T, bands) with stripes of every clip set to 0, which is the mean behind a batch norm.

    A stripe's width is one of 0 to `width` - 1, its place any that leaves it inside; stripes may overlap. Draws from
    the random state of the device.
    Source: Park et al., SpecAugment (2019), as torchlibrosa 0.1.0 has it. Deviations: stripes too wide for a short clip
    take all of it, where torchlibrosa stops with an error.
    """
    batch, _, length, bands = columns.shape
    in_time = _stripes(batch, length, settings.time_stripes, settings.time_width, columns.device)
    in_bands = _stripes(batch, bands, settings.band_stripes, settings.band_width, columns.device)
    return columns.masked_fill((in_time[:, :, None] | in_bands[:, None, :])[:, None], 0.0)


def _stripes(batch: int, size: int, count: int, width: int, device: torch.device) -> torch.Tensor:
    """(B, size) bool, true inside of any of `count` stripes a row."""
    widths = torch.randint(width, (batch, count, 1), device=device).clamp(max=size)
    first = (torch.rand(batch, count, 1, device=device) * (size - widths)).long()
    places = torch.arange(size, device=device)
    return ((places >= first) & (places < first + widths)).any(1)
