"""PANNs' ResNet-38: a block of two convolutions, sixteen residual blocks, and a block that widens to 2,048."""

from collections import OrderedDict
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, relu

from system.networks.convolutions import ConvBlock, PannsNetwork, convolution
from system.networks.published import DIM, RESNET38_LAYERS, RESNET38_STEM


class ResNet38(PannsNetwork):
    """dropout: inside the residual blocks and between the parts around them, one rate for all; PANNs have 0.1 inside
    and 0.2 between, "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022) 0.2 for both."""

    reach: ClassVar[int] = 10  # 2 + 12 + 32 + 96 + 96 + 64 = 302 columns

    def __init__(self, dropout: float = 0.0) -> None:
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
        x = self.resnet(self.dropout(self.conv_block1(x)))
        x = self.conv_block_after1(self.dropout(avg_pool2d(x, 2)))
        maps: torch.Tensor = self.dropout(x)
        return maps


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; a block that `halves` averages 2 x 2 of its input in front of both.

    From scratch its second batch norm starts at a weight of 0, so that the block passes its input through.
    """

    def __init__(self, inputs: int, outputs: int, halves: bool, dropout: float) -> None:
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
        within = self.dropout(relu(self.bn1(self.conv1(self.pool(x)))))
        return relu(self.bn2(self.conv2(within)) + self.downsample(x))
