"""What ends in a GRU of both directions: the CRNN of the DCASE 2022 baseline, and a GRU on a frozen expert."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from data_tools.documents.strict import Name, Size
from system.experts import Expert, LogMelSlaney
from system.models.audio.base import AudioSettings, Encoder
from system.models.costs import TRAINING, Cost, gru_flops, gru_parameters

CHANNELS = 128  # of the convolutions
MIN_BANDS = 64  # that they turn into one


class GruSettings(AudioSettings):
    """What ends in a GRU of both directions, as its subclasses' fields `hidden` and `embedding` say."""

    if TYPE_CHECKING:  # a subclass says where they stand
        hidden: int
        embedding: Literal["frames", "mean"]

    @property
    def gives_series(self) -> bool:
        return self.embedding == "frames"

    def misfits(self, out: int) -> Iterator[tuple[str, str]]:
        if 2 * self.hidden != out:
            yield "hidden", f"both directions give 2 x {self.hidden} values, text has {out}"


class WideLogMel(LogMelSlaney):
    """Of as many bands as the convolutions need."""

    @field_validator("bands")
    @classmethod
    def _enough(cls, bands: int) -> int:
        if bands < MIN_BANDS:
            raise ValueError(f"the convolutions of crnn need {MIN_BANDS} bands, not {bands}")
        return bands


class Crnn(GruSettings):
    """The CRNN of the DCASE 2022 baseline: log-mel frames, convolutions that leave every fourth, a GRU in both
    directions, frames again by linear interpolation; 2 x `hidden` values each, of length 1, or their mean of length 1.
    """

    kind: Literal["crnn"]
    experts: Annotated[dict[Name, WideLogMel], Field(min_length=1, max_length=1)]  # one, by any name
    hidden: Size  # of the GRU, in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the convolutions
    embedding: Literal["frames", "mean"]  # a vector a frame, or their mean
    padding: Literal["masked", "counted"]  # counted: in training what fills a batch up is heard too, as in public code

    sees_whole_batch: ClassVar[bool] = True

    def build(self, out: int) -> Encoder:
        from system.models.audio.crnn_encoder import CrnnEncoder

        ((name, logmel),) = self.experts.items()
        inputs = CHANNELS * (logmel.bands // MIN_BANDS)
        return CrnnEncoder(name, inputs, self.hidden, self.dropout, self.embedding, self.padding)

    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        """Every convolution keeps about two values of its input, for the batch norm in front of it, and two of its
        output. Measured on a CPU: 8 clips of 30 s take 13 % less memory than is reckoned from this, 32 of 20 s 12 %
        less; its narrow layers reach a third of the operations a second that wide ones do, so a step takes three times
        as long."""
        (expert,) = self.experts.values()
        columns = longest * expert.frames_per_second
        inputs, outputs = (1, 32, 128, 128, 128), (32, 128, 128, 128, 128)
        frames = [columns * expert.bands / shrunk for shrunk in (1, 8, 8, 64, 64)]
        rows = list(zip(inputs, outputs, frames, strict=True))
        convolutions = sum(9 * i * o + 2 * i for i, o, _ in rows)
        width = CHANNELS * (expert.bands // MIN_BANDS)
        activations = sum(2 * (i + o) * n for i, o, n in rows) + columns * (3 * self.hidden + 4 * out)
        flops = TRAINING * sum(9 * i * o * n for i, o, n in rows) + gru_flops(columns / 4, width, self.hidden)
        return Cost({"convolutions": convolutions, "gru": gru_parameters(width, self.hidden)}, activations, flops)


class Gru(GruSettings):
    """Frames of one frozen expert: linear to `width`, a GRU in both directions; 2 x `hidden` values a frame, of length
    1, or their mean of length 1. The CRNN above without its convolutions, for frames that a network has made already.
    """

    kind: Literal["gru"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]  # one, by any name
    width: Size  # values a frame before the GRU
    hidden: Size  # in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the linear layer
    embedding: Literal["frames", "mean"]  # a vector a frame, or their mean

    def build(self, out: int) -> Encoder:
        from system.models.audio.crnn_encoder import GruEncoder

        ((name, expert),) = self.experts.items()
        return GruEncoder(name, expert.dim, self.width, self.hidden, self.dropout, self.embedding)

    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        (expert,) = self.experts.values()
        frames = longest * expert.frames_per_second
        linear = (expert.dim + 1) * self.width
        activations = frames * (3 * self.width + 12 * self.hidden + 4 * out)
        flops = TRAINING * linear * frames + gru_flops(frames, self.width, self.hidden)
        trainable = {"linear": linear, "gru": gru_parameters(self.width, self.hidden)}
        return Cost(trainable, activations, flops, frames * expert.dim)
