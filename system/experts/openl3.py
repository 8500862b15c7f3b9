"""OpenL3, frozen.

OpenL3 (mel256, environmental sounds, 512-d), the PyTorch port: frames of one second, one every half second.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from system.experts.base import Frames, PublishedWeights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from system.networks.frontend import MelPower
    from system.networks.weights import Weights

RATE = 48_000  # Hz; also samples per frame
HOP = 24_000  # samples from one frame to the next, and of silence before the first
FFT = 2048
FFT_HOP = 242
PAD = 982  # zeros on either side of a frame, for 199 columns
BANDS = 256
EPS = 1e-3  # of every batch norm, as in Keras
CHANNELS = (64, 64, 128, 128, 256, 256, 512)
BATCH = 8  # frames


class OpenL3(PublishedWeights):
    """Frames (T, 512), T = 1 + ceil((N - 24,000) / 24,000) for N samples at 48 kHz, 1 for less than half a second.

    Frame t is centred at t / 2 s: half a second of silence is added before the first frame, and silence fills the last
    frame. The spectrogram of each frame is normalised by the maximum of the frame, so that loudness is lost, and pure
    silence looks like a full spectrum. A frame is the maximum over the 32 x 24 map of the last convolution, without
    batch norm or ReLU.

    Source: torchopenl3 1.0.1, `PytorchOpenl3('env', 'mel256', 512)` with hop 0.5 s and `center`. DFT kernels and mel
    basis are read from the checkpoint (`speclayer.*`), since mel libraries may compute other values from the same
    settings. Deviations: the log-mel is in float64, and batch norms are folded into convolutions. The frames of this
    expert and of the original in float32 were compared with the original in float64, on 24 recordings of ESC-10 at 48
    kHz, whose bands above 8 kHz are empty. This expert differs by 3.4e-6 of the largest value, the original in float32
    by 7e-4 (median) and up to 0.036. Resampling: the original uses resampy below 0.3, which is `kaiser_best_0.2` here.
    With soxr_hq, frames differ by 1 to 6 % of the largest value. This is version 2 of the expert. Version 1, with a
    log-mel in float32, differed by 0.005 (median of these recordings) and up to 0.013.
    """

    kind: Literal["openl3"]

    usual: ClassVar[dict[str, Any]] = {"weights": "torchopenl3_mel256_env_512.pth.tar"}
    address: ClassVar[str] = (
        "https://github.com/torchopenl3/torchopenl3-models/raw/master/torchopenl3_mel256_env_512.pth.tar"
    )
    version: ClassVar[int] = 2
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = CHANNELS[-1]
    frames_per_second: ClassVar[float] = RATE / HOP
    first_centre: ClassVar[float] = 0.0
    parameters: ClassVar[int] = 4_687_042  # without the front-end's frozen kernels, as in the paper

    def load(self, device: "torch.device") -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch

        from system.experts.network import apply_by_rows, exact_arithmetic, move_to_device
        from system.networks.weights import read_weights

        weights = read_weights(Path(self.weights))
        mel = build_front_end(weights).to(device)
        scale, shift = (part.to(device) for part in weights.batch_norm_scale_and_shift("batch_normalization_1", 1, EPS))
        network = move_to_device(build_convolutions(weights), device)

        @exact_arithmetic()
        def compute_embeddings(windows: np.ndarray) -> np.ndarray:
            """Compute OpenL3's embeddings of windows of one second."""
            columns = log_mel(torch.from_numpy(windows).to(device), mel)
            return network((columns * scale + shift)[:, None]).amax((2, 3)).cpu().numpy()

        return lambda waves: apply_by_rows([one_second_windows(wave) for wave in waves], BATCH, compute_embeddings)


def one_second_windows(wave: np.ndarray) -> np.ndarray:
    """Cut a wave into overlapping windows of one second, with silence before and after the wave.

    Wave (N,) at 48 kHz -> T windows (T, 48000), a view. Half a second of zeros is added before the wave, and zeros
    after its end to complete the last window.
    """
    count = 1 + max(0, -(-(len(wave) - HOP) // HOP))
    padded = np.pad(wave, (HOP, (count + 1) * HOP - HOP - len(wave)))
    return np.lib.stride_tricks.sliding_window_view(padded, RATE)[::HOP]


def build_front_end(weights: "Weights") -> "MelPower":
    """Build the layer that computes OpenL3's mel power spectrograms, from the checkpoint's kernels and mel filters.

    The result computes the spectrograms of P waves of N samples: (P, N) -> (P, T, 256) for T columns and 256 bands.
    """
    from system.networks.frontend import MelPower

    bins = FFT // 2 + 1
    real, imaginary = (
        weights.checked_tensor(f"speclayer.dft_{part}_kernels", bins, 1, FFT) for part in ("real", "imag")
    )
    return MelPower.from_kernels(real, imaginary, weights.checked_tensor("speclayer.mel_basis", BANDS, bins).T, FFT_HOP)


def log_mel(windows: "torch.Tensor", mel: "MelPower") -> "torch.Tensor":
    """Compute OpenL3's log-mel spectrograms in dB, relative to each window's maximum.

    P windows of 48,000 samples (P, 48000) -> (P, 256 bands, 199 columns) in [-80, 0]: 10 log10 (not 20) of the mel
    amplitude, minus its maximum.
    """
    import torch

    amplitude = mel(torch.nn.functional.pad(windows, (PAD, PAD))).sqrt()
    level = 10.0 * amplitude.clamp_min(1e-10).log10()
    result: torch.Tensor = (level - level.amax((1, 2), keepdim=True)).clamp_min(-80.0).float().transpose(1, 2)
    return result


def build_convolutions(weights: "Weights") -> "nn.Sequential":
    """Build OpenL3's convolutions with the checkpoint's weights.

    The result computes the maps of P spectrograms: (P, 1, 256 bands, 199 columns) -> (P, 512 channels, 32, 24). Pooling
    is before the ReLU; the result is the same as after it, with fewer operations.
    """
    from torch import nn

    layers: list[nn.Module] = []
    inputs = 1
    for i, outputs in enumerate(CHANNELS, start=1):
        layer = weights.convolution(f"conv2d_{i}", inputs, outputs, bias=True)
        layers.append(weights.fold_batch_norm(layer, f"batch_normalization_{i + 1}", EPS))
        layers += [nn.MaxPool2d(2)] if i in (2, 4, 6) else []
        layers.append(nn.ReLU(inplace=True))
        inputs = outputs
    return nn.Sequential(*layers, weights.convolution("audio_embedding_layer", inputs, CHANNELS[-1], bias=True))
