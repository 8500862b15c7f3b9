"""Retrieval models: audio encoders, text encoders, scores of embeddings."""

from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, ValidationInfo
from torch import Tensor, nn

from data_tools.errors import KitError
from data_tools.settings import Size
from system.audio import Needing

# B series, T places, W width

POSITION_OFFSET = 2  # BART's table of learned positions has two additional, unused rows at the start


Dropout = Annotated[float, Field(ge=0, lt=1)]  # share of values that are dropped in training


def _check_head_count(heads: int, info: ValidationInfo) -> int:
    """Require heads that divide the width of a layer."""
    for size in ("width", "dim"):
        if info.data.get(size, heads) % heads:
            raise ValueError(f"{size} {info.data[size]} is not a multiple of heads {heads}; change {size} or heads")
    return heads


# Of attention. Its field comes after that of `width` or `dim`.
Heads = Annotated[Size, AfterValidator(_check_head_count)]


class EncoderKind(Needing):
    """Settings of one kind of encoder."""

    @property
    def embeds_series(self) -> bool:
        """Whether an embedding is a series instead of one vector.

        A series has one vector per frame or word.
        """
        return getattr(self, "embedding", "mean") != "mean"

    @property
    def depends_on_batch(self) -> bool:
        """Whether an embedding depends on others of a training batch.

        Trained batch norms are one cause. Such a batch would get other gradients if it were embedded in chunks.
        """
        return False

    @property
    def trained_on_captions(self) -> bool:
        """Whether the published weights were trained on captioned clips.

        The ranked clips may be among them.
        """
        return False

    @property
    def is_published(self) -> bool:
        """Whether all weights are published: useful before any training."""
        return getattr(self, "head", "linear") == "none"

    def file_checksums(self) -> dict[str, str]:
        """Return the sha256 of files that determine the output.

        Weights that are stored in a run's checkpoints are left out.
        """
        return {}

    @property
    def description(self) -> str:
        """What `check` says about the encoder."""
        return self.kind


class SeriesEncoder(nn.Module):
    """A transformer encoder as in BART.

    It has learned positions, a layer norm, dropout, then layers of attention and feed-forward (post-norm, GELU).
    """

    def __init__(self, width: int, layers: int, heads: int, ffn_dim: int, positions: int, dropout: float) -> None:
        """Build the layers.

        Args:
            ffn_dim: Width inside of feed-forward layers.
            positions: Maximum length of a series.
        """
        super().__init__()
        self.positions = nn.Embedding(positions + POSITION_OFFSET, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, ffn_dim, dropout, "gelu", batch_first=True) for _ in range(layers)
        )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Encode padded series; results for padding must not be used.

        Args:
            values: (B, T, W).
            mask: (B, T) bool, false for padding; at least one true per row.

        Returns:
            (B, T, W).
        """
        index = torch.arange(values.shape[1], device=values.device) + POSITION_OFFSET
        x: Tensor = self.dropout(self.norm(values + self.positions(index)))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        return x


def head(inputs: int, settings: Any, outputs: int, name: str) -> nn.Module:
    """Build the layers after an encoder, as its `head` and `hidden` say.

    Args:
        name: Of the encoder, for messages.

    Raises:
        KitError: There are no layers, but both sizes differ.
    """
    if settings.head == "none" and inputs != outputs:
        raise KitError(f"{name} returns {inputs} values, but text.dim is {outputs}; correct dim, or set head: linear")
    if settings.head == "none":
        return nn.Identity()
    hidden = getattr(settings, "hidden", None)
    return mlp(inputs, hidden, outputs) if hidden else nn.Linear(inputs, outputs)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build two linear layers with a ReLU between them."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
