"""Rank by one checkpoint.

Ranking by one checkpoint of a stage, or by a model's published weights. Never imports torch.
"""

from pathlib import Path
from typing import Literal, Self, cast

from pydantic import ValidationError, model_validator

from data_tools.documents.strict import mistakes
from system.ranking.base import Models, RankEntry, Ranker

# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
# mAP@16: the main figure of 2025
Metric = Literal["loss", "m1", "m2", "mAP@10", "mAP@16", "recall_sum", "R1@0.5", "R1@0.7", "mAP"]
Checkpoint = Literal["last"] | Metric  # the last, or the best by a monitored metric


class ByOneModel(RankEntry):
    """Base of kinds that rank by one model: a checkpoint of a stage, or, if both keys are null, published weights."""

    stage: str | None  # stage of the checkpoint; null: the published weights
    checkpoint: Checkpoint | None  # last, or best by this metric of the stage; null if stage is null

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        """Raise an error unless `stage` and `checkpoint` are both set, or both null."""
        if (self.stage is None) != (self.checkpoint is None):
            missing = "stage" if self.stage is None else "checkpoint"
            raise cast(ValidationError, mistakes([((missing,), "set both stage and checkpoint, or set both to null")]))
        return self

    @property
    def how(self) -> str:
        """Description of the source of the scores, for the plan."""
        if self.stage is None:
            return "by the model without training"
        which = "last" if self.checkpoint == "last" else f"best {self.checkpoint}"
        return f"by the {which} checkpoint of {self.stage}"

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker of the checkpoint."""
        return models.model(self.stage, self.checkpoint)


class RankByCheckpoint(ByOneModel):
    """A score matrix of one source's captions against its clips by one checkpoint, its figures, and the challenge's
    file of it. A zero-shot system says `stage: null`: no stage is needed at all.

    csv: write the edition's CSV. It knows a query by its text: a split whose clips share captions (AudioCaps) has
    figures, but no such file."""

    kind: Literal["checkpoint"]
    data: str  # source whose captions are the queries for its clips
    edition: int | Literal["custom"]  # challenge year; it decides the figures and the file
    csv: bool


class RankBlind(ByOneModel):
    """A blind set's score matrix by one checkpoint, and the edition's file of it. It has no figures.

    While files are missing, the entry is skipped; the same command ranks it later, and trains nothing again."""

    kind: Literal["blind"]
    audio: str  # folder of the clips, or a manifest (.jsonl)
    queries: str  # table with a column caption (.csv), or queries (.jsonl)
    edition: int | Literal["custom"]  # challenge year; it decides the file

    @property
    def absent(self) -> list[str]:
        """Files or folders of the blind set that are missing."""
        return [name for name in (self.audio, self.queries) if not Path(name).exists()]
