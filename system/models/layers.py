"""Layers that encoders share.

Layers that encoders share: a transformer over a series of frames or words, pooling over time, an MLP.
"""

import torch
from torch import Tensor, nn

# B series, T places, W width

POSITION_OFFSET = 2  # BART's table of learned positions has two additional, unused rows at the start


class SeriesEncoder(nn.Module):
    """A transformer encoder as in BART: learned positions, layer norm, dropout, then layers of attention and
    feed-forward (post-norm, GELU).
    """

    def __init__(self, width: int, layers: int, heads: int, ffn_dim: int, positions: int, dropout: float) -> None:
        """Build the layers. positions: Maximum length of a series. ffn_dim: Width inside of feed-forward layers."""
        super().__init__()
        self.positions = nn.Embedding(positions + POSITION_OFFSET, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, ffn_dim, dropout, "gelu", batch_first=True) for _ in range(layers)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Encode padded series; results for padding must not be used. mask: False for padding.

        B series of T vectors of W values, (B, T, W), and mask (B, T) bool, at least one true per row -> (B, T, W).
        """
        index = torch.arange(values.shape[1], device=values.device) + POSITION_OFFSET
        x: Tensor = self.dropout(self.norm(values + self.positions(index)))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        return x


def head(inputs: int, hidden: int | None, outputs: int) -> nn.Module:
    """Build the layers after an encoder: one linear layer, or, if `hidden` is set, two as in `mlp`."""
    return nn.Linear(inputs, outputs) if hidden is None else mlp(inputs, hidden, outputs)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two linear layers with a ReLU between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
