"""Cnn14 and ResNet-38.

The networks of PANNs, Cnn14 and ResNet-38: their input, their blocks, and loading published weights.
"""

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, relu
from torch.nn.utils.fusion import fuse_conv_bn_eval

from system.networks.published import BANDS, CNN14_CHANNELS, DIM, RESNET38_LAYERS, RESNET38_STEM, Name
from system.networks.weights import Weights

# B clips, T columns of log-mel


class PannsNetwork(nn.Module, ABC):
    """Log-mel columns (B, 1, T, 64), normalised by `normalise_bands` -> maps (B, 2048, T // 32, 2), T >= 32.

    reach: A frame of the output depends on its own input, and on the input of this many frames on each side. The keys
    of the weights are those of the published checkpoint. The front-end and the classifier are left out.
    """

    reach: ClassVar[int]

    def __init__(self, dropout: float = 0.0) -> None:
        """Build the batch norm of the input. dropout: Rate of dropout between the layers."""
        super().__init__()
        self.bn0 = nn.BatchNorm1d(BANDS)
        self.dropout = nn.Dropout(dropout)

    def normalise_bands(self, columns: torch.Tensor) -> torch.Tensor:
        """Apply the batch norm of every band to log-mel columns.

        B log-mels of T columns and 64 bands in dB, (B, T, 64) -> (B, 1, T, 64).
        """
        bands: torch.Tensor = self.bn0(columns.transpose(1, 2))
        return bands.transpose(1, 2)[:, None]

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the last convolutional maps of log-mel columns from `normalise_bands`."""
        ...


class ConvBlock(nn.Module):
    """Two times 3 x 3 convolution, batch norm and ReLU; then 2 x 2 average pooling if `halves`."""

    def __init__(self, inputs: int, outputs: int, halves: bool) -> None:
        """Build both convolutions with their batch norms. halves: Whether 2 x 2 average pooling follows."""
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.pool = nn.AvgPool2d(2) if halves else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both convolutions and the pooling."""
        x = relu(self.bn1(self.conv1(x)))
        pooled: torch.Tensor = self.pool(relu(self.bn2(self.conv2(x))))
        return pooled


def convolution(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    """Build a convolution without bias whose output has the size of its input.

    Initial weights are Glorot uniform, as in PANNs.
    """
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def load_published(network: nn.Module, weights: Weights) -> None:
    """Load the published tensors `weights`, a dict by key, into a network. Raises KitError for tensors that do not fit.

    Tensors do not fit if a key is missing, a shape differs, or values are not finite. Keys that the network does not
    have are ignored.
    """
    for name, tensor in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            tensor.copy_(weights.checked_tensor(name, *tensor.shape))


def fold_batch_norms(network: nn.Module) -> None:
    """Fold every batch norm after a convolution into that convolution, for evaluation only.

    This is exact to float rounding.
    """
    for module in list(network.modules()):
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("1", "2")):  # "1", "2": of a shortcut
            first, second = (getattr(module, name, None) for name in (conv, norm))
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(first.eval(), second.eval()))
                setattr(module, norm, nn.Identity())


class Cnn14(PannsNetwork):
    """Cnn14. dropout: Rate after every block, as in PANNs and in the code of "On Metric Learning for Audio-Text
    Cross-Modal Retrieval" (2022). Deviation: that code also halves time and frequency after the last block (1.6 frames
    per second).
    """

    reach: ClassVar[int] = 4  # 2 x (1 + 2 + ... + 32) = 126 columns

    def __init__(self, dropout: float = 0.0) -> None:
        """Build the blocks of Cnn14 with untrained weights. dropout: Rate after every block."""
        super().__init__(dropout)
        for n, (inputs, outputs) in enumerate(itertools.pairwise((1, *CNN14_CHANNELS)), start=1):
            self.add_module(f"conv_block{n}", ConvBlock(inputs, outputs, halves=n < len(CNN14_CHANNELS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the last convolutional maps of log-mel columns."""
        for n in range(1, len(CNN14_CHANNELS) + 1):
            x = self.dropout(self.get_submodule(f"conv_block{n}")(x))
        return x


class ResNet38(PannsNetwork):
    """ResNet-38. dropout: Rate inside the residual blocks, and between the other layers. PANNs have 0.1 inside and 0.2
    between; "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022) has 0.2 for both.
    """

    reach: ClassVar[int] = 10  # 2 + 12 + 32 + 96 + 96 + 64 = 302 columns

    def __init__(self, dropout: float = 0.0) -> None:
        """Build the blocks of ResNet-38 with untrained weights. dropout: Rate inside and between the blocks."""
        super().__init__(dropout)
        self.conv_block1 = ConvBlock(1, RESNET38_STEM, halves=True)
        layers, inputs = OrderedDict[str, nn.Module](), RESNET38_STEM
        for n, (outputs, blocks) in enumerate(RESNET38_LAYERS, start=1):
            first = ResidualBlock(inputs, outputs, halves=n > 1, dropout=dropout)
            others = [ResidualBlock(outputs, outputs, halves=False, dropout=dropout) for _ in range(blocks - 1)]
            layers[f"layer{n}"], inputs = nn.Sequential(first, *others), outputs
        self.resnet = nn.Sequential(layers)
        self.conv_block_after1 = ConvBlock(inputs, DIM, halves=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the last convolutional maps of log-mel columns."""
        x = self.resnet(self.dropout(self.conv_block1(x)))
        x = self.conv_block_after1(self.dropout(avg_pool2d(x, 2)))
        maps: torch.Tensor = self.dropout(x)
        return maps


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions parallel to a shortcut; with `halves`, 2 x 2 average pooling precedes both.

    The second batch norm starts with weight 0, so that a new block passes its input through.
    """

    def __init__(self, inputs: int, outputs: int, halves: bool, dropout: float) -> None:
        """Build the block. halves: Whether average pooling halves time and frequency."""
        super().__init__()
        self.pool = nn.AvgPool2d(2) if halves else nn.Identity()
        self.conv1, self.bn1 = convolution(inputs, outputs), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.bn2.weight)
        self.dropout = nn.Dropout(dropout)
        self.downsample: nn.Module = (
            nn.Sequential(nn.AvgPool2d(2), convolution(inputs, outputs, 1), nn.BatchNorm2d(outputs))
            if halves
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the residual block."""
        within = self.dropout(relu(self.bn1(self.conv1(self.pool(x)))))
        return relu(self.bn2(self.conv2(within)) + self.downsample(x))


NETWORKS: dict[Name, type[PannsNetwork]] = {"resnet38": ResNet38, "cnn14": Cnn14}
