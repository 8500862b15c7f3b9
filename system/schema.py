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


class Source(Strict):
    """Clips of one split of one manifest, and the command that makes the manifest when it is missing."""

    manifest: str
    split: Split
    make: str | None = None  # python -m data_tools ...


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
    """Contrastive ranking loss over all negatives of the batch."""

    kind: Literal["ranking"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)


class Matching(Strict):
    """Matching similarity: minus the mean score of the matching pairs."""

    kind: Literal["matching"]
    weight: float = Field(gt=0)


Loss = Annotated[Ranking | Matching, Field(discriminator="kind")]


class Stage(Strict):
    start_from: Annotated[FromScratch | FromStage | FromModel, Field(discriminator="kind")]
    train: Train
    unit: Literal["clip", "pair"]  # a batch is made of clips with n captions each, or of (clip, caption) pairs
    captions_per_clip: Positive | Literal["all"] | None = None  # for clips: n drawn anew at every visit
    batch_size: int = Field(ge=2)
    epochs: Positive
    steps_per_epoch: Positive | Literal["all"]  # "all": as many as the items fill
    losses: Annotated[list[Loss], Field(min_length=1)]
    optimizer: AdamW
    schedule: Schedule
    clip_gradient: Annotated[float, Field(gt=0)] | None  # largest norm of all gradients together
    precision: Literal["float32", "bf16", "fp16"]  # 16 bits on CUDA only; elsewhere float32 is used and said
    monitor: Monitor


class Ranked(Strict):
    """A score matrix of one source's captions against its clips, its figures, and the challenge's file of it.

    A ranked CSV knows a query by its text: a split whose clips share captions (AudioCaps) has figures, but no such
    file."""

    data: str
    stage: str
    checkpoint: Checkpoint
    edition: int  # challenge year, which says what the figures and the file are
    ranked_csv: bool


class Recipe(Strict):
    name: Name
    seed: int = Field(ge=0, lt=2**31)
    banks: str  # folder of the feature banks, shared by all recipes
    data: Annotated[dict[Name, Source], Field(min_length=1)]
    model: Model
    stages: Annotated[dict[Name, Stage], Field(min_length=1)]
    rank: dict[Name, Ranked]
