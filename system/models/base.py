"""What audio and text encoders share: the interface of their settings, and layers."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, ValidationInfo
from torch import Tensor, nn

from data_tools.settings import Size
from system.audio.base import Needing

# B series, T places, W width

POSITION_OFFSET = 2  # BART's table of learned positions has two additional, unused rows at the start


def _check_head_count(heads: int, info: ValidationInfo) -> int:
    """Return the number of attention heads; raise an error unless the layer's width is a multiple of it."""
    for size in ("width", "dim"):
        if info.data.get(size, heads) % heads:
            raise ValueError(f"{size} {info.data[size]} is not a multiple of heads {heads}; change {size} or heads")
    return heads


Heads = Annotated[
    Size, AfterValidator(_check_head_count)
]  # of attention; its field comes after that of `width` or `dim`


def excluded(names: Iterable[str]) -> Any:
    """Return dotted names of settings, such as network.weights, as pydantic's `exclude`."""
    found: dict[str, Any] = {}
    for first, _, rest in (name.partition(".") for name in names):
        found[first] = {rest} if rest else True
    return found


class EncoderKind(Needing):
    """Settings of one kind of encoder, as in a recipe.

    file_settings: Names of the settings that contain paths on this machine. A trained model may be opened with other
    paths.
    """

    kind: str

    file_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    def embeds_series(self) -> bool:
        """Whether the embedding of a clip or text is a series (one vector per frame or word) instead of one vector."""
        return False

    @property
    def depends_on_batch(self) -> bool:
        """Whether an embedding depends on the other clips or captions of a training batch.

        Trained batch norms are one cause. If true, a batch that is embedded in chunks would get other gradients.
        """
        return False

    @property
    def trained_on_captions(self) -> bool:
        """Whether the published weights were trained on captioned clips, perhaps including the ranked clips."""
        return False

    @property
    def is_published(self) -> bool:
        """Whether all weights of the encoder are published, so that it is useful before any training."""
        return False

    def file_checksums(self) -> dict[str, str]:
        """Return a dict from file name to sha256, for every file that determines the encoder's output.

        Weights that are stored in a run's checkpoints are left out.
        """
        return {}

    @property
    def description(self) -> str:
        """What `check` says about the encoder."""
        return self.kind


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
