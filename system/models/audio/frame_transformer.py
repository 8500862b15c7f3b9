"""Transformer over frames: settings.

A transformer over the frames of one frozen expert, which returns an embedding per frame.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from data_tools.settings import Depth, Name, Size
from system.experts import Expert
from system.models.audio.base import AudioSettings, Encoder
from system.models.base import Heads


class FrameTransformer(AudioSettings):
    """Linear layer to `width`, BART-type encoder, and linear layer to the size of text embeddings. There is one output
    per frame, for finding moments.

    Source: designed here. The basis was a small trial: two layers of attention on the frames of YAMNet, trained with
    the loss `two_state`, the likelihood of the true moments.
    """

    kind: Literal["frame_transformer"]
    experts: Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]  # one expert, by any name
    width: Size  # of the encoder
    layers: Depth  # of the encoder
    heads: Heads  # of attention, in a layer
    ffn_dim: Size  # of the feed-forward part of a layer
    max_positions: Size  # frames in a window; longer series are cut into windows
    dropout: float = Field(ge=0, lt=1)  # share of values that are dropped in training
    embedding: Literal["frames"]  # one vector per frame

    embeds_series: ClassVar[bool] = True

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters."""
        return {"transformer": True}

    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights. out: Number of values per embedding."""
        from system.models.audio.frame_transformer_encoder import FrameTransformerEncoder

        ((name, expert),) = self.experts.items()
        sizes = self.width, self.layers, self.heads, self.ffn_dim, self.max_positions, self.dropout
        return FrameTransformerEncoder(name, expert.dim, sizes, out)
