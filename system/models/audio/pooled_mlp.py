"""Pooled frames and two linear layers.

Settings and network of an encoder that pools the frames of a frozen expert over time, and applies two linear layers.
"""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.settings import Name, Size
from system.experts import Expert
from system.models.audio.base import AudioSettings, Encoder


class PooledMlp(AudioSettings):
    """Frames of one frozen expert, pooled over time. Two linear layers with a ReLU between them follow: to `hidden`
    values, then to the size of text embeddings.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2, with its encoder frozen.
    """

    kind: Literal["pooled_mlp"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]  # one expert, by any name
    pooling: Literal["mean", "max", "max_mean"]  # max_mean: their sum, as PANNs do
    hidden: Size  # size of the middle layer
    dropout: float = Field(ge=0, lt=1)  # of the pooled frames

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"mlp": True}

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from torch import nn

        from system.compute.device import on_device
        from system.models.audio.encoder import AudioEncoder
        from system.models.batch import Series
        from system.models.embeddings import Embedded
        from system.networks.layers import mlp, pooled_over_time

        ((name, expert),) = self.experts.items()
        pooling, dropout, hidden = self.pooling, self.dropout, self.hidden

        class PooledMlpEncoder(AudioEncoder):
            def __init__(self) -> None:
                """Build the dropout and the two linear layers, with the sizes from the recipe's settings."""
                super().__init__()
                self.dropout = nn.Dropout(dropout)
                self.mlp = mlp(expert.dim, hidden, out)

            def forward(self, audio: dict[str, Series]) -> Embedded:
                """Embed the clips of a batch."""
                values, lengths = audio[name]
                pooled = pooled_over_time(values, on_device(lengths, values.device), pooling)
                return Embedded(self.mlp(self.dropout(pooled)))

            def parts(self) -> dict[str, nn.Module]:
                """Return a dict from the name of each part of the encoder to its torch module."""
                return {"mlp": self.mlp}

        return PooledMlpEncoder()
