"""The encoder that reads a series, of frames or of words."""

import torch
from torch import nn

# B series, T places

POSITION_OFFSET = 2  # BART's table of learned positions has two rows more than positions, the first two unused


class SelfAttention(nn.Module):
    """BART-type encoder: learned positions, layer norm, dropout, then layers of attention and feed-forward
    (post-norm, GELU)."""

    def __init__(self, width: int, layers: int, heads: int, ff: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.positions = nn.Embedding(positions + POSITION_OFFSET, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, ff, dropout, "gelu", batch_first=True) for _ in range(layers)
        )

    def forward(self, values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """values (B, T, width), real (B, T) bool with at least one true a row -> (B, width), the mean over real
        places."""
        places = torch.arange(values.shape[1], device=values.device) + POSITION_OFFSET
        x = self.dropout(self.norm(values + self.positions(places)))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~real)
        weights = real.to(x.dtype) / real.sum(1, keepdim=True)
        # A padded place may hold anything, even NaN from a row of masks, so it is replaced before it is weighted.
        return torch.einsum("btw,bt->bw", x.masked_fill(~real[..., None], 0.0), weights)
