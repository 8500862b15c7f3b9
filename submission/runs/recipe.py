"""Models of a run's recipe.

The used part of resolved.json, the recipe of a run with all its settings.
"""

from typing import Any

from pydantic import Field

from submission.runs.record import Record


class Kind(Record):
    kind: str


class EncoderSettings(Kind):
    """Settings of an encoder.

    model: Published text encoder. vectors, weights: Files. spec_augment: For audio encoders.
    """

    model: str | None = None
    vectors: str | None = None
    weights: str | None = None
    spec_augment: dict[str, Any] | None = None


class ModelSettings(Record):
    audio: EncoderSettings
    text: EncoderSettings
    score: Kind


class LossSettings(Kind):
    weight: float | None = None
    margin: float | None = None
    relax: str | None = None


class OptimizerSettings(Kind):
    lr: float
    weight_decay: float | None = None


class MonitorSettings(Record):
    data: list[str]
    test_split: str | None = None


class StageSettings(Record):
    losses: list[LossSettings]
    optimizer: OptimizerSettings
    monitor: MonitorSettings


class RankSettings(Kind):
    """An entry of `rank`, of any kind.

    data: The source it ranks; None for blind sets, and for kinds that combine entries.
    stage, checkpoint: For kinds that rank by one model; None for published weights, before any stage.
    of: The entries that a mean or a correction of hubs combines.
    """

    data: str | None = None
    stage: str | None = None
    checkpoint: str | None = None
    of: str | list[str] = Field([])


class RelaxPoint(Record):
    percentile: float
    factor: float


class RelevanceSettings(Record):
    corpus: list[str]
    relax: list[RelaxPoint]


class SourceSettings(Record):
    manifest: str | None = None
    split: str | None = None


class ResolvedRecipe(Record):
    """The used part of resolved.json; the system's recipes describe all of it."""

    name: str
    seed: int
    data: dict[str, SourceSettings] = Field({})
    model: ModelSettings
    stages: dict[str, StageSettings]
    rank: dict[str, RankSettings]
    relevance: RelevanceSettings | None = None
