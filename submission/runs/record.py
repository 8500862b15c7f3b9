"""The record of a run: the one description of its files, which the system writes and everybody reads.

result.json (RunResult), provenance.json (Provenance), a line of metrics.jsonl (EpochLine), what is relied on of
resolved.json (ResolvedRecipe), and what is said beside a score matrix and in model.json of an export (ModelFacts).
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

FORMAT = 1  # of result.json; a release that changes the meaning of a key counts on


def _inside(name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is outside of this folder; a relative path without .. belongs here")
    return name


# Of files, by their names below the folder that notes them.
Checksums = dict[Annotated[str, AfterValidator(_inside)], str]
Count = Annotated[int, Field(ge=0)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class Record(BaseModel):
    """A part of the record: nothing is converted, nothing changes after reading, other keys stay."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """As plain JSON values, by the names in the file; what was not given is left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Parameters(Record):
    """Numbers of parameters. trained: by part of the model. frozen: by expert, `audio`, or `text`."""

    trained: dict[str, Count]
    frozen: dict[str, Count]
    total: Count


class ExpertFacts(Record):
    """rate: Hz. dim: of a frame. published: addresses of its weights. unpublished: weight files that are none of
    these. pretrained: the model behind frames that were read and not computed; None: `kind` says it."""

    kind: str
    rate: Annotated[int, Field(gt=0)]
    dim: Count
    frames_per_second: float
    published: list[str]
    unpublished: list[str] = []
    pretrained: str | None = None

    @property
    def model(self) -> str:
        return self.pretrained or self.kind


class SetFacts(Record):
    """A data set within a source. licences: clips by licence."""

    clips: Annotated[int, Field(gt=0)]
    captions: Count
    hours: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    licences: dict[str, Count]


class SourceFacts(Record):
    """A source of the recipe's `data`: its data sets by name, the stages it trains, where it is published, and how many
    moments of its clips it has; None where it names no file of them."""

    sets: dict[str, SetFacts]
    trains: list[str]
    published: str | None
    moments: Count | None = None


class RankedResult(Record):
    """What a ranked entry came to; its figures, such as mAP@10 and R@1, are among the other keys.

    interval, bootstrap: 95 %, of `metric`; None for a single query. checkpoint: in words. chance, untrained, ceiling:
    values of `metric` to hold it against, untrained None where nothing was trained. also_trained_on: ranked clips.
    scores, csv: files.
    """

    __pydantic_extra__: dict[str, Any]

    metric: str
    interval: Interval | None
    bootstrap: Interval | None
    median_rank: float
    data: str
    queries: Count
    clips: Count
    checkpoint: str
    edition: str
    chance: float
    untrained: float | None
    ceiling: float | None
    also_trained_on: Count
    scores: str
    csv: str | None

    @model_validator(mode="after")
    def _has_its_figure(self) -> Self:
        if self.metric not in self.figures:
            raise ValueError(f"it has no {self.metric}")
        return self

    @property
    def figures(self) -> dict[str, float]:
        """Values by metric."""
        return {key: value for key, value in self.__pydantic_extra__.items() if isinstance(value, float | int)}


class BlindResult(Record):
    """A ranked blind set. checkpoint: in words. scores, csv: files. sha256: of what was ranked, names and contents of
    clips and queries."""

    queries: Count
    clips: Count
    checkpoint: str
    edition: str
    scores: str
    csv: str
    sha256: str


class FittedScore(Record):
    """Of a score of moments: of the frames' values, and in log odds for each way from frame to frame."""

    scale: float
    offset: float
    enter: float
    leave: float


class MomentsResult(Record):
    """Windows that were found. figures: by metric, in [0, 1]; bootstrap: of each, 95 % over recordings; both None of a
    blind list. random, ceiling: R1@0.5 and so on of random windows, and of windows made of the true frames. checkpoint:
    in words. fitted: the fitted score, if the entry has a `fit`.
    windows: the file with scores. answers: the file that is handed in. truth: the queries. frames: the file
    of the frames' probabilities."""

    metric: str
    figures: dict[str, float] | None
    bootstrap: dict[str, Interval] | None
    random: dict[str, float] | None
    ceiling: dict[str, float] | None
    data: str
    queries: Count
    clips: Count
    checkpoint: str
    fitted: FittedScore | None
    edition: str
    also_trained_on: Count
    windows: str
    answers: str
    truth: str
    frames: str


