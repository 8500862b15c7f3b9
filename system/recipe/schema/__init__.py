"""What a recipe may say: the closed, strict models of its YAML. Nothing here imports torch.

Shapes of the document: `data` names manifests; `model` says how clips and captions are embedded and scored (see
system/models); `stages` train it in order (stages.py); `rank` writes score matrices and ranked lists of the trained
model. A stage says everything about itself."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.manifest import Split
from data_tools.strict import Name, Positive, Strict
from system.losses.relevance.settings import Cider
from system.models.settings import Model
from system.recipe.schema.stages import (
    AdamW,
    Checkpoint,
    EarlyStopping,
    FromModel,
    FromScratch,
    FromStage,
    Monitor,
    Plateau,
    Schedule,
    Stage,
    StdPlateau,
    StepDecay,
    Train,
)

__all__ = [
    "AdamW",
    "ByCheckpoint",
    "ByMean",
    "EarlyStopping",
    "Expected",
    "FromModel",
    "FromScratch",
    "FromStage",
    "Model",
    "Monitor",
    "Plateau",
    "Ranked",
    "Recipe",
    "Schedule",
    "Source",
    "Stage",
    "StdPlateau",
    "StepDecay",
    "Train",
]


class Expected(Strict):
    """What a source holds as published, for plans made before it is there."""

    clips: Positive
    captions: Positive
    hours: float = Field(gt=0)  # of audio


class Source(Strict):
    """Clips of one split of one manifest, and the command that makes the manifest when it is missing."""

    manifest: str
    split: Split
    make: str | None = None  # python -m data_tools ...
    published: str | None = None  # where what `make` reads is to be had
    expected: Expected | None = None


class ByCheckpoint(Strict):
    """A score matrix of one source's captions against its clips by one checkpoint, its figures, and the challenge's
    file of it.

    csv: write the edition's CSV. It knows a query by its text: a split whose clips share captions (AudioCaps) has
    figures, but no such file."""

    kind: Literal["checkpoint"]
    data: str
    stage: str
    checkpoint: Checkpoint
    edition: int | Literal["custom"]  # challenge year, which says what the figures and the file are
    csv: bool


class ByMean(Strict):
    """The mean of the score matrices of earlier entries, which rank the same source."""

    kind: Literal["mean"]
    of: Annotated[list[str], Field(min_length=2)]
    edition: int | Literal["custom"]
    csv: bool


Ranked = Annotated[ByCheckpoint | ByMean, Field(discriminator="kind")]


class Recipe(Strict):
    """An entry of `data`, `experts`, `stages` or `rank` that is null is left out, so that a study can leave one out."""

    name: Name
    seed: int = Field(ge=0, lt=2**31)
    banks: str  # folder of the feature banks, shared by all recipes
    data: Annotated[dict[Name, Source], Field(min_length=1)]
    relevance: Cider | None = None  # between captions, for losses that ask for it
    model: Model
    stages: Annotated[dict[Name, Stage], Field(min_length=1)]
    rank: dict[Name, Ranked]

    def ranked_source(self, name: str) -> str:
        """The data source that a rank entry ranks; a mean ranks what its parts do."""
        entry = self.rank[name]
        return entry.data if isinstance(entry, ByCheckpoint) else self.ranked_source(entry.of[0])
