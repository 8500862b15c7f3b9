"""The settings of a recipe; unknown keys are refused.

Sections of a recipe: `data` names manifests. `model` defines how clips and captions are embedded and scored (see
system/models). `stages` train the model in order. A stage sets its own initial weights, data, batches, learning rates,
end and monitoring; it inherits no settings. `rank` writes score matrices and ranked lists with the trained model.
`lbar keys PATH` prints classes of this file, which never imports torch.
"""

import difflib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from data_tools.errors import KitError
from data_tools.manifest import Split
from data_tools.settings import Name, Positive, Strict
from system.batches.augment import Augment
from system.kinds import OfKind
from system.losses import Term
from system.losses.cider import Cider
from system.models.settings import RecipeModel
from system.moments.windows import By, Decoding
from system.ranking import RankEntry
from system.ranking.entries import Checkpoint, Metric, RankBlind, RankMoments

OF_WINDOWS = {"R1@0.5", "R1@0.7", "mAP"}  # metrics of moments that need predicted windows
LOWER_IS_BETTER = {"loss"}


class Expected(Strict):
    """Published size of a source, known before its manifest exists."""

    clips: Positive  # number of clips
    captions: Positive  # number of captions
    hours: float = Field(gt=0)  # hours of audio


class Source(Strict):
    """Clips of one split of a manifest."""

    manifest: str  # the file that lists its clips (.jsonl)
    split: Split  # the split of the manifest that is used
    moments: str | None = None  # queries and their times in the clips (.jsonl); for unit moment and rank kind moments
    # lbar data ...: makes the manifest if it is missing; one source of a manifest says it
    make: str | None = None
    published: str | None = None  # where to get the files that `make` reads; said beside it
    expected: Expected | None = None  # published size


class FromScratch(Strict):
    kind: Literal["scratch"]


class FromStage(Strict):
    """A checkpoint of an earlier stage of the same run."""

    kind: Literal["stage"]
    stage: str  # must come before the stage that uses it
    checkpoint: Checkpoint  # last, or a metric that the stage monitors: its best checkpoint


class FromModel(Strict):
    """A finished run or an exported model.

    As initial weights, it must have the same layers. Its training clips count as those of this run: ranked ones among
    them are warned about, and counted in the results.
    """

    kind: Literal["model"]
    folder: str  # of the run, or of the exported model
    stage: str | None = None  # of a run; null: that of its first rank entry
    checkpoint: Checkpoint | None = None  # of a run; null: that of its first rank entry


Teacher = Annotated[FromStage | FromModel, Field(discriminator="kind")]


class Train(Strict):
    data: Annotated[list[str], Field(min_length=1)]  # names of sources
    mix: Literal["equal", "size"]  # every source equally often, or every item equally often


class Monitor(Strict):
    """Validation after every epoch.

    A checkpoint is kept while it is among the `keep` best by any of `metrics`.
    """

    data: Annotated[list[str], Field(min_length=1)]  # names of sources
    metrics: Annotated[list[Metric], Field(min_length=1)]  # metrics of validation
    keep: Positive  # number of best checkpoints that are kept per metric
    windows: By | None = None  # for moments: as in a rank entry; null: overlap
    decoding: Decoding | None = None  # for moments: as in a rank entry; null: its defaults
    test_split: Literal["acknowledged"] | None = None  # required if one of the sources is a test split


Rate = Annotated[float, Field(gt=0, le=1)]


class AdamW(Strict):
    """Optimizer AdamW.

    Parts of the model are `audio`, `text`, and the parts of the audio encoder that `check` lists, such as `network` and
    `mlp`. The schedule multiplies every learning rate. Parameters outside the parts of `lr_by_part` have the rate `lr`.
    While a part is frozen, it has no update, no weight decay and no dropout, and its batch norms keep their statistics.
    """

    kind: Literal["adamw"]
    lr: Rate  # learning rate
    weight_decay: float = Field(ge=0, le=1)  # decoupled, as a share of the learning rate
    lr_by_part: dict[Name, Rate] = Field({})  # learning rates of parts, in place of lr; metrics.jsonl logs lr
    frozen_start: dict[Name, Positive] = Field({})  # number of first steps of the stage while a part is frozen


class Schedule(Strict):
    """Learning rate with a warmup, then constant or a cosine.

    The learning rate is multiplied by a factor that rises linearly to 1 over `warmup_steps`. Then the factor stays at 1
    (constant), or falls along half a cosine to 0 (cosine).
    """

    kind: Literal["constant", "cosine"]
    warmup_steps: int = Field(ge=0, le=1_000_000_000)  # steps while the rate rises from zero


