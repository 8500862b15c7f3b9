"""PANNs: web addresses, sizes.

The addresses are those of the published weights; the sizes are those of the network. Never imports torch.

Source: Kong et al., PANNs (2020), `ResNet38` and `Cnn14` of github.com/qiuqiangkong/audioset_tagging_cnn.
"""

from typing import Literal

Name = Literal["resnet38", "cnn14"]

RATE = 32_000  # Hz
FFT = 1024
HOP = 320  # samples from one column to the next: 100 columns per second
BANDS = 64
LOWEST, HIGHEST = 50.0, 14_000.0  # Hz
STRIDE = 32  # columns in a frame
FRAMES_PER_SECOND = RATE / (HOP * STRIDE)
SHORTEST = (STRIDE - 1) * HOP  # samples for the 32 columns of one frame, 0.31 s
DIM = 2048

ADDRESSES: dict[Name, str] = {
    "resnet38": "https://zenodo.org/record/3987831/files/ResNet38_mAP%3D0.434.pth",
    "cnn14": "https://zenodo.org/record/3987831/files/Cnn14_mAP%3D0.431.pth",
}
CNN14_CHANNELS = (64, 128, 256, 512, 1024, DIM)  # of its blocks of two convolutions
RESNET38_STEM = 64  # channels of its first block
RESNET38_LAYERS = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels, and residual blocks of two convolutions
