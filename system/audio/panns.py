"""PANNs: Cnn14 and ResNet-38, 2,048 values, 3.1 times per second.

Source: Kong et al., PANNs (2020), github.com/qiuqiangkong/audioset_tagging_cnn. Frames equal the original's by a
relative 2e-5 (tests/golden). As a trained encoder: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022).
"""

import itertools
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torchaudio.functional import melscale_fbanks

from system.audio.mel import PublishedDft, Stripes
from system.audio.network import AudioNetwork, Layers, pooled_over_time

COLUMNS = 32  # of the log-mel in a frame
CNN14 = (1, 64, 128, 256, 512, 1024, 2048)  # channels of its blocks
COLUMNS_AT_ONCE = 1000  # of each wave, in float64


class Panns(AudioNetwork):
    """Frames (L, 2048): the last map, pooled over frequency.

    The vector of a segment pools them over time.
    """

    kind: Literal["panns"]
    network: Literal["cnn14_16k", "cnn14", "resnet38"]  # published network
    frequency_pooling: Literal["mean", "max_mean"] = "mean"  # max_mean: maximum plus mean, as the 2022 paper says
    time_pooling: Literal["mean", "max", "max_mean"] = "max_mean"  # of the frames, into one vector
    dropout: float = Field(0.0, ge=0, lt=1)  # in training, between the blocks; metric learning: 0.2
    stripes: Stripes | None = None  # of the log-mel, masked in training

    dim: ClassVar = 2048
    frame_rate: ClassVar = 100 / COLUMNS
    seconds: ClassVar = (0.31, 600.0)
    mixes_batch: ClassVar = True
    addresses: ClassVar = {
        name: f"https://zenodo.org/record/3987831/files/{name.replace('=', '%3D')}"
        for name in ("Cnn14_16k_mAP=0.438.pth", "Cnn14_mAP=0.431.pth", "ResNet38_mAP=0.434.pth")
    }
    sha256: ClassVar = {"Cnn14_16k_mAP=0.438.pth": "e2ee543a27919542c2ea03eabaa70b24dcd4e6c8e05621de6b67a94e4c5058e6"}

    @property
    def rate(self) -> int:
        return 16_000 if self.network == "cnn14_16k" else 32_000

    def layers(self) -> Layers:
        return (ResNet38 if self.network == "resnet38" else Cnn14)(self)


def conv(inputs: int, outputs: int, size: int = 3) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Build a convolution and its batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    nn.init.xavier_uniform_(layer.weight)  # as in PANNs
    return layer, nn.BatchNorm2d(outputs)


class ConvBlock(nn.Module):
    """Two convolutions with batch norm and ReLU.

    Pooling by 2 follows if `halves`.
    """

    def __init__(self, inputs: int, outputs: int, halves: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs)
        self.conv2, self.bn2 = conv(outputs, outputs)
        self.pool = nn.AvgPool2d(2) if halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        return self.pool(self.bn2(self.conv2(x)).relu())


class ResidualBlock(ConvBlock):
    """Two convolutions beside a shortcut.

    Both follow pooling by 2 if `halves`. A new block passes its input through.
    """

    def __init__(self, inputs: int, outputs: int, halves: bool, dropout: nn.Module) -> None:
        super().__init__(inputs, outputs, halves)
        nn.init.zeros_(self.bn2.weight)
        self.dropout = dropout
        self.downsample = nn.Sequential(self.pool, *conv(inputs, outputs, 1)) if halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dropout(self.bn1(self.conv1(self.pool(x))).relu())
        return (self.bn2(self.conv2(inner)) + self.downsample(x)).relu()


class _Panns(Layers):
    """What both networks share: the log-mel and the pooling."""

    def __init__(self, settings: Panns) -> None:
        super().__init__()
        self.settings, self.hop, rate = settings, settings.rate // 100, settings.rate
        self.dft = PublishedDft(rate * 32 // 1000)
        basis = melscale_fbanks(rate * 16 // 1000 + 1, 50.0, min(14_000.0, rate / 2), 64, rate, "slaney", "slaney")
        self.basis = nn.Buffer(basis.double(), persistent=False)
        self.bn0, self.dropout = nn.BatchNorm1d(64), nn.Dropout(settings.dropout)

    @abstractmethod
    def maps(self, x: Tensor) -> Tensor:
        """Compute the last maps of a log-mel (S, 1, T, 64)."""

    @torch.no_grad()
    def log_mel(self, waves: Tensor) -> Tensor:
        """Compute the input of the network.

        Returns:
            (S, 64, T) dB, T = 1 + N // hop.
        """
        size = len(self.dft.window)
        columns = F.pad(waves, (size // 2, size // 2), mode="reflect").unfold(1, size, self.hop)
        power = torch.cat([self.dft(part) @ self.basis for part in columns.split(COLUMNS_AT_ONCE, 1)], 1)
        return (10 * power.clamp_min(1e-10).log10()).float().transpose(1, 2)

    def frames(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.bn0(self.log_mel(waves))[:, None]
        if self.training and self.settings.stripes:
            x = self.settings.stripes.mask(x, 0.0)
        maps = self.maps(x.transpose(2, 3)).float()  # a sum over frames needs more than 16 bits
        frames = (maps.mean(3) + (maps.amax(3) if self.settings.frequency_pooling == "max_mean" else 0)).transpose(1, 2)
        return frames, ((1 + lengths // self.hop) // COLUMNS).clamp(1, frames.shape[1])

    def forward(self, waves: Tensor, lengths: Tensor) -> Tensor:
        return pooled_over_time(*self.frames(waves, lengths), self.settings.time_pooling)


class Cnn14(_Panns):
    """Six blocks of convolutions.

    A log-mel (S, 1, T, 64) gives maps (S, 2048, T // 32, 2), as in ResNet38.
    """

    def __init__(self, settings: Panns) -> None:
        super().__init__(settings)
        for n, (inputs, outputs) in enumerate(itertools.pairwise(CNN14), 1):
            self.add_module(f"conv_block{n}", ConvBlock(inputs, outputs, halves=n < 6))

    def maps(self, x: Tensor) -> Tensor:
        for n in range(1, 7):
            x = self.dropout(self.get_submodule(f"conv_block{n}")(x))
        return x


class ResNet38(_Panns):
    def __init__(self, settings: Panns) -> None:
        super().__init__(settings)
        self.conv_block1 = ConvBlock(1, 64)
        stages: dict[str, Any] = {}
        inputs = 64
        for n, (outputs, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            sizes = [(inputs, n > 1)] + [(outputs, False)] * (blocks - 1)
            stages[f"layer{n}"] = nn.Sequential(*(ResidualBlock(i, outputs, half, self.dropout) for i, half in sizes))
            inputs = outputs
        self.resnet = nn.ModuleDict(stages)
        self.conv_block_after1 = ConvBlock(512, 2048, halves=False)

    def maps(self, x: Tensor) -> Tensor:
        x = self.dropout(self.conv_block1(x))
        for stage in self.resnet.values():
            x = stage(x)
        return self.dropout(self.conv_block_after1(self.dropout(F.avg_pool2d(x, 2))))
