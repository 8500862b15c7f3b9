"""What a recipe may say: the closed, strict models of its YAML. Nothing here imports torch.

Shapes of the document: `data` names manifests; `model` says how clips and captions are embedded and scored; `stages`
train it in order; `rank` writes score matrices and ranked lists of the trained model. A stage says everything about
itself."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from data_tools.manifest import Split
from system.experts import Expert, LogMelSlaney, Waveform
from system.strict import Strict

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # it becomes part of keys and file names
Positive = Annotated[int, Field(ge=1)]
# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
Metric = Literal["loss", "m1", "m2", "mAP@10", "recall_sum"]
Checkpoint = Literal["last", "loss", "m1", "m2", "mAP@10", "recall_sum"]  # the last, or the best by a monitored metric


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


class PooledMlp(Strict):
    """Frames of one frozen expert, pooled over time; linear to `hidden`, ReLU, linear to the text size.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2, with its encoder frozen.
    """

    kind: Literal["pooled_mlp"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]
    pooling: Literal["mean", "max", "max_mean"]  # max_mean: their sum, as PANNs do
    hidden: Positive
    dropout: float = Field(ge=0, lt=1)  # of the pooled frames


class SpecAugment(Strict):
    """In training, stripes of random place and width set to zero: of time (10 ms columns), and of frequency (bands)."""

    time_stripes: int = Field(ge=0)
    time_width: Positive  # the widest
    band_stripes: int = Field(ge=0)
    band_width: Positive


class Panns(Strict):
    """A network of PANNs on waveforms at 32 kHz, pooled over frequency, then over time; linear to `hidden`, ReLU,
    linear to the text size.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2; public code where silent.
    """

    kind: Literal["panns"]
    network: Literal["resnet38", "cnn14"]
    weights: str | None  # the published checkpoint; null: from scratch
    trainable: bool
    most_seconds: float = Field(gt=0)  # a longer clip: a random part in training, the whole one elsewhere
    frequency_pooling: Literal["mean", "max_mean"]  # mean: the public code; max_mean: the paper
    time_pooling: Literal["mean", "max", "max_mean"]
    dropout: float = Field(ge=0, lt=1)  # between the network's blocks
    spec_augment: SpecAugment | None
    hidden: Positive

    @property
    def experts(self) -> dict[str, Expert]:
        """What its input is kept as: 16-bit waveforms."""
        return {"waveform": Waveform(kind="waveform", sample_rate=32_000)}

    def weight_files(self) -> dict[str, Path]:
        return {} if self.weights is None else {"weights": Path(self.weights)}

    def published(self) -> str:
        names = {"resnet38": "ResNet38_mAP%3D0.434.pth", "cnn14": "Cnn14_mAP%3D0.431.pth"}
        return f"https://zenodo.org/record/3987831/files/{names[self.network]}"


class Crnn(Strict):
    """The CRNN of the DCASE 2022 baseline: log-mel frames, convolutions that leave every fourth, a GRU in both
    directions, frames again by linear interpolation; 2 x `hidden` values each, of length 1, or their mean of length 1.
    """

    kind: Literal["crnn"]
    experts: Annotated[dict[Name, LogMelSlaney], Field(min_length=1, max_length=1)]
    hidden: Positive  # of the GRU, in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the convolutions
    embedding: Literal["frames", "mean"]
    padding: Literal["masked", "counted"]  # counted: in training what fills a batch up is heard too, as in public code


class Gru(Strict):
    """Frames of one frozen expert: linear to `width`, a GRU in both directions; 2 x `hidden` values a frame, of length
    1, or their mean of length 1. The CRNN above without its convolutions, for frames that a network has made already.
    """

    kind: Literal["gru"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]
    width: Positive
    hidden: Positive  # in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the linear layer
    embedding: Literal["frames", "mean"]


Audio = ExpertHeads | PooledMlp | Panns | Crnn | Gru


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


class FirstToken(Strict):
    """A pre-trained transformer's first token ([CLS]); linear to `hidden`, ReLU, linear to `dim`.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2.
    """

    kind: Literal["first_token"]
    model: str  # hub name or folder
    trainable: bool
    removed: str  # characters taken out of captions
    dropout: float | None = Field(ge=0, lt=1)  # of the transformer's hidden states and attention; null: as published
    hidden: Positive
    dim: Positive  # D


class WordVectors(Strict):
    """A frozen vector a word, of length 1, or their mean of length 1; read from a file in word2vec's binary or text
    format.

    unknown: words that the file does not have get a random vector of length 1: `each` its own, drawn from its letters
    and so the same everywhere, or `one` for all of them.
    Source: "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 4.2.
    """

    kind: Literal["word_vectors"]
    vectors: str  # file
    dim: Positive  # D of the file, checked when it is read
    unknown: Literal["each", "one"]
    embedding: Literal["words", "mean"]
    padding: Literal["masked", "counted"]  # counted: in training what fills a batch up counts too, as in public code

    def weight_files(self) -> dict[str, Path]:
        return {"vectors": Path(self.vectors)}

    def published(self) -> str:
        return "code.google.com/archive/p/word2vec (GoogleNews-vectors-negative300.bin.gz, unpacked)"


Text = Transformer | SentenceTransformers | FirstToken | WordVectors


class Cosine(Strict):
    """Cosine of a clip's and a caption's embedding."""

    kind: Literal["cosine"]


class FrameWord(Strict):
    """Dot products of all frames of a clip and all words of a caption, those below 0 taken as 0; then `mean`: of all;
    `best_frame`: every word's best frame, the mean over words; `best_word`: every frame's best word, the mean over
    frames.

    Source: Xie et al., "Unsupervised Audio-Caption Aligning Learns Correspondences between Individual Sound Events and
    Textual Phrases" (2022), and "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), which uses `mean`.
    """

    kind: Literal["frame_word"]
    reduce: Literal["mean", "best_frame", "best_word"]


class Model(Strict):
    audio: Annotated[Audio, Field(discriminator="kind")]
    text: Annotated[Text, Field(discriminator="kind")]
    score: Annotated[Cosine | FrameWord, Field(discriminator="kind")]

    def missing_files(self) -> list[str]:
        """A sentence for each published file of an encoder (not of an expert, which tells its own) that is absent."""
        parts = [("audio", self.audio), ("text", self.text)]
        return [
            f"{part.kind}: no file {path}; published at {part.published()}; put it there, or --set model.{name}.{key}"
            for name, part in parts
            if isinstance(part, Panns | WordVectors)
            for key, path in part.weight_files().items()
            if not path.is_file()
        ]


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


class StepDecay(Strict):
    """The learning rate is multiplied by `factor` behind every `every_epochs` epochs."""

    kind: Literal["step"]
    every_epochs: Positive
    factor: float = Field(gt=0, lt=1)


class Plateau(Strict):
    """The learning rate is multiplied by `factor` once a monitored metric has been no better than its best for more
    than `patience` epochs; then the count begins anew. It never falls below `least_lr`.

    better: by more than `threshold`, as a difference. Source: torch's ReduceLROnPlateau with threshold_mode "abs".
    """

    kind: Literal["plateau"]
    metric: Metric
    factor: float = Field(gt=0, lt=1)
    patience: int = Field(ge=0)
    threshold: float = Field(ge=0)
    least_lr: float = Field(ge=0)


class Patience(Strict):
    """The stage ends once a monitored metric has not been better than its best for `epochs` epochs."""

    kind: Literal["patience"]
    metric: Metric
    epochs: Positive


class Steady(Strict):
    """The stage ends once the standard deviation of a metric's last `epochs` values is at most `deviation`, not before
    `at_least` epochs. Source: Ray Tune's TrialPlateauStopper, which the public code of both CRNN systems uses."""

    kind: Literal["steady"]
    metric: Metric
    epochs: Annotated[int, Field(ge=2)]
    deviation: float = Field(ge=0)
    at_least: Positive


