"""VGGSound's ResNet-18, frozen.

VGGSound's ResNet-18 (model H): 512-d frames of the last residual layer, 3.1 per second.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_tools.settings import Strict
from system.experts.base import Frames, PublishedWeights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from system.networks.weights import Weights

RATE = 16_000  # Hz
SEGMENT = 512  # samples per column
HOP = 159  # samples from one column to the next: the original's overlap is 353
EPS = 1e-5
CHANNELS = (64, 128, 256, 512)
STRIDE = 32  # columns in a frame
BATCH = 60 * RATE  # samples of clips that are computed together
REACH = 7  # receptive field to either side, in frames: 217 columns
PIECE = 188  # frames (60 s) per piece of a longer clip


class TimePooling(Strict):
    """Averages of `kernel` frames, `stride` frames apart; a clip with fewer frames gives one average of all."""

    kernel: int = Field(ge=1)  # frames per average
    stride: int = Field(ge=1)  # frames from one average to the next


class VggSound(PublishedWeights):
    """Frames (T, 512) of VGGSound's ResNet-18, T = ceil(columns / 32).
    A wave of N samples has 1 + (N - 512) // 159 columns; clips under 0.032 s (512 samples) are padded with silence.

    A frame is the output of the last residual layer, averaged over frequency. Front-end in float64: the wave is clipped
    to +-1; scipy's spectrogram (Tukey 0.25 window of 512, hop 159, mean removed from every segment, one-sided power
    density); ln(x + 1e-7). The result is standardised by its mean and standard deviation over the whole clip.

    Source: Chen et al., VGGSound (2020), `AVENet` with `pool avgpool` (model H). Deviations: the whole clip is used,
    while the original repeats or cuts it to 10 s and standardises the result. Batch norms are folded into convolutions
    (frames differ by up to 1e-6 of the largest value). Clips over a minute are computed in overlapping pieces, which
    changes only rounding. Clips are resampled by soxr HQ, not by ffmpeg; with resampy's filters, frames differ by up to
    3 % of the largest value.

    The paper "Take it easy" (2022) reports 2.3 frames per second, but the public code computes 3.1. None of the
    poolings in the paper gives 2.3. The setting `time_pooling` averages neighbouring frames, to try other rates.
    """

    kind: Literal["vggsound"]
    time_pooling: TimePooling | None = None  # averages of neighbouring frames; null: none

    usual: ClassVar[dict[str, Any]] = {"weights": "H.pth.tar"}
    address: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/vggsound/models/H.pth.tar"
    rate: ClassVar[int] = RATE
    dim: ClassVar[int] = CHANNELS[-1]
    parameters: ClassVar[int] = 11_328_757  # with the classifier, as in the paper

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return RATE / (HOP * STRIDE) / (self.time_pooling.stride if self.time_pooling else 1)

    def load(self, device: "torch.device") -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch
        from torch.nn.functional import avg_pool1d

        from system.experts.network import apply_by_length, compute_in_pieces, exact_arithmetic, move_to_device
        from system.networks.weights import read_weights

        network = move_to_device(build_residual_network(read_weights(Path(self.weights), "model_state_dict")), device)

        @exact_arithmetic()
        def compute_frames(waves: np.ndarray) -> np.ndarray:
            """Compute the frames of waves of equal length."""
            spectra = torch.from_numpy(np.stack([spectrogram(wave) for wave in waves])[:, None]).to(device)
            series = compute_in_pieces(network, spectra, 3, STRIDE, REACH, PIECE).mean(2)  # (B, 512, T)
            if pooling := self.time_pooling:
                series = avg_pool1d(series, min(pooling.kernel, series.shape[2]), pooling.stride)
            return series.transpose(1, 2).contiguous().cpu().numpy()

        return lambda waves: apply_by_length(waves, BATCH, compute_frames)


def spectrogram(wave: np.ndarray) -> np.ndarray:
    """Compute the standardised log spectrogram of a wave.

    Wave of N samples (N,) -> (257 frequencies, T columns) float32: log power density, with mean 0 and standard
    deviation 1.
    """
    from scipy.signal import spectrogram as density

    filled = np.pad(wave.astype(np.float64), (0, max(0, SEGMENT - len(wave)))).clip(-1.0, 1.0)
    levels = np.log(density(filled, RATE, nperseg=SEGMENT, noverlap=SEGMENT - HOP)[2] + 1e-7)
    result: np.ndarray = ((levels - levels.mean()) / (levels.std() + 1e-9)).astype(np.float32)
    return result


def build_residual_network(weights: "Weights") -> "nn.Sequential":
    """Build ResNet-18 up to its last residual layer, with the checkpoint's weights.

    The result computes the maps of B spectrograms of T columns: (B, 1, 257, T) -> (B, 512, 9, ceil(T / 32)). The axes
    after the channels are frequency and time.
    """
    import torch
    from torch import nn

    def folded_convolution(key: str, norm: str, inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
        """Build a convolution of the checkpoint, with its batch norm folded in."""
        layer = weights.convolution(f"audnet.{key}", inputs, outputs, size, stride)
        return weights.fold_batch_norm(layer, f"audnet.{norm}", EPS)

    class Block(nn.Module):
        def __init__(self, key: str, inputs: int, outputs: int, stride: int) -> None:
            """Build a residual block from the checkpoint's weights that begin with `key`."""
            super().__init__()
            self.first = folded_convolution(f"{key}.conv1", f"{key}.bn1", inputs, outputs, 3, stride)
            self.second = folded_convolution(f"{key}.conv2", f"{key}.bn2", outputs, outputs, 3, 1)
            self.shortcut = (
                folded_convolution(f"{key}.downsample.0", f"{key}.downsample.1", inputs, outputs, 1, stride)
                if stride > 1
                else nn.Identity()
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Apply the residual block."""
            result: torch.Tensor = self.second(self.first(x).relu_()).add_(self.shortcut(x)).relu_()
            return result

    layers: list[nn.Module] = [
        folded_convolution("conv1", "bn1", 1, CHANNELS[0], 7, 2),
        nn.MaxPool2d(3, 2, 1),
        nn.ReLU(True),
    ]
    inputs = CHANNELS[0]
    for i, outputs in enumerate(CHANNELS, start=1):
        layers.append(Block(f"layer{i}.0", inputs, outputs, 1 if i == 1 else 2))
        layers.append(Block(f"layer{i}.1", outputs, outputs, 1))
        inputs = outputs
    return nn.Sequential(*layers)