class RunResult(Record):
    """result.json.

    commits: of the code, in turn. broken: reasons why clips were left out, by id. seconds: of the last process.
    training_seconds: of all epochs. sha256: of the run's files.
    rank, blind, moments: by entry of the recipe's `rank`. Those of `blind` have no figures.
    """

    format: int
    recipe: str
    seed: int
    commits: Annotated[list[str], Field(min_length=1)]
    hardware: str
    parameters: Parameters
    experts: dict[str, ExpertFacts]
    data: dict[str, SourceFacts]
    seconds: float
    training_seconds: float
    broken: dict[str, str]
    rank: dict[str, RankedResult]
    blind: dict[str, BlindResult]
    moments: dict[str, MomentsResult]
    sha256: Checksums


class Provenance(Record):
    """What a run was made with. changes: those of --set. manifests, contents: checksums by data source, of its manifest
    and of all its audio. experts: their identities. text: identity of a pre-trained text encoder. starts: checksums of
    exported models by folder. teachers: by name, checksums of what says which weights they have. augment: checksums of
    files that training data are changed by. started_in: the folder that relative paths of the recipe start from, seen
    from the run's. sha256: of the run's own files.
    """

    recipe: str | None = None
    seed: int | None = None
    changes: list[str] = []
    commits: Annotated[list[str], Field(min_length=1)]
    began: str = ""
    command: list[str] = []
    python: str | None = None
    torch: str | None = None
    machine: str | None = None
    cores: int | None = None
    threads: int | None = None
    gpu: str | None = None
    manifests: dict[str, str]
    experts: dict[str, dict[str, Any]]
    text: str | None
    starts: dict[str, str]
    teachers: dict[str, dict[str, str]] = {}
    augment: dict[str, str] = {}
    audio: dict[str, str] = {}
    contents: dict[str, str] = {}
    started_in: str | None = None
    sha256: Checksums = {}


class EpochLine(Record):
    """A line of metrics.jsonl, its keys in the order they are written. epoch: of the stage, from 1. Means over its
    steps: loss and what training diagnoses. validation: values by metric. The rest is what the collapse watch saw;
    collapsed: a sentence each."""

    stage: str
    epoch: Annotated[int, Field(ge=1)]
    step: int | None = None
    loss: float | None = None
    positive: float | None = None
    hardest_negative: float | None = None
    violations: float | None = None
    violations_relaxed: float | None = None
    lr: float | None = None
    seconds: float
    validation: dict[str, float] = {}
    spread_of_clips: float | None = None
    zeros_of_clips: float | None = None
    spread_of_captions: float | None = None
    zeros_of_captions: float | None = None
    captions_alike: float | None = None
    collapsed: list[str] = []

    def value(self, name: str) -> float | None:
        """The figure called so, such as `loss` or `validation.mAP@10`; None where the line has none."""
        part, _, metric = name.rpartition(".")
        found: float | None = self.validation.get(metric) if part else getattr(self, metric, None)
        return found


class Kind(Record):
    kind: str


class EncoderSettings(Kind):
    """model: of a published text encoder. vectors, weights: files. spec_augment: of an audio encoder."""

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
    """An entry of `rank`, of any kind. stage, checkpoint: of kinds that rank by one model; None for published weights,
    before any stage. of: of a mean, the names of its parts."""

    stage: str | None = None
    checkpoint: str | None = None
    of: list[str] = []


class RelaxPoint(Record):
    percentile: float
    factor: float


class RelevanceSettings(Record):
    corpus: list[str]
    relax: list[RelaxPoint]


class ResolvedRecipe(Record):
    """What of resolved.json is relied on; the whole of it is described by the system's recipes."""

    name: str
    seed: int
    model: ModelSettings
    stages: dict[str, StageSettings]
    rank: dict[str, RankSettings]
    relevance: RelevanceSettings | None = None


class ModelFacts(Record):
    """What made a model: the facts beside its scores, and model.json of an export. run: name of its folder. edition:
    the one its recipe ranks for, None where it is several. fitted: of an export, what its windows are found by, where
    that was fitted after training. sha256: of an export's other files."""

    recipe: str
    seed: int | None = None
    run: Annotated[str | None, Field(alias="from")] = None
    checkpoint: str
    edition: str | None = None
    fitted: FittedScore | None = None
    commits: list[str] = []
    experts: dict[str, dict[str, Any]]
    text: str | None
    sha256: Checksums = {}
