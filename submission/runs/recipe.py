"""Models of a run's recipe.

Pydantic models of the keys in resolved.json that `submission` reads. This file is a run's recipe with all settings.
"""

from typing import Any

from pydantic import Field

from submission.runs.record import Record


class Kind(Record):
    kind: str


class EncoderSettings(Kind):
    """Settings of an audio or text encoder.

    Attributes:
        model: Name of a published text encoder.
        vectors: File of word vectors.
        weights: File of published weights of an audio encoder.
        spec_augment: Settings of SpecAugment for an audio encoder; None: not used.
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
    """Settings of an entry under `rank` in a recipe, of any kind.

    Attributes:
        data: Name of the data source that the entry ranks; None for blind sets, and for kinds that combine entries.
        stage: Training stage of the model; None for published weights without training, and for kinds that combine
            entries.
        checkpoint: Checkpoint of this stage, None in the same cases.
        of: For kinds that combine entries: the names of these entries. An entry of the kind mean averages the scores of
            several entries. A hub correction has one such entry, and lowers the scores of clips that have high scores
            for many queries.
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
    """The keys of resolved.json that `submission` reads; the recipes in `system` describe all keys."""

    name: str
    seed: int
    data: dict[str, SourceSettings] = Field({})
    model: ModelSettings
    stages: dict[str, StageSettings]
    rank: dict[str, RankSettings]
    relevance: RelevanceSettings | None = None
