"""What a recipe may say: the closed, strict models of its YAML. Nothing here imports torch.

Shapes of the document: `data` names manifests; `model` says how clips and captions are embedded and scored (see
system/models); `stages` train it in order: what each starts from, its data, batches, rates, end, and what is watched;
`rank` writes score matrices and ranked lists of the trained model. A stage says everything about itself."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from data_tools.documents.strict import Name, Positive, Strict
from data_tools.manifest import Split
from system.batches.augment_settings import Augment
from system.losses import Loss
from system.losses.relevance.relax import Cider
from system.models.settings import Model
from system.moments.windows import By, Decoding
from system.ranking import RankBlind, Ranked, RankMoments
from system.ranking.base import RankEntry
from system.ranking.checkpoint import Checkpoint, Metric

OF_WINDOWS = {"R1@0.5", "R1@0.7", "mAP"}  # the metrics of moments that need their windows found
LOWER_IS_BETTER = {"loss"}


class Expected(Strict):
    """What a source holds as published, for plans made before it is there."""

    clips: Positive  # how many
    captions: Positive  # how many
    hours: float = Field(gt=0)  # of audio


class Source(Strict):
    """Clips of one split of one manifest, and the command that makes the manifest when it is missing."""

    manifest: str  # the file that lists its clips (.jsonl)
    split: Split  # of the manifest: these clips alone
    moments: str | None = None  # queries of its clips, and when they are heard (.jsonl); for unit and rank kind moment
    make: str | None = None  # python -m data_tools ...
    published: str | None = None  # where what `make` reads is to be had
    expected: Expected | None = None  # what is published


class FromScratch(Strict):
    kind: Literal["scratch"]


class FromStage(Strict):
    kind: Literal["stage"]
    stage: str  # an earlier one
    checkpoint: Checkpoint  # which one: the last, or the best by a metric that the stage monitors


class FromModel(Strict):
    """A trained model of the same shape, such as what a student starts from before it is distilled. One that was
    trained on clips that are to be ranked is refused."""

    kind: Literal["model"]
    folder: str  # of a finished run, or of an exported model
    stage: str | None = None  # of a run; null: that of its first rank entry
    checkpoint: Checkpoint | None = None  # of a run; null: that of its first rank entry
    trained_on_test: Literal["acknowledged"] | None = None  # needed where it was trained on clips that are ranked


class StageTeacher(Strict):
    """An earlier stage of the same run."""

    kind: Literal["stage"]
    stage: str  # an earlier one than those that learn from it
    checkpoint: Checkpoint  # which one: the last, or the best by a metric that the stage monitors


class ModelTeacher(Strict):
    """A finished run, or an exported model. One that was trained on clips that are to be ranked is refused."""

    kind: Literal["model"]
    folder: str  # of the run, or of the exported model
    stage: str | None = None  # of a run; null: that of its first rank entry
    checkpoint: Checkpoint | None = None  # of a run; null: that of its first rank entry
    trained_on_test: Literal["acknowledged"] | None = None  # needed where it was trained on clips that are ranked


class EmbeddingsTeacher(Strict):
    """Any other model, by its embeddings of all clips and captions that are trained on, watched and ranked: a file as
    `python -m system embeddings` writes it, with arrays `kind` (clip or caption), `id` (of a clip, and behind it # and
    the caption's number from 1) and `embedding`, a row each. Nobody knows what its model was trained on."""

    kind: Literal["embeddings"]
    file: str  # .npz
    trained_on_test: Literal["acknowledged"]  # that it may have been trained on clips that are ranked


def outside(teacher: StageTeacher | ModelTeacher | EmbeddingsTeacher) -> Path | None:
    """Where a teacher lies that is not of the run itself."""
    if isinstance(teacher, StageTeacher):
        return None
    return Path(teacher.folder if isinstance(teacher, ModelTeacher) else teacher.file)


Teacher = Annotated[StageTeacher | ModelTeacher | EmbeddingsTeacher, Field(discriminator="kind")]


class Train(Strict):
    data: Annotated[list[str], Field(min_length=1)]  # names of sources
    mix: Literal["equal", "size"]  # every source equally often, or every item equally often


class Monitor(Strict):
    """Validation after every epoch; a checkpoint is kept while it is among the `keep` best by any of `metrics`."""

    data: Annotated[list[str], Field(min_length=1)]  # names of sources
    metrics: Annotated[list[Metric], Field(min_length=1)]  # of validation
    keep: Positive  # checkpoints for each metric
    windows: By | None = None  # of moments, as in a rank entry; null: posterior
    decoding: Decoding | None = None  # of moments, as in a rank entry; null: its defaults
    test_split: Literal["acknowledged"] | None = None  # needed where one of the sources is a test split


Rate = Annotated[float, Field(gt=0, le=1)]


class AdamW(Strict):
    """Parts: `audio`, `text`, and the parts of the audio encoder that `check` lists, such as `network` and `mlp`.

    The schedule's factor is on every rate; what is in no named part has `lr`. A part that is frozen at the start is not
    trained in these steps of the stage: no update, no weight decay, no dropout, and batch norms keep their statistics.
    """

    kind: Literal["adamw"]
    lr: Rate  # learning rate
    weight_decay: float = Field(ge=0, le=1)  # decoupled, as a share of the learning rate
    lr_by_part: dict[Name, Rate] = Field({})  # learning rates of parts, in place of lr; metrics.jsonl notes lr
    frozen_start: dict[Name, Positive] = Field({})  # by part, how many first steps of the stage it is frozen in


class Schedule(Strict):
    """Factor on the learning rate: rises linearly over `warmup_steps`, then stays, or falls along a half cosine to
    0."""

    kind: Literal["constant", "cosine"]
    warmup_steps: int = Field(ge=0, le=1_000_000_000)  # in which the rate rises from zero


class EpochSchedule(Strict):
    """The learning rate rises in a line from `start_lr` over `warmup_epochs`, then falls to `floor_lr`, which it
    reaches after `until_epoch` epochs and keeps; set anew at every step. Rates of parts start and end at the same two.

    Source: the DCASE 2025 baseline (start and floor 1e-7, until 16) and SALSA (2024; start 0, floor 1e-7, until 15).
    """

    kind: Literal["epochs"]
    shape: Literal["cosine", "linear"]  # of the fall: half a cosine, or a line
    start_lr: float = Field(ge=0, le=1)  # learning rate of the first step
    floor_lr: float = Field(ge=0, le=1)  # learning rate at the end
    warmup_epochs: float = Field(ge=0, le=10_000)  # in which the rate rises
    until_epoch: float = Field(gt=0, le=10_000)  # from the stage's beginning, more than warmup_epochs

    @field_validator("until_epoch")
    @classmethod
    def _falls(cls, until: float, info: ValidationInfo) -> float:
        if until <= info.data.get("warmup_epochs", 0):
            raise ValueError("the rate must have epochs to fall in; say more than warmup_epochs")
        return until


class StepDecay(Strict):
    """The learning rate is multiplied by `factor` behind every `every_epochs` epochs."""

    kind: Literal["step"]
    every_epochs: Positive  # after how many epochs, each time
    factor: float = Field(gt=0, lt=1)  # of the rate


class Plateau(Strict):
    """The learning rate is multiplied by `factor` once a monitored metric has been no better than its best for more
    than `patience` epochs; then the count begins anew. It never falls below `min_lr` (rates of parts: below as large a
    share of theirs).

    better: by more than `threshold`, as a difference. Source: torch's ReduceLROnPlateau with threshold_mode "abs".
    """

    kind: Literal["plateau"]
    metric: Metric  # a monitored one
    factor: float = Field(gt=0, lt=1)  # of the rate
    patience: int = Field(ge=0)  # epochs without a better value
    threshold: float = Field(ge=0)  # smaller differences do not count
    min_lr: float = Field(ge=0)  # the rate stays above it


class EarlyStopping(Strict):
    """The stage ends once a monitored metric has not been better than its best for `epochs` epochs."""

    kind: Literal["early_stopping"]
    metric: Metric  # a monitored one
    epochs: Positive  # without a better value


class StdPlateau(Strict):
    """The stage ends once the standard deviation of a metric's last `epochs` values is at most `deviation`, not before
    `at_least` epochs. Source: Ray Tune's TrialPlateauStopper, which the public code of both CRNN systems uses."""

    kind: Literal["std_plateau"]
    metric: Metric  # a monitored one
    epochs: Annotated[int, Field(ge=2)]  # whose values are looked at
    deviation: float = Field(ge=0)  # at most this standard deviation
    at_least: Positive  # epochs that are trained in any case


class Stage(Strict):
    start_from: Annotated[FromScratch | FromStage | FromModel, Field(discriminator="kind")]  # whose weights
    train: Train  # its clips
    unit: Literal["clip", "pair", "moment"]  # a batch is of clips with captions, (clip, caption) pairs, or moments
    captions_per_clip: Positive | Literal["all"] | None = None  # for clips: n drawn anew at every visit
    augment: Augment | None = None  # what is changed of training data at random; null: nothing
    batch_size: int = Field(ge=2, le=1_000_000)  # items in a step
    grad_cache_chunk: Positive | None  # items embedded at a time, so that less memory gives the same gradients
    epochs: Positive  # at most
    steps_per_epoch: Positive | Literal["all"]  # "all": as many as the items fill
    losses: Annotated[list[Loss], Field(min_length=1)]  # their weighted sum is minimised
    optimizer: AdamW  # what turns gradients into updates
    schedule: Annotated[
        Schedule | EpochSchedule | StepDecay | Plateau, Field(discriminator="kind")
    ]  # of the learning rate
    stop: Annotated[EarlyStopping | StdPlateau | None, Field(discriminator="kind")] = None  # null: all epochs
    max_grad_norm: Annotated[float, Field(gt=0)] | None  # largest norm of all gradients together
    precision: Literal["float32", "bf16", "fp16"]  # 16 bits on CUDA only; elsewhere float32 is used and said
    batch_norm: Literal["synchronised", "process"] = "synchronised"  # of several processes: of all, or of each
    compile: bool = False  # the audio network by torch.compile, on CUDA only; elsewhere it is left out
    monitor: Monitor  # what is watched during training, and kept


class Recipe(Strict):
    """An entry of `data`, `experts`, `stages` or `rank` that is null is left out, so that a study can leave one out."""

    name: Name  # of its runs; lower-case letters, digits and _
    seed: int = Field(ge=0, lt=2**31)  # of every random draw: weights, batches, dropout
    banks: str  # folder of the feature banks, shared by all recipes
    data: Annotated[dict[Name, Source], Field(min_length=1)]  # the clips that stages and rank entries name
    relevance: Cider | None = None  # between captions, for losses that ask for it
    model: Model  # how clips and captions are embedded, and how the embeddings are scored
    teachers: dict[Name, Teacher] = Field({})  # trained models that `distill` learns from, by name
    stages: dict[Name, Stage]  # trained in this order; none: what is ranked is the published weights, or teachers
    rank: dict[Name, Ranked]  # entries that are ranked at the end

    @property
    def data_files(self) -> dict[str, Path]:
        """The manifest of every source by its name, and the moments of NAME by NAME.moments."""
        manifests = {name: Path(source.manifest) for name, source in self.data.items()}
        moments = {f"{name}.moments": Path(source.moments) for name, source in self.data.items() if source.moments}
        return manifests | moments

    @property
    def trained_on(self) -> list[str]:
        """The data sources of all stages, sorted."""
        return sorted({source for stage in self.stages.values() for source in stage.train.data})

    @property
    def scored(self) -> dict[str, RankEntry]:
        """The rank entries that have figures: those of a source, not of a blind set."""
        return {
            name: entry
            for name, entry in self.rank.items()
            if not entry.finds_windows and not isinstance(self.ranked(name), RankBlind)
        }

    @property
    def rank_moments(self) -> dict[str, RankMoments]:
        """The rank entries of moments."""
        return {name: entry for name, entry in self.rank.items() if isinstance(entry, RankMoments)}

    def ranked(self, name: str) -> RankEntry:
        """A rank entry, or the first one that a mean is of."""
        entry = self.rank[name]
        return self.ranked(entry.parts[0]) if entry.parts else entry

    def ranked_source(self, name: str) -> str:
        """The data source that a rank entry with figures ranks; a mean ranks what its parts do."""
        return self.ranked(name).data
