"""What a recipe may say: the closed, strict models of its YAML. Nothing here imports torch.

Shapes of the document: `data` names manifests; `model` says how clips and captions are embedded and scored (model.py);
`stages` train it in order (stages.py, losses.py); `rank` writes score matrices and ranked lists of the trained model. A
stage says everything about itself."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.manifest import Split
from data_tools.strict import Strict
from system.recipe.schema.common import Checkpoint, Metric, Name, Positive
from system.recipe.schema.losses import Loss, Matching, Negatives, NtXent, Ranking, WeightedTriplet
from system.recipe.schema.model import (
    Audio,
    Cosine,
    Crnn,
    ExpertHeads,
    FirstToken,
    FrameWord,
    Gru,
    Model,
    Panns,
    PooledMlp,
    SentenceTransformers,
    SpecAugment,
    Text,
    Transformer,
    WordVectors,
)
from system.recipe.schema.stages import (
    AdamW,
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
    "Audio",
    "ByCheckpoint",
    "ByMean",
    "Checkpoint",
    "Cider",
    "Cosine",
    "Crnn",
    "Expected",
    "ExpertHeads",
    "FirstToken",
    "FrameWord",
    "FromModel",
    "FromScratch",
    "FromStage",
    "Gru",
    "Loss",
    "Matching",
    "Metric",
    "Model",
    "Monitor",
    "Name",
    "Negatives",
    "NtXent",
    "Panns",
    "EarlyStopping",
    "Plateau",
    "PooledMlp",
    "Positive",
    "Ranked",
    "Ranking",
    "Recipe",
    "RelaxPoint",
    "Schedule",
    "SentenceTransformers",
    "Source",
    "SpecAugment",
    "Stage",
    "StdPlateau",
    "StepDecay",
    "Text",
    "Train",
    "Transformer",
    "WeightedTriplet",
    "WordVectors",
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


class RelaxPoint(Strict):
    """r(c) at a percentile of the corpus's scores."""

    percentile: float = Field(ge=0, le=100)
    factor: float = Field(ge=0, le=1)


class Cider(Strict):
    """CIDEr-D between captions, and the relax function that `relax: cider` of a ranking loss takes from it.

    Document frequencies and percentiles come from one corpus for all stages. Source: "Take it easy" (2022), section 4.
    """

    kind: Literal["cider"]
    corpus: Annotated[list[str], Field(min_length=1)]  # data sources whose captions are counted
    documents: Literal["caption", "clip"]  # what an n-gram's document frequency counts: captions, or clips
    tokenizer: Literal["regex", "ptb"]  # ptb needs Java
    pairs: Literal["all", "other_clips"]  # the ordered pairs the percentiles are of: all, or without those of one clip
    of_clips: Literal["mean", "max", "symmetric"]  # c_ij of clips with several captions
    relax: Annotated[list[RelaxPoint], Field(min_length=1)]  # percentiles rising, factors not


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
