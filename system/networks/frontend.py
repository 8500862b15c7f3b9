"""What PANNs hear: the log-mel of waves, on whatever device trains."""

import torch
from torch import nn

from system.networks.published import BANDS, FFT, HIGHEST, HOP, LOWEST, RATE
from system.networks.spectrum import MelPower, dft_kernels
from system.networks.weights import Weights

# B clips, N samples, T columns


class LogMelFrontEnd(nn.Module):
    """Waves (B, N) float32, N > size // 2 -> (B, T, 64) float32 dB, T = 1 + N // hop.

    Periodic Hann window, centred, reflected at the ends, power of the published float32 kernels in float64, 64 bands
    (Slaney scale and area norm), 10 log10(max(x, 1e-10)); silence is -100 dB. By default as at 32 kHz: size 1024, hop
    320, 50 to 14,000 Hz, kernels and basis computed as they are published.
    Source: torchlibrosa 0.1.0 as PANNs call it. Deviation: in float64. The original in float32 differs from this by up
    to 1.1e-3 dB at 16 kHz and, where recordings end at 8 kHz, by 0.014 dB at 32 kHz (24 recordings of ESC-10).
    """

    def __init__(self, mel: MelPower | None = None) -> None:
        super().__init__()
        self.mel = mel or MelPower.of_kernels(*dft_kernels(FFT), mel_basis(), HOP)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        with torch.autocast(waves.device.type, enabled=False):
            return (10.0 * self.mel.centred(waves).clamp_min(1e-10).log10()).float()


def published_log_mel(weights: Weights, size: int, hop: int) -> LogMelFrontEnd:
    """With the kernels and the basis of a checkpoint of PANNs. KitError for one that lacks them."""
    bins = size // 2 + 1
    keys = (f"spectrogram_extractor.stft.conv_{part}.weight" for part in ("real", "imag"))
    real, imaginary = (weights.take(key, bins, 1, size) for key in keys)
    return LogMelFrontEnd(MelPower.of_kernels(real, imaginary, weights.take("logmel_extractor.melW", bins, BANDS), hop))


def mel_basis() -> torch.Tensor:
    """(513, 64) float32, as it is published."""
    from transformers.audio_utils import mel_filter_bank

    return torch.from_numpy(mel_filter_bank(FFT // 2 + 1, BANDS, LOWEST, HIGHEST, RATE, "slaney", "slaney")).float()
