"""CRNN and GRU: settings.

Settings of encoders with a bidirectional GRU: the CRNN of the DCASE 2022 baseline, and a GRU on a frozen expert.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from data_tools.settings import Name, Size
from system.experts import Expert, LogMelSlaney
from system.models.audio.base import AudioSettings, Encoder

CHANNELS = 128  # of the convolutions
MIN_BANDS = 64  # the convolutions reduce 64 bands to one


class GruSettings(AudioSettings):
    """Base of encoders that end in a bidirectional GRU, with the fields `hidden` and `embedding` of the subclasses."""

    if TYPE_CHECKING:  # defined in subclasses, which choose their order
        hidden: int
        embedding: Literal["frames", "mean"]

    @property
    def embeds_series(self) -> bool:
        """Whether an embedding is a series of frames instead of one vector."""
        return self.embedding == "frames"

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield an error message if the GRU's output and text embeddings have different sizes."""
        if 2 * self.hidden != out:
            yield (
                "hidden",
                f"the GRU returns 2 x {self.hidden} values, but text embeddings have {out}; set hidden to {out // 2}",
            )


class WideLogMel(LogMelSlaney):
    """A log-mel spectrogram with enough bands for the convolutions."""

    @field_validator("bands")
    @classmethod
    def _require_bands(cls, bands: int) -> int:
        """Raise an error if the spectrogram has too few mel bands for the convolutions."""
        if bands < MIN_BANDS:
            raise ValueError(f"crnn needs at least {MIN_BANDS} mel bands, not {bands}; raise bands")
        return bands


class Crnn(GruSettings):
    """The CRNN of the DCASE 2022 baseline. Its steps are: log-mel frames, convolutions that reduce the number of frames
    to a quarter, a bidirectional GRU, and linear interpolation to the original number of frames. Each frame has 2 x
    `hidden` values, scaled to length 1. The embedding is the series of frames, or their mean, scaled to length 1.
    """

    kind: Literal["crnn"]
    experts: Annotated[dict[Name, WideLogMel], Field(min_length=1, max_length=1)]  # one expert, by any name
    hidden: Size  # of the GRU, in each direction
    dropout: float = Field(ge=0, lt=1)  # after the convolutions
    embedding: Literal["frames", "mean"]  # one vector per frame, or their mean
    padding: Literal["masked", "counted"]  # counted: padding counts as audio in training, as in public code

    depends_on_batch: ClassVar[bool] = True

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"convolutions": True, "gru": True}

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.crnn_encoder import CrnnEncoder

        ((name, logmel),) = self.experts.items()
        inputs = CHANNELS * (logmel.bands // MIN_BANDS)
        return CrnnEncoder(name, inputs, self.hidden, self.dropout, self.embedding, self.padding)


class Gru(GruSettings):
    """A linear layer to `width` values and a bidirectional GRU on the frames of one frozen expert. Each frame has 2 x
    `hidden` values, scaled to length 1. The embedding is the series of frames, or their mean, scaled to length 1. This
    encoder is `crnn` without the convolutions, for frames that are the output of a network.
    """

    kind: Literal["gru"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]  # one expert, by any name
    width: Size  # values per frame before the GRU
    hidden: Size  # in each direction
    dropout: float = Field(ge=0, lt=1)  # after the linear layer
    embedding: Literal["frames", "mean"]  # one vector per frame, or their mean

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"linear": True, "gru": True}

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.crnn_encoder import GruEncoder

        ((name, expert),) = self.experts.items()
        return GruEncoder(name, expert.dim, self.width, self.hidden, self.dropout, self.embedding)
