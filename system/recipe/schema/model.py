"""How clips and captions are embedded and scored: the closed lists of audio encoders, text encoders, and scores."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from data_tools.strict import Strict
from system.experts import Expert, LogMelSlaney, Waveform
from system.experts.base import Resampled
from system.networks.published import ADDRESSES
from system.recipe.schema.common import Depth, Name, Positive, Size


class ExpertHeads(Strict):
    """Per expert: linear to `width`, BART-type encoder, mean over time, linear to the text size; mean over experts.

    Source: "Take it easy" (2022), section 3.
    """

    kind: Literal["expert_heads"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1)]
    width: Size
    layers: Depth
    heads: Size
    ffn_dim: Size
    max_positions: Size  # frames in a window; longer series are cut into windows
    dropout: float = Field(ge=0, lt=1)


class PooledMlp(Strict):
    """Frames of one frozen expert, pooled over time; linear to `hidden`, ReLU, linear to the text size.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2, with its encoder frozen.
    """

    kind: Literal["pooled_mlp"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]
    pooling: Literal["mean", "max", "max_mean"]  # max_mean: their sum, as PANNs do
    hidden: Size
    dropout: float = Field(ge=0, lt=1)  # of the pooled frames


class SpecAugment(Strict):
    """In training, stripes of random place and width set to zero: of time (10 ms columns), and of frequency (bands)."""

    time_stripes: int = Field(ge=0)
    time_width: Positive  # the widest is one less
    band_stripes: int = Field(ge=0)
    band_width: Positive  # the widest is one less


class Panns(Resampled):
    """A network of PANNs on waveforms at 32 kHz, pooled over frequency, then over time; linear to `hidden`, ReLU,
    linear to the text size.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2; public code where silent.
    """

    kind: Literal["panns"]
    network: Literal["resnet38", "cnn14"]
    weights: str | None  # the published checkpoint; null: from scratch
    trainable: bool
    max_seconds: float = Field(gt=0)  # a longer clip: a random part in training, the whole one elsewhere
    frequency_pooling: Literal["mean", "max_mean"]  # mean: the public code; max_mean: the paper
    time_pooling: Literal["mean", "max", "max_mean"]
    dropout: float = Field(ge=0, lt=1)  # between the network's blocks
    spec_augment: SpecAugment | None
    hidden: Size

    @property
    def experts(self) -> dict[str, Expert]:
        """What its input is kept as: 16-bit waveforms."""
        return {"waveform": Waveform(kind="waveform", sample_rate=32_000, resampling=self.resampling)}

    def weight_files(self) -> dict[str, Path]:
        return {} if self.weights is None else {"weights": Path(self.weights)}

    def published(self) -> str:
        return ADDRESSES[self.network]


class Crnn(Strict):
    """The CRNN of the DCASE 2022 baseline: log-mel frames, convolutions that leave every fourth, a GRU in both
    directions, frames again by linear interpolation; 2 x `hidden` values each, of length 1, or their mean of length 1.
    """

    kind: Literal["crnn"]
    experts: Annotated[dict[Name, LogMelSlaney], Field(min_length=1, max_length=1)]
    hidden: Size  # of the GRU, in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the convolutions
    embedding: Literal["frames", "mean"]
    padding: Literal["masked", "counted"]  # counted: in training what fills a batch up is heard too, as in public code


class Gru(Strict):
    """Frames of one frozen expert: linear to `width`, a GRU in both directions; 2 x `hidden` values a frame, of length
    1, or their mean of length 1. The CRNN above without its convolutions, for frames that a network has made already.
    """

    kind: Literal["gru"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]
    width: Size
    hidden: Size  # in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the linear layer
    embedding: Literal["frames", "mean"]


Audio = ExpertHeads | PooledMlp | Panns | Crnn | Gru


class Transformer(Strict):
    """A small text transformer from scratch over the words of the training captions."""

    kind: Literal["transformer"]
    dim: Size  # D, also the size of the audio embedding
    layers: Depth
    heads: Size
    ffn_dim: Size
    max_words: Size
    dropout: float = Field(ge=0, lt=1)


class SentenceTransformers(Strict):
    """A pre-trained sentence encoder by hub name or folder; frozen, its embeddings are computed once and kept."""

    kind: Literal["sentence_transformers"]
    model: str
    dim: Size  # D of the model, checked when it is loaded
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
    hidden: Size
    dim: Size  # D


class WordVectors(Strict):
    """A frozen vector a word, made of length 1, or the mean of them as they are, made of length 1; read from a file in
    word2vec's binary or text format.

    unknown: words that the file does not have get a random vector of length 1: `each` its own, drawn from its letters
    and so the same everywhere, or `one` for all of them.
    Source: "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 4.2.
    """

    kind: Literal["word_vectors"]
    vectors: str  # file
    dim: Size  # D of the file, checked when it is read
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

    @property
    def embeds_by_parts(self) -> bool:
        """Whether an embedding is the same in parts of a training batch, so that cached gradients are the same: trained
        batch norms and counted padding see the whole batch."""
        norms = self.audio.kind == "crnn" or (isinstance(self.audio, Panns) and self.audio.trainable)
        words = self.text if isinstance(self.text, WordVectors) else None
        return not norms and not (words and words.embedding == "words" and words.padding == "counted")

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
