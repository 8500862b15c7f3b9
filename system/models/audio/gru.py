"""A GRU of both directions on a frozen expert: the CRNN without its convolutions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from data_tools.strict import Name, Size
from system.experts import Expert
from system.models.audio.base import AudioSettings, Encoder
from system.models.costs import TRAINING, Cost, gru_flops, gru_parameters


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


class Gru(GruSettings):
    """Frames of one frozen expert: linear to `width`, a GRU in both directions; 2 x `hidden` values a frame, of length
    1, or their mean of length 1. For frames that a network has made already.
    """

    kind: Literal["gru"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]
    width: Size
    hidden: Size  # in each direction
    dropout: float = Field(ge=0, lt=1)  # behind the linear layer
    embedding: Literal["frames", "mean"]

    def build(self, out: int) -> Encoder:
        from system.models.audio.crnn_encoder import GruEncoder

        return GruEncoder(self)

    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        (expert,) = self.experts.values()
        frames = longest * expert.frames_per_second
        linear = (expert.dim + 1) * self.width
        activations = frames * (3 * self.width + 12 * self.hidden + 4 * out)
        flops = TRAINING * linear * frames + gru_flops(frames, self.width, self.hidden)
        trainable = {"linear": linear, "gru": gru_parameters(self.width, self.hidden)}
        return Cost(trainable, activations, flops, frames * expert.dim)