Negatives = Literal[
    "all",
    "hardest",
    "random",
    "random_apart",
    "semi_hard",
    "text_hard",
    "text_easy",
    "audio_hard",
    "audio_easy",
]


class Ranking(Strict):
    """Contrastive ranking loss; `relax: cider` lowers the margin between clips whose captions resemble each other, as
    the recipe's `relevance` says.

    negatives: all of the batch, or one caption and one clip an item: the `hardest` (highest score), `random` ones,
    `random_apart` (never the caption and the clip of one item), the `semi_hard` (score closest to the matching pair's),
    or caption and clip of the one item whose captions (`text_`) or clip (`audio_`) resemble the item's most (`_hard`)
    or least (`_easy`).
    reduce: of all negatives, the sum or the mean of the hinges, or the hinge of the mean score.
    """

    kind: Literal["ranking"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)
    relax: Literal["none", "cider"]
    negatives: Negatives = "all"
    reduce: Literal["sum", "mean", "hinge_of_mean"] = "sum"


class WeightedTriplet(Strict):
    """Maximum polynomial loss: polynomials of the matching pair's score and of the hardest negative's.

    positive, negative: coefficients, that of the constant first. clamp: `sum`, the paper's, [positive + negative]_+
    with the hardest negative of all; `each`, the public code's, [positive]_+ + [negative]_+ with the hardest of the
    negatives that violate the margin, and nothing where none does.
    """

    kind: Literal["weighted_triplet"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)  # read by clamp `each`
    positive: Annotated[list[float], Field(min_length=1)]
    negative: Annotated[list[float], Field(min_length=1)]
    clamp: Literal["sum", "each"]


class Matching(Strict):
    """Matching similarity: minus the mean score of the matching pairs."""

    kind: Literal["matching"]
    weight: float = Field(gt=0)


class NtXent(Strict):
    """Normalised temperature-scaled cross entropy: each clip's caption among all of the batch, and the other way.

    same_clip: other items of the batch that show the same audio are left out, or are negatives as in public code.
    directions: the mean of both, as in public code, or their sum, as the paper writes it.
    """

    kind: Literal["nt_xent"]
    weight: float = Field(gt=0)
    temperature: float = Field(gt=0, le=1)
    same_clip: Literal["left_out", "negatives"] = "left_out"
    directions: Literal["mean", "sum"] = "mean"


Loss = Annotated[Ranking | WeightedTriplet | Matching | NtXent, Field(discriminator="kind")]


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
    schedule: Annotated[Schedule | StepDecay | Plateau, Field(discriminator="kind")]
    stop: Annotated[Patience | Steady | None, Field(discriminator="kind")] = None  # null: all epochs
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
