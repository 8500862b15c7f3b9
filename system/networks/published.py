"""The networks that PANNs publish: where, for what input, and of which convolutions. Never imports torch.

Source: Kong et al., PANNs (2020), `ResNet38` and `Cnn14` of github.com/qiuqiangkong/audioset_tagging_cnn."""

import itertools
from dataclasses import dataclass
from typing import Literal

Name = Literal["resnet38", "cnn14"]

RATE = 32_000  # Hz
FFT = 1024
HOP = 320  # samples from a column to the next: 100 a second
BANDS = 64
LOWEST, HIGHEST = 50.0, 14_000.0  # Hz
STRIDE = 32  # columns in a frame
FRAMES_PER_SECOND = RATE / (HOP * STRIDE)
SHORTEST = (STRIDE - 1) * HOP  # samples that make the 32 columns of one frame, 0.31 s
DIM = 2048

ADDRESSES: dict[Name, str] = {
    "resnet38": "https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth",
    "cnn14": "https://zenodo.org/record/3987831/files/Cnn14_mAP%3D0.431.pth",
}
CNN14_CHANNELS = (64, 128, 256, 512, 1024, DIM)  # of its blocks of two convolutions
RESNET38_STEM = 64  # channels of its first block
RESNET38_LAYERS = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels, and residual blocks of two convolutions


@dataclass(frozen=True)
class Convolution:
    """size: 3 for 3 x 3. scale: columns, and bands, that one place of its output stands for."""

    inputs: int
    outputs: int
    size: int
    scale: int


def _pair(inputs: int, outputs: int, scale: int) -> list[Convolution]:
    return [Convolution(inputs, outputs, 3, scale), Convolution(outputs, outputs, 3, scale)]


def _cnn14() -> list[Convolution]:
    steps = itertools.pairwise((1, *CNN14_CHANNELS))
    return [layer for n, (inputs, outputs) in enumerate(steps) for layer in _pair(inputs, outputs, 2**n)]


def _resnet38() -> list[Convolution]:
    layers, inputs = _pair(1, RESNET38_STEM, 1), RESNET38_STEM
    for n, (outputs, blocks) in enumerate(RESNET38_LAYERS, start=1):
        layers += [Convolution(inputs, outputs, 1, 2**n)] if n > 1 else []  # around the first block
        for _ in range(blocks):
            layers += _pair(inputs, outputs, 2**n)
            inputs = outputs
    return layers + _pair(inputs, DIM, STRIDE)


CONVOLUTIONS: dict[Name, list[Convolution]] = {"resnet38": _resnet38(), "cnn14": _cnn14()}