class EpochSchedule(Strict):
    """Rise and fall of the learning rate, in epochs.

    The learning rate rises linearly from `start_lr` over `warmup_epochs`. Then it falls until `until_epoch`, and stays
    at `floor_lr`. It changes at every step. The rates in `lr_by_part` also start at `start_lr` and end at `floor_lr`.

    Source: the DCASE 2025 baseline (start and floor 1e-7, until 16) and SALSA (2024; start 0, floor 1e-7, until 15).
    """

    kind: Literal["epochs"]
    shape: Literal["cosine", "linear"]  # the rate falls along half a cosine, or linearly
    start_lr: float = Field(ge=0, le=1)  # learning rate of the first step
    floor_lr: float = Field(ge=0, le=1)  # learning rate at the end
    warmup_epochs: float = Field(ge=0, le=10_000)  # epochs while the rate rises
    until_epoch: float = Field(gt=0, le=10_000)  # epochs from the start of the stage, more than warmup_epochs


class StepDecay(Strict):
    """Learning rate that falls after every `every_epochs` epochs."""

    kind: Literal["step"]
    every_epochs: Positive  # epochs between two steps
    factor: float = Field(gt=0, lt=1)  # that multiplies the rate


class Plateau(Strict):
    """Learning rate that falls while a metric does not improve.

    The learning rate is multiplied by `factor` after a monitored metric has not improved on its best value for more
    than `patience` epochs. Then the count of epochs starts again. `lr` never falls below `min_lr`, and the rates in
    `lr_by_part` never fall below min_lr / lr times their start values.

    Source: torch's ReduceLROnPlateau, threshold_mode "abs".
    """

    kind: Literal["plateau"]
    metric: Metric  # a monitored metric
    factor: float = Field(gt=0, lt=1)  # that multiplies the rate
    patience: int = Field(ge=0)  # epochs without improvement
    threshold: float = Field(ge=0)  # smaller differences are no improvement
    min_lr: float = Field(ge=0)  # lowest rate


class EarlyStopping(Strict):
    """End of a stage whose metric no longer improves."""

    kind: Literal["early_stopping"]
    metric: Metric  # a monitored metric
    epochs: Positive  # epochs since the best value


class StdPlateau(Strict):
    """End of a stage whose metric no longer changes.

    The stage ends once the standard deviation of a metric's last `epochs` values is at most `deviation`, but never
    before `at_least` epochs.

    Source: Ray Tune's TrialPlateauStopper, as used by the public code of the DCASE 2022 baseline and of "On Negative
    Sampling for Contrastive Audio-Text Retrieval" (2023).
    """

    kind: Literal["std_plateau"]
    metric: Metric  # a monitored metric
    epochs: Annotated[int, Field(ge=2)]  # number of last epochs whose values are used
    deviation: float = Field(ge=0)  # largest standard deviation at which the stage ends
    at_least: Positive  # minimum number of epochs


class Stage(Strict):
    start_from: Annotated[FromScratch | FromStage | FromModel, Field(discriminator="kind")]  # initial weights
    train: Train  # training data
    unit: Literal["clip", "pair", "moment"]  # items of a batch: clips with captions, (clip, caption) pairs, or moments
    captions_per_clip: Positive | Literal["all"] | None = None  # for unit clip: drawn again each time a clip is used
    augment: Augment | None = None  # random changes of training data; null: none
    batch_size: int = Field(ge=2, le=1_000_000)  # items per step
    grad_cache_chunk: Positive | None  # items embedded at a time: same gradients with less memory; null: all
    epochs: Positive  # maximum number of epochs
    steps_per_epoch: Positive | Literal["all"]  # "all": as many full batches as the items fill
    losses: Annotated[list[Term], Field(min_length=1)]  # their weighted sum is minimised
    optimizer: AdamW  # optimizer and learning rates
    schedule: Annotated[
        Schedule | EpochSchedule | StepDecay | Plateau, Field(discriminator="kind")
    ]  # schedule of the learning rate
    stop: Annotated[EarlyStopping | StdPlateau | None, Field(discriminator="kind")] = None  # null: after all epochs
    max_grad_norm: Annotated[float, Field(gt=0)] | None  # gradients are scaled down to this norm; null: never
    precision: Literal["float32", "bf16", "fp16"]  # bf16 and fp16 on CUDA only; elsewhere float32 with a warning
    save_minutes: Annotated[float, Field(gt=0)] | None = 10  # between states to resume from; null: one per epoch
    monitor: Monitor  # validation, and the checkpoints that are kept

    @property
    def sources(self) -> list[str]:
        """Names of the data sources for training and validation."""
        return list(dict.fromkeys([*self.train.data, *self.monitor.data]))


