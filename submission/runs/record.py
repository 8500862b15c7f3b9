"""Models of a run's files.

The files of a run: the only description of their format, for the system that writes them and for all readers.

result.json (RunResult), provenance.json (Provenance), a line of metrics.jsonl (EpochLine), and the facts of a score
matrix and of an export's model.json (ModelFacts). The used part of resolved.json: recipe.py.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

FORMAT = 1  # of result.json; a release that changes the meaning of a key increments it


def _require_relative(name: str) -> str:
    """Return a path unchanged; raises ValueError if it is outside the run's folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is outside the run's folder; use a relative path without ..")
    return name


# Checksums of files, by their paths relative to the folder of the record.
Checksums = dict[Annotated[str, AfterValidator(_require_relative)], str]
Count = Annotated[int, Field(ge=0)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class Record(BaseModel):
    """A part of the record: values are not converted, objects do not change after reading, other keys are kept."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """Return the record as a dict for JSON, with the keys of the file; values that were not given are left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Parameters(Record):
    """Numbers of parameters. trained: By part of the model. frozen: By expert, `audio`, or `text`."""

    trained: dict[str, Count]
    frozen: dict[str, Count]
    total: Count


class ExpertFacts(Record):
    """Facts of an expert, which is a frozen audio model.

    Attributes:
        rate: In Hz; 0 if no audio is read. dim: Dimension of a frame.
        published: Addresses of its weights.
        unpublished: Other weight files.
        pretrained: Model of frames that were read instead of computed; None: see `kind`.
    """

    kind: str
    rate: Count
    dim: Count
    frames_per_second: float
    published: list[str]
    unpublished: list[str] = []
    pretrained: str | None = None

    @property
    def model(self) -> str:
        """Name of the pre-trained model, or else the kind of the expert."""
        return self.pretrained or self.kind


class SetFacts(Record):
    """A data set within a source. licences: Number of clips by licence."""

    clips: Annotated[int, Field(gt=0)]
    captions: Count
    hours: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    licences: dict[str, Count]


class SourceFacts(Record):
    """A source of the recipe's `data`.

    sets: Its data sets by name. trains: The stages it trains. published: Its address. moments: Number of moments of its
    clips; None without a file of moments.
    """

    sets: dict[str, SetFacts]
    trains: list[str]
    published: str | None
    moments: Count | None = None


class RankedResult(Record):
    """Result of a ranked entry; its figures, such as mAP@10 and R@1, are among the other keys.

    Attributes:
        interval, bootstrap: 95 % intervals of `metric`; None for a single query.
        chance, untrained, ceiling: Values of `metric` for comparison; untrained is None if nothing was trained.
        also_trained_on: Number of ranked clips that are also training data. hub_skewness, never_found: See Hubness.
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
    hub_skewness: float | None = None
    never_found: float | None = None
    scores: str
    csv: str | None

    @model_validator(mode="after")
    def _has_its_figure(self) -> Self:
        """Raise an error if the figures of a result lack its primary metric."""
        if self.metric not in self.figures:
            raise ValueError(f"its figures lack its metric {self.metric}")
        return self

    @property
    def figures(self) -> dict[str, float]:
        """Value of each metric of the entry, by the metric's name."""
        return {key: value for key, value in self.__pydantic_extra__.items() if isinstance(value, float | int)}


class BlindResult(Record):
    """A ranked blind set.

    checkpoint: Description. scores, csv: Files. sha256: Of names and contents of the ranked clips and queries.
    """

    queries: Count
    clips: Count
    checkpoint: str
    edition: str
    scores: str
    csv: str
    sha256: str


class FittedScore(Record):
    """Fitted score of moments.

    scale, offset: Of the frames' values. enter, leave: Log odds of each change from frame to frame. rate: Factor of the
    cosines of changes; None for the score kind `moments`.
    """

    scale: float
    offset: float
    enter: float
    leave: float
    rate: float | None = None


class MomentsResult(Record):
    """Result of an entry that finds windows.

    Attributes:
        figures: By metric, in [0, 1]; None for a blind list.
        bootstrap: 95 % interval of each figure, over recordings; None for a blind list.
        random, ceiling: R1@0.5 and so on of random windows, and of windows made of the true frames.
        new_texts: Number of queries whose text the model was not trained on; None for a blend.
        figures_of_new_texts: By metric, of these queries; None without such queries, and for a blind list.
        fitted: Fitted score, if the entry has a `fit`.
        windows: File with scores.
        answers: File to submit.
        truth: File of the queries.
        frames: File of the frames' probabilities.
    """

    metric: str
    figures: dict[str, float] | None
    bootstrap: dict[str, Interval] | None
    random: dict[str, float] | None
    ceiling: dict[str, float] | None
    new_texts: Count | None
    figures_of_new_texts: dict[str, float] | None
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


class Member(Record):
    """A run in a blend. run: Its folder, relative to that of the blend. sha256: Of the entry's scores. weight:
    In (0, 1]."""

    run: str
    sha256: str
    entry: str
    weight: float


class RunResult(Record):
    """Content of result.json.

    Attributes:
        commits: Of the code, in turn.
        weight_licences: Licences of published weights, where recorded, by expert or `audio`.
        broken: Reasons why clips were left out, by id.
        seconds: Of the last process.
        training_seconds: Of all epochs.
        sha256: Checksums of the run's files.
        rank, blind, moments: By entry of the recipe's `rank`. Those of `blind` have no figures.
        blend: The runs that were blended; empty for a run of its own.
    """

    format: int
    recipe: str
    seed: int
    commits: Annotated[list[str], Field(min_length=1)]
    hardware: str
    parameters: Parameters
    experts: dict[str, ExpertFacts]
    weight_licences: dict[str, str] = {}
    data: dict[str, SourceFacts]
    seconds: float
    training_seconds: float
    broken: dict[str, str]
    rank: dict[str, RankedResult]
    blind: dict[str, BlindResult]
    moments: dict[str, MomentsResult]
    blend: list[Member] = []
    sha256: Checksums


class Provenance(Record):
    """Inputs of a run: code, recipe, data and machine.

    Attributes:
        changes: Those of --set.
        manifests, contents: Checksums by data source, of its manifest and of all its audio.
        experts: Identities of the experts.
        text: Identity of a pre-trained text encoder.
        starts: Checksums of exported models by folder.
        teachers: By name, checksums of the files that identify their weights.
        augment: Checksums of files that change training data.
        waveforms: Whether they were read from a bank, or from the audio files.
        started_in: Folder that relative paths of the recipe start from, relative to the run.
        sha256: Checksums of the run's files.
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
    waveforms: Literal["bank", "files"] | None = None
    audio: dict[str, str] = {}
    contents: dict[str, str] = {}
    started_in: str | None = None
    sha256: Checksums = {}


class EpochLine(Record):
    """A line of metrics.jsonl, its keys in the written order.

    Attributes:
        epoch: Of the stage, from 1.
        loss, positive, hardest_negative, violations, violations_relaxed: Means over the steps of the epoch.
        skipped: Number of updates that were skipped because the fp16 loss was not finite.
        validation: Values by metric.
        spread_of_clips, zeros_of_clips, spread_of_captions, zeros_of_captions, captions_alike: Values of the collapse
            watch.
        collapsed: Its messages.
    """

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
    skipped: int | None = None
    validation: dict[str, float] = {}
    spread_of_clips: float | None = None
    zeros_of_clips: float | None = None
    spread_of_captions: float | None = None
    zeros_of_captions: float | None = None
    captions_alike: float | None = None
    collapsed: list[str] = []

    def value(self, name: str) -> float | None:
        """Return the value called `name`, such as `loss` or `validation.mAP@10`; None if the line lacks it."""
        part, _, metric = name.rpartition(".")
        value: float | None = self.validation.get(metric) if part else getattr(self, metric, None)
        return value


class ModelFacts(Record):
    """Facts about a model, stored with its scores and in model.json of an export.

    Attributes:
        run: Name of its folder.
        edition: The one its recipe ranks for; None for several.
        fitted: For an export, fitted score of moments, if it was fitted after training.
        sha256: Checksums of an export's other files.
    """

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
