"""The audio heads of "Take it easy": a small transformer an expert, and the mean of what they give."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.documents.strict import Depth, Name, Size
from system.experts import Expert
from system.models.audio.base import AudioSettings, Encoder
from system.models.base import Heads
from system.models.costs import TRAINING, Cost, encoder_activations, encoder_flops, encoder_parameters


class ExpertHeads(AudioSettings):
    """Per expert: linear to `width`, BART-type encoder, mean over time, linear to the text size; mean over experts.

    Source: "Take it easy" (2022), section 3.
    """

    kind: Literal["expert_heads"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1)]  # those whose frames it takes, by any names
    width: Size  # of its encoder
    layers: Depth  # of its encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_positions: Size  # frames in a window; longer series are cut into windows
    dropout: float = Field(ge=0, lt=1)  # share of values that are dropped in training

    def build(self, out: int) -> Encoder:
        from system.models.audio.expert_heads_encoder import ExpertHeadsEncoder

        dims = {name: expert.dim for name, expert in self.experts.items()}
        return ExpertHeadsEncoder(dims, out, **self.model_dump(exclude={"kind", "experts"}))

    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        trainable, activations, exact, flops = {}, 0.0, 0.0, 0.0
        layers = self.width, self.layers, self.ffn_dim
        for name, expert in self.experts.items():
            linear = (expert.dim + 1) * self.width + (self.width + 1) * out
            trainable[name] = linear + encoder_parameters(*layers, self.max_positions)
            frames = seconds * expert.frames_per_second
            windows = max(1.0, frames / self.max_positions)
            activations += windows * encoder_activations(frames / windows, *layers, self.heads)
            exact += frames * expert.dim
            flops += TRAINING * frames * expert.dim * self.width + encoder_flops(frames, *layers)
        return Cost(trainable, activations, flops, exact)

    def part_name(self, part: str) -> str:
        return f"{part} head"

    def part_note(self) -> str:
        per_head = encoder_parameters(self.width, self.layers, self.ffn_dim, self.max_positions)
        return f" (encoder of a head: {per_head:,})"
