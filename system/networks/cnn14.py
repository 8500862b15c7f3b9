"""PANNs' Cnn14: six blocks of two convolutions, each but the last halves time and frequency."""

import itertools
from typing import ClassVar

import torch

from system.networks.convolutions import ConvBlock, PannsNetwork
from system.networks.published import CNN14_CHANNELS


class Cnn14(PannsNetwork):
    """dropout: behind every block, as PANNs and the code of "On Metric Learning for Audio-Text Cross-Modal Retrieval"
    (2022) have it; the latter also halves behind the last block, which leaves 1.6 frames a second of one place."""

    reach: ClassVar[int] = 4  # 2 x (1 + 2 + ... + 32) = 126 columns

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        for n, (inputs, outputs) in enumerate(itertools.pairwise((1, *CNN14_CHANNELS)), start=1):
            self.add_module(f"conv_block{n}", ConvBlock(inputs, outputs, halves=n < len(CNN14_CHANNELS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for n in range(1, len(CNN14_CHANNELS) + 1):
            x = self.dropout(self.get_submodule(f"conv_block{n}")(x))
        return x
