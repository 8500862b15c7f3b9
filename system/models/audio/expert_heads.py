"""Heads of "Take it easy": settings.

The heads of this paper (2022) are one small transformer per expert. The embedding is the mean of their outputs.
"""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.settings import Depth, Name, Size
from system.experts import Expert
from system.models.audio.base import AudioSettings, Encoder
from system.models.base import Heads


class ExpertHeads(AudioSettings):
    """Layers per expert: linear to `width`, BART-type encoder, mean over time, linear to the size of text embeddings.
    The embedding is the mean over experts.

    Source: "Take it easy" (2022), section 3.
    """

    kind: Literal["expert_heads"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1)]  # experts whose frames are the input, by any names
    width: Size  # of its encoder
    layers: Depth  # of its encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_positions: Size  # frames in a window; longer series are cut into windows
    dropout: float = Field(ge=0, lt=1)  # share of values that are dropped in training

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.expert_heads_encoder import ExpertHeadsEncoder

        dims = {name: expert.dim for name, expert in self.experts.items()}
        return ExpertHeadsEncoder(dims, out, **self.model_dump(exclude={"kind", "experts"}))

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return dict.fromkeys(self.experts, True)
