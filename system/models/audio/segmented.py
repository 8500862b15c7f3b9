"""Networks for segments: common settings.

The networks process segments of a fixed length. They are trained or frozen, and followed by an embedding layer.

Never imports torch.
"""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias, cast

from pydantic import Field, ValidationError, model_validator

from data_tools.settings import Positive, Size, Strict, mistakes
from system.experts import Expert, Waveform
from system.experts.base import Resampled
from system.models.audio.base import AudioSettings, Encoder
from system.models.base import Facts

if TYPE_CHECKING:
    from system.networks.segment import SegmentNetwork

Network: TypeAlias = "SegmentNetwork"  # naming it imports no torch


class SpecAugment(Strict):
    """Stripes of random position and width, set to zero in training: of time (10 ms columns), and frequency (bands)."""

    time_stripes: int = Field(ge=0)  # number of stripes in time
    time_width: Positive  # their maximum width plus 1
    band_stripes: int = Field(ge=0)  # number of stripes in frequency
    band_width: Positive  # their maximum width plus 1


class Segmented(AudioSettings, Resampled):
    """Settings of encoders that cut clips into segments and apply a network, which returns a vector per segment. The
    vectors of a clip's segments are pooled, and mapped to the size of text embeddings by a linear layer.

    A subclass defines its `kind`, `sample_rate`, `vector_dim` (size D of the network's vectors), the shortest and
    longest segment (`limits`), the network, and the path of its weights.
    """

    trainable: bool  # false: frozen
    segment_seconds: float = Field(gt=0.02)  # length of a segment; a shorter rest is padded with silence
    hop_seconds: float = Field(gt=0.01)  # seconds from the start of one segment to the start of the next
    max_seconds: float = Field(gt=0)  # training uses a random part of longer clips, ranking the whole clip
    segment_pooling: Literal["mean", "seconds", "attention"]  # of a clip's segments; seconds: a mean, weighted by them
    hidden: Size | None  # size of a layer with ReLU before the last one; null: only the last layer
    head: Literal["linear", "none"] = "linear"  # none: the network's vectors, which must have the text's size

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""

    @property
    def experts(self) -> dict[str, Expert]:
        """Dict whose only entry describes the encoder's input: 16-bit waveforms instead of an expert's frames."""
        return {"waveform": Waveform(kind="waveform", sample_rate=self.sample_rate, resampling=self.resampling)}

    @property
    def training_frames(self) -> int:
        """Maximum number of samples per clip in training; a random part of this length is cut out of longer clips."""
        return round(self.max_seconds * self.sample_rate)

    @property
    @abstractmethod
    def vector_dim(self) -> int:
        """Number of values, D, in the vector that the network returns per segment."""

    @property
    def size_known(self) -> bool:
        """Whether `vector_dim` is the known size of this network's vectors; false if it is only assumed."""
        return True

    @property
    @abstractmethod
    def limits(self) -> tuple[float, float]:
        """Shortest and longest input that the network accepts, in seconds."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the network, for messages."""

    @abstractmethod
    def pretrained(self) -> Path | None:
        """Return the file or folder of published weights; None for a network that is trained from scratch."""

    @abstractmethod
    def build_network(self) -> Network:
        """Build the network with untrained weights. This method imports torch."""

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"network": self.trainable, "head": self.head == "linear" or self.segment_pooling == "attention"}

    @property
    def is_published(self) -> bool:
        """Whether all weights of the encoder are published, so that it is useful before any training."""
        return self.has_weights and self.head == "none" and self.segment_pooling != "attention"

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether the network has published weights."""

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield the name and an error message of each setting that does not fit the other settings."""
        shortest, longest = self.limits
        if not shortest <= self.segment_seconds <= longest:
            yield (
                "segment_seconds",
                f"{self.title} needs segments of {shortest} to {longest} s, not {self.segment_seconds} s; change "
                "segment_seconds",
            )
        if self.hop_seconds > self.segment_seconds:
            yield "hop_seconds", "hop_seconds must be at most segment_seconds, else parts of a clip would be skipped"
        if self.max_seconds < self.segment_seconds:
            yield (
                "max_seconds",
                f"max_seconds must be at least segment_seconds, {self.segment_seconds:g}, so that a training clip "
                "fills a segment",
            )
        if self.head == "none" and self.hidden is not None:
            yield (
                "head",
                "`head: none` adds no layer, but `hidden` sets the size of a layer; set hidden: null, or head: linear",
            )
        if self.head == "none" and self.size_known and self.vector_dim != out:
            yield (
                "head",
                f"`head: none` needs vectors as long as text embeddings, but the vectors have {self.vector_dim} values "
                f"and text embeddings {out}; set head: linear",
            )

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.segmented_encoder import SegmentedEncoder

        ((name, _),) = self.experts.items()
        seconds = self.segment_seconds, self.hop_seconds
        size, hop = (round(each * self.sample_rate) for each in seconds)
        return SegmentedEncoder(
            name,
            self.build_network(),
            out,
            pretrained=self.pretrained(),
            trainable=self.trainable,
            size=size,
            hop=hop,
            training_samples=self.training_frames,
            pooling=self.segment_pooling,
            has_head=self.head == "linear",
            hidden=self.hidden,
        )


class FromPublished(Segmented):
    """A network whose weights are one published file, or that is trained from scratch."""

    weights: str | None  # the published checkpoint; null: from scratch

    file_settings: ClassVar[frozenset[str]] = frozenset({"weights"})

    @model_validator(mode="after")
    def _require_weights_or_training(self) -> Self:
        """Raise an error for a frozen network without published weights, which would stay random."""
        if not self.trainable and self.weights is None:
            said = "a network without published weights must be trained; set trainable: true, or name its weights"
            raise cast(ValidationError, mistakes([(("trainable",), said)]))
        return self

    @property
    def sample_rate(self) -> int:
        """Sample rate of the network's input, in Hz."""
        return 32_000

    @property
    def has_weights(self) -> bool:
        """Whether the network has published weights."""
        return self.weights is not None

    def pretrained(self) -> Path | None:
        """Return the file or folder of published weights; None for a network that is trained from scratch."""
        return None if self.weights is None else Path(self.weights)

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting to path, for every setting with the path of a published weight file."""
        return {} if self.weights is None else {"weights": Path(self.weights)}

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        licence = f", licence {self.licence}" if self.licence else ""
        source = "from scratch" if self.weights is None else f"from {self.weights}{licence}"
        return f"{self.title}, {'trained' if self.trainable else 'frozen'}, {source}", self.file_problems()
