"""Transformer blocks with timm's names of weights.

PaSST, EAT, M2D-CLAP and ATST-Frame use them.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM = 768  # of a token


def table(*shape: int, init: Callable[..., Tensor] = nn.init.trunc_normal_) -> nn.Parameter:
    """Make small random numbers to train, such as positions, (1, *shape)."""
    return nn.Parameter(init(torch.empty(1, *shape), std=0.02))


class Attention(nn.Module):
    """Self-attention over all tokens, or those in a mask.

    A mask, (S, L) bool, is true for tokens that count.
    """

    def __init__(self, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=qkv_bias), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys = None if mask is None else mask[:, None, None]
        return self.proj(F.scaled_dot_product_attention(query, key, value, keys).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each added to its input.

    A layer norm comes before each of the two, or after each sum (`post`).
    """

    def __init__(
        self, heads: int = 12, ffn_dim: int = 3072, eps: float = 1e-6, qkv_bias: bool = True, post: bool = False
    ) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.attn = nn.LayerNorm(DIM, eps), Attention(heads, qkv_bias)
        layers = {"fc1": nn.Linear(DIM, ffn_dim), "act": nn.GELU(), "fc2": nn.Linear(ffn_dim, DIM)}
        self.norm2, self.mlp = nn.LayerNorm(DIM, eps), nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attn(x, mask))
            return self.norm2(x + self.mlp(x))
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))
