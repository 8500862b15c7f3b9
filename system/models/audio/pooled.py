"""Frames of a frozen expert, pooled over time, through two linear layers."""

from torch import nn

from system.batches.collate import Series
from system.models.audio.base import AudioEncoder
from system.models.audio.pooling import mlp, pooled_over_time
from system.models.score import Embedded
from system.recipe import schema


class PooledMlp(AudioEncoder):
    """One vector a clip; see schema.PooledMlp."""

    def __init__(self, settings: schema.PooledMlp, out: int) -> None:
        super().__init__()
        ((self.expert, expert),) = settings.experts.items()
        self.pooling = settings.pooling
        self.dropout = nn.Dropout(settings.dropout)
        self.mlp = mlp(expert.dim, settings.hidden, out)

    def forward(self, audio: dict[str, Series]) -> Embedded:
        pooled = pooled_over_time(*audio[self.expert], self.pooling)
        return Embedded(self.mlp(self.dropout(pooled)))

    def parts(self) -> dict[str, nn.Module]:
        return {"mlp": self.mlp}
