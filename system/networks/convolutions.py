"""What the networks of PANNs have in common: their input, their blocks, and how published weights enter them."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import relu
from torch.nn.utils.fusion import fuse_conv_bn_eval

from system.networks.published import BANDS
from system.networks.weights import Weights

# B clips, T columns of log-mel


class PannsNetwork(nn.Module, ABC):
    """Columns (B, 1, T, 64) as `standardised` gives them -> maps (B, 2048, T // 32, 2), T >= 32.

    reach: frames that one frame sees to either side. Its state is that of the published checkpoint, key by key, but for
    the front-end and the classifier.
    """

    reach: ClassVar[int]

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn0 = nn.BatchNorm1d(BANDS)
        self.dropout = nn.Dropout(dropout)

    def standardised(self, columns: torch.Tensor) -> torch.Tensor:
        """(B, T, 64) dB -> (B, 1, T, 64), every band by its batch norm."""
        bands: torch.Tensor = self.bn0(columns.transpose(1, 2))
        return bands.transpose(1, 2)[:, None]

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...


class ConvBlock(nn.Module):
    """Twice a 3 x 3 convolution, batch norm and ReLU; then averages of 2 x 2 where it `halves`."""

    def __init__(self, inputs: int, outputs: int, halves: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.pool = nn.AvgPool2d(2) if halves else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = relu(self.bn1(self.conv1(x)))
        pooled: torch.Tensor = self.pool(relu(self.bn2(self.conv2(x))))
        return pooled


def convolution(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    """Keeps the size of its input; no bias, Glorot's uniform start, as PANNs train from."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def take_published(network: nn.Module, weights: Weights) -> None:
    """Fill the network from a checkpoint by name. KitError for a key that is missing, of another shape, or not finite;
    keys that the network does not have are skipped."""
    for name, tensor in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            tensor.copy_(weights.take(name, *tensor.shape))


def fold_norms(network: nn.Module) -> None:
    """Put every batch norm behind a convolution into it, for a network that only evaluates; exact to float rounding."""
    for module in list(network.modules()):
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("1", "2")):  # "1", "2": of a shortcut
            first, second = (getattr(module, name, None) for name in (conv, norm))
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(first.eval(), second.eval()))
                setattr(module, norm, nn.Identity())
