"""Rank by one checkpoint.

Ranking by one checkpoint of a stage, or by a model's published weights. Never imports torch.
"""

from pathlib import Path
from typing import Literal, Self, cast

from pydantic import ValidationError, model_validator

from data_tools.settings import mistakes
from system.ranking.base import Models, RankEntry, Ranker

# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
# mAP@16: the main figure of 2025
Metric = Literal["loss", "m1", "m2", "mAP@10", "mAP@16", "recall_sum", "R1@0.5", "R1@0.7", "mAP"]
Checkpoint = Literal["last"] | Metric  # the last, or the best by a monitored metric


class ByOneModel(RankEntry):
    """Base of rank kinds that use one model: a stage's checkpoint or, if both keys are null, published weights."""

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
    def how_scored(self) -> str:
        """Text for the plan: how the scores are computed, such as "ranked by the last checkpoint of train"."""
        if self.stage is None:
            return "ranked by the model without training"
        which = "last" if self.checkpoint == "last" else f"best {self.checkpoint}"
        return f"ranked by the {which} checkpoint of {self.stage}"

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker of the model at the entry's checkpoint; without a stage, with published weights."""
        return models.model_ranker(self.stage, self.checkpoint)


class RankByCheckpoint(ByOneModel):
    """Rank the clips of a data source for its captions by one checkpoint. Writes a score matrix, its metrics, and the
    challenge's submission file. A zero-shot system sets `stage: null` and needs no stage.

    csv: write the edition's CSV. The CSV identifies a query by its text, so it cannot be written for a split whose
    clips share captions (AudioCaps).
    """

    kind: Literal["checkpoint"]
    data: str  # source whose captions are the queries for its clips
    edition: int | Literal["custom"]  # challenge year; it decides the figures and the file
    csv: bool


class RankBlind(ByOneModel):
    """Rank a blind set, whose relevant clips are secret, by one checkpoint. Writes a score matrix and the edition's
    submission file, but no metrics.

    While files of the blind set are missing, the entry is skipped. Once they exist, the same command ranks the entry,
    without training again.
    """

    kind: Literal["blind"]
    audio: str  # folder of the clips, or a manifest (.jsonl)
    queries: str  # table with a column caption (.csv), or queries (.jsonl)
    edition: int | Literal["custom"]  # challenge year; it decides the file

    @property
    def missing_files(self) -> list[str]:
        """Files or folders of the blind set that are missing."""
        return [name for name in (self.audio, self.queries) if not Path(name).exists()]
