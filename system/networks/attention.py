"""The encoder that reads a series, of frames or of words, and the mean over what is real in it."""

import torch
from torch import nn

# B series, T places, W width

POSITION_OFFSET = 2  # BART's table of learned positions has two rows more than positions, the first two unused


class SeriesEncoder(nn.Module):
    """BART-type encoder: learned positions, layer norm, dropout, layers of attention and feed-forward (post-norm,
    GELU)."""

    def __init__(self, width: int, layers: int, heads: int, ffn_dim: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.positions = nn.Embedding(positions + POSITION_OFFSET, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, ffn_dim, dropout, "gelu", batch_first=True) for _ in range(layers)
        )

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """values (B, T, W), mask (B, T) bool with at least one true a row -> (B, T, W); padded places hold anything."""
        index = torch.arange(values.shape[1], device=values.device) + POSITION_OFFSET
        x = self.dropout(self.norm(values + self.positions(index)))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        result: torch.Tensor = x
        return result


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """values (B, T, W), mask (B, T) -> (B, W). What stands at padded places, even NaN, has no part in it."""
    weights = mask.to(values.dtype) / mask.sum(1, keepdim=True)
    return torch.einsum("btw,bt->bw", values.masked_fill(~mask[..., None], 0.0), weights)
