"""VGGSound's ResNet-18 (model H): 512 values, 3.1 times per second.

Source: Chen et al., VGGSound (2020), `AVENet` with `pool avgpool`. Frames equal the original's by a relative 2e-5
(tests/golden). Deviation: the whole clip is used; the original repeats or cuts it to 10 s before it is standardised.
"Take it easy" (2022) reports 2.3 frames per second, but the public code computes 3.1.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from scipy.signal.windows import tukey
from torch import Tensor, nn
from torchvision.models import resnet18

from data_tools.settings import Strict
from system.audio.mel import power
from system.audio.network import AudioNetwork, Layers

WINDOW, HOP = 512, 159  # samples
COLUMNS = 32  # of a frame


class TimePooling(Strict):
    """Averages of `kernel` frames, `stride` frames apart.

    A clip with fewer frames gives one average of all.
    """

    kernel: int = Field(ge=1)  # frames per average
    stride: int = Field(ge=1)  # frames from one average to the next


class VggSound(AudioNetwork):
    """Frames (L, 512): the last residual layer, averaged over frequency."""

    kind: Literal["vggsound"]
    time_pooling: TimePooling | None = None  # averages of neighbouring frames; null: none

    rate: ClassVar = 16_000
    dim: ClassVar = 512
    seconds: ClassVar = (0.032, 600.0)
    mixes_batch: ClassVar = True
    addresses: ClassVar = {"H.pth.tar": "https://www.robots.ox.ac.uk/~vgg/data/vggsound/models/H.pth.tar"}

    @property
    def frame_rate(self) -> float:
        return 16_000 / HOP / COLUMNS / (self.time_pooling.stride if self.time_pooling else 1)

    def layers(self) -> Layers:
        return VggSoundLayers(self.time_pooling)


class VggSoundLayers(Layers):
    def __init__(self, pooling: TimePooling | None) -> None:
        super().__init__()
        self.pooling, self.audnet = pooling, resnet18()
        self.audnet.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
        self.audnet.fc = nn.Identity()
        window = torch.from_numpy(tukey(WINDOW, 0.25, sym=False))  # a cosine on an eighth at each end
        self.window = nn.Buffer(window, persistent=False)

    @torch.no_grad()
    def spectrogram(self, waves: Tensor) -> Tensor:
        """Compute standardised log power densities, as scipy.signal.spectrogram does.

        Returns:
            (S, 257, T).
        """
        columns = waves.double().clamp(-1, 1).unfold(1, WINDOW, HOP)
        spectrum = torch.fft.rfft((columns - columns.mean(-1, keepdim=True)) * self.window)
        density = power(spectrum) / (16_000 * self.window.square().sum())
        density[..., 1:-1] *= 2  # of negative frequencies
        levels = (density + 1e-7).log()
        deviation, mean = torch.std_mean(levels, (1, 2), correction=0, keepdim=True)
        return ((levels - mean) / (deviation + 1e-9)).float().transpose(1, 2)

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        net = self.audnet
        x = net.maxpool(net.relu(net.bn1(net.conv1(self.spectrogram(waves)[:, None]))))
        frames = net.layer4(net.layer3(net.layer2(net.layer1(x)))).mean(2)
        counts = (lengths - WINDOW).clamp(min=0) // HOP // COLUMNS + 1
        if self.pooling:
            kernel = min(self.pooling.kernel, frames.shape[2])
            frames = F.avg_pool1d(frames, kernel, self.pooling.stride)
            counts = (counts - kernel).clamp(min=0) // self.pooling.stride + 1
        return frames.transpose(1, 2), counts.clamp(1, frames.shape[2])
