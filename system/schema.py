"""What a recipe may say: the closed, strict models of its YAML. Nothing here imports torch.

Shapes of the document: `data` names manifests; `model` says how clips and captions are embedded and scored; `stages`
train it in order; `rank` writes score matrices and ranked lists of the trained model. A stage says everything about
itself."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.manifest import Split
from system.experts import Expert
from system.strict import Strict

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # it becomes part of keys and file names
Positive = Annotated[int, Field(ge=1)]
Metric = Literal["loss", "m1", "m2", "mAP@10"]
Checkpoint = Literal["last", "loss", "m1", "m2", "mAP@10"]  # the last one, or the best one by a monitored metric


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


class ExpertHeads(Strict):
    """Per expert: linear to `width`, BART-type encoder, mean over time, linear to the text size; mean over experts.

    Source: "Take it easy" (2022), section 3.
    """

    kind: Literal["expert_heads"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1)]
    width: Positive
    layers: Positive
    heads: Positive
    ff: Positive
    positions: Positive  # frames in a window; longer series are cut into windows
    dropout: float = Field(ge=0, lt=1)


class Transformer(Strict):
    """A small text transformer from scratch over the words of the training captions."""

    kind: Literal["transformer"]
    dim: Positive  # D, also the size of the audio embedding
    layers: Positive
    heads: Positive
    ff: Positive
    max_words: Positive
    dropout: float = Field(ge=0, lt=1)


class SentenceTransformers(Strict):
    """A pre-trained sentence encoder by hub name or folder; frozen, its embeddings are computed once and kept."""

    kind: Literal["sentence_transformers"]
    model: str
    dim: Positive  # D of the model, checked when it is loaded
    trainable: bool
    projection: Literal["none", "linear"]  # a trainable D x D layer behind the encoder


class Cosine(Strict):
    """Cosine of a clip's and a caption's embedding."""

    kind: Literal["cosine"]


class Model(Strict):
    audio: ExpertHeads
    text: Annotated[Transformer | SentenceTransformers, Field(discriminator="kind")]
    score: Cosine


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


class FromScratch(Strict):
    kind: Literal["scratch"]


class FromStage(Strict):
    kind: Literal["stage"]
    stage: str
    checkpoint: Checkpoint


class FromModel(Strict):
    kind: Literal["model"]
    folder: str  # an exported model


class Train(Strict):
    data: Annotated[list[str], Field(min_length=1)]
    mix: Literal["equal", "size"]  # every source equally often, or every item equally often


class Monitor(Strict):
    """Validation after every epoch; a checkpoint is kept while it is among the `keep` best by any of `metrics`."""

    data: Annotated[list[str], Field(min_length=1)]
    metrics: Annotated[list[Metric], Field(min_length=1)]
    keep: Positive
    test_split: Literal["acknowledged"] | None = None


class AdamW(Strict):
    kind: Literal["adamw"]
    lr: float = Field(gt=0, le=1)
    weight_decay: float = Field(ge=0, le=1)


class Schedule(Strict):
    """Factor on the learning rate: rises linearly over `warmup_steps`, then stays, or falls along a half cosine to
    0."""

    kind: Literal["constant", "cosine"]
    warmup_steps: int = Field(ge=0)


class Ranking(Strict):
    """Contrastive ranking loss over all negatives of the batch; `relax: cider` lowers the margin between clips whose
    captions resemble each other, as the recipe's `relevance` says."""

    kind: Literal["ranking"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)
    relax: Literal["none", "cider"]


class Matching(Strict):
    """Matching similarity: minus the mean score of the matching pairs."""

    kind: Literal["matching"]
    weight: float = Field(gt=0)


class NtXent(Strict):
    """Normalised temperature-scaled cross entropy: each clip's caption among all of the batch, and the other way."""

    kind: Literal["nt_xent"]
    weight: float = Field(gt=0)
    temperature: float = Field(gt=0, le=1)


Loss = Annotated[Ranking | Matching | NtXent, Field(discriminator="kind")]


class Stage(Strict):
    start_from: Annotated[FromScratch | FromStage | FromModel, Field(discriminator="kind")]
    train: Train
    unit: Literal["clip", "pair"]  # a batch is made of clips with n captions each, or of (clip, caption) pairs
    captions_per_clip: Positive | Literal["all"] | None = None  # for clips: n drawn anew at every visit
    batch_size: int = Field(ge=2)
    gradient_cache: Positive | None  # items embedded at a time, so that less memory gives the same gradients
    epochs: Positive
    steps_per_epoch: Positive | Literal["all"]  # "all": as many as the items fill
    losses: Annotated[list[Loss], Field(min_length=1)]
    optimizer: AdamW
    schedule: Schedule
    clip_gradient: Annotated[float, Field(gt=0)] | None  # largest norm of all gradients together
    precision: Literal["float32", "bf16", "fp16"]  # 16 bits on CUDA only; elsewhere float32 is used and said
    monitor: Monitor


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
