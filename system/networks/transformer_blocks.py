"""Blocks of a vision transformer.

Blocks of a vision transformer for audio networks that work on patches. The keys of weights are those of timm.
"""

import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-6  # of the layer norms

# B inputs, L positions, D values


class Attention(nn.Module):
    """Self-attention over all positions, or over those of a mask."""

    def __init__(self, dim: int, heads: int, qkv_bias: bool) -> None:
        """Build the linear layers. heads: Attention heads. qkv_bias: Whether query, key and value have a bias."""
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=qkv_bias), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Apply self-attention: (B, L, D) -> the same shape. mask: False for positions to ignore.

        x: B series of L vectors of D values. mask: (B, L) bool, with at least one true value per row; None: use all
        positions.
        """
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys = None if mask is None else mask[:, None, None]
        attended = F.scaled_dot_product_attention(query, key, value, keys)
        result: torch.Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        """Build both linear layers. ffn_dim: Number of values between them."""
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both linear layers."""
        result: torch.Tensor = self.fc2(F.gelu(self.fc1(x)))
        return result


class Block(nn.Module):
    """Attention, then feed-forward, each after a layer norm and added to its input: (B, L, D) -> the same."""

    def __init__(self, dim: int, heads: int, ffn_dim: int, qkv_bias: bool = True, eps: float | None = None) -> None:
        """Build the layers. eps: Constant in the denominator of the layer norms; None for 1e-6."""
        super().__init__()
        eps = EPS if eps is None else eps
        self.norm1, self.attn = nn.LayerNorm(dim, eps), Attention(dim, heads, qkv_bias)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps), FeedForward(dim, ffn_dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Apply attention and feed-forward layers, each added to its input. mask: False for positions to ignore."""
        x = x + self.attn(self.norm1(x), mask)
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class PostNormBlock(Block):
    """Attention, then feed-forward, each added to its input and followed by a layer norm: (B, L, D) -> the same."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Apply attention and feed-forward layers, each with a norm after the sum. mask: False for positions to ignore.

        mask: False for positions to ignore.
        """
        x = self.norm1(x + self.attn(x, mask))
        result: torch.Tensor = self.norm2(x + self.mlp(x))
        return result