class Recipe(Strict):
    """All settings of a run.

    An entry of `data`, `experts`, `stages` or `rank` that is null is ignored, so that a study can remove one.
    """

    name: Name  # in the names of its runs; lower-case letters, digits and _
    seed: int = Field(ge=0, lt=2**31)  # seed of every random draw: weights, batches, dropout
    imports: list[str] = Field([])  # Python files with kinds of your own; a run keeps a copy
    banks: str  # folder of the feature banks, shared by all recipes
    data: Annotated[dict[Name, Source], Field(min_length=1)]  # sources of clips, by the names that stages and rank use
    relevance: Cider | None = None  # similarity between captions, for losses that use it
    model: RecipeModel  # encoders of clips and captions, and the score of their embeddings
    teachers: dict[Name, Teacher] = Field({})  # trained models that `distill` learns from, by name
    stages: dict[Name, Stage]  # trained in this order; without any, published weights or teachers are ranked
    rank: dict[Name, RankEntry]  # rankings that are written at the end

    @property
    def learned_from(self) -> dict[str, Path]:
        """Folders of start models and teachers from elsewhere, by keys."""
        models: dict[str, Any] = {f"stages.{name}.start_from": stage.start_from for name, stage in self.stages.items()}
        models |= {f"teachers.{name}": teacher for name, teacher in self.teachers.items()}
        return {key: Path(one.folder) for key, one in models.items() if isinstance(one, FromModel)}

    @property
    def other_models(self) -> dict[str, Path]:
        """Runs and exported models that are read, by keys."""
        ranked = {f"rank.{name}.of.{i}": one for name, e in self.rank.items() for i, one in enumerate(e.other_models)}
        return self.learned_from | {key: Path(folder) for key, folder in ranked.items()}

    def making(self, source: Source) -> Source:
        """Return the source that says how to make a manifest."""
        return next((one for one in self.data.values() if one.manifest == source.manifest and one.make), source)

    @property
    def trained_on(self) -> list[str]:
        """Names of the sources that stages train on, sorted."""
        return sorted({source for stage in self.stages.values() for source in stage.train.data})

    @property
    def learned(self) -> dict[str, float]:
        """Start value of each trained parameter of a loss.

        The first stage that has the parameter decides.
        """
        terms = [term for stage in reversed(self.stages.values()) for term in reversed(stage.losses)]
        return {name: value for term in terms for name, value in term.learned.items()}

    @property
    def scored(self) -> dict[str, RankEntry]:
        """Entries that rank clips of data sources, by name."""
        others = RankMoments | RankBlind
        return {name: one for name, one in self.rank.items() if not isinstance(self.ranked(name), others)}

    @property
    def rank_moments(self) -> dict[str, RankMoments]:
        """Entries of kind `moments`, by name."""
        return {name: entry for name, entry in self.rank.items() if isinstance(entry, RankMoments)}

    def ranked(self, name: str) -> RankEntry:
        """Return an entry, or the first that it combines."""
        entry = self.rank[name]
        return self.ranked(entry.combined_entries[0]) if entry.combined_entries else entry

    def blind(self, name: str) -> RankBlind | None:
        """Return the blind set that an entry ranks, if any."""
        ranked = self.ranked(name)
        return ranked if isinstance(ranked, RankBlind) else None

    def awaited_files(self, name: str) -> list[str]:
        """Return the missing files of an entry's blind set."""
        blind = self.blind(name)
        return blind.missing_files if blind else []

    def ranked_source(self, name: str) -> str:
        """Return the data source that an entry ranks."""
        return self.ranked(name).data


def settings_at(path: str) -> list[type[Strict]]:
    """Return the classes of settings at a path.

    Args:
        path: Such as stages.optimizer; names of stages and so on may be left out.
    """
    found: list[type[Strict]] = [Recipe]
    is_named = False  # the part before holds settings by names of the user's choice
    for part in filter(None, path.split(".")):
        having = [one for one in found if part in one.model_fields]
        if having:
            annotations = [one.model_fields[part].annotation for one in having]
            found = list(dict.fromkeys(kind for one in annotations for kind in _classes(one))) or having
            is_named = any(_holds_names(one) for one in annotations)
            continue
        known = dict.fromkeys(name for one in found for name in one.model_fields)
        if not is_named or difflib.get_close_matches(part, known, 1, 0.87):  # no name of the user's choice
            raise KitError(f"{path}: a recipe has no key {part!r} there; there are {', '.join(known)}")
        is_named = False
    return found


def source_of(kinds: Sequence[type[Strict]]) -> str:
    """Return the source of classes of settings.

    Methods are left out; bases come first, each once.
    """
    found = dict.fromkeys(base for kind in kinds for base in reversed(kind.__mro__) if issubclass(base, Strict))
    shown = [inspect.getsource(one) for one in found if one not in (Strict, OfKind)]
    return "\n\n".join("\n".join(_without_methods(source)).rstrip() for source in shown)


def _without_methods(source: str) -> Iterator[str]:
    for line in source.splitlines():
        if line.startswith(("    @", "    def ", "    async ")):
            return
        yield line


def _classes(annotation: Any) -> Iterator[type[Strict]]:
    """Yield the classes of settings that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield from annotation.all_kinds().values() if issubclass(annotation, OfKind) else [annotation]
    for one in get_args(annotation):
        yield from _classes(one)


def _holds_names(annotation: Any) -> bool:
    return any(getattr(one, "__origin__", one) in (dict, list) for one in (annotation, *get_args(annotation)))
