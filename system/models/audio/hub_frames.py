"""Unchanged frames of hub models: settings.

Never imports torch.
"""

from collections.abc import Iterator
from typing import Literal

from system.models.audio.base import Encoder
from system.models.audio.hugging_face import HuggingFace
from system.moments.windows import Grid
from system.networks.hugging_face_types import TOKENS_PER_SECOND


class HubFrames(HuggingFace):
    """Returns every frame of a frozen audio model of transformers: the projected frames of PE-A-Frame, 25 per second.
    Long clips are cut into segments, and the frames of the segments are joined. There is no trained layer. The recipe's
    score must be one that compares single frames with captions, such as `frame_dot_products`.
    """

    kind: Literal["hugging_face_frames"]  # type: ignore[assignment]
    type: Literal["pe_audio"]  # model_type of its config.json, or pe_audio_video

    @property
    def embeds_series(self) -> bool:
        """Always True: the embedding of a clip is a series with one vector per frame."""
        return True

    @property
    def frame_grid(self) -> Grid:
        """Times of the frames of a clip's embedding."""
        hop = 1 / TOKENS_PER_SECOND[self.type]
        return Grid(hop, hop / 2)

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield the name and an error message of each setting that does not fit the other settings."""
        yield from super().setting_errors(out)
        if self.trainable:
            yield "trainable", "hugging_face_frames only works with frozen models; set trainable: false"
        if self.head != "none":
            yield "head", "hugging_face_frames has no layer after the model; set head: none"
        if self.segment_pooling != "mean":
            yield (
                "segment_pooling",
                "segment_pooling has no effect, since hugging_face_frames pools no segments; set it to mean",
            )
        if self.hop_seconds != self.segment_seconds:
            yield (
                "hop_seconds",
                "hop_seconds must be equal to segment_seconds, so that frames are neither repeated nor skipped",
            )
        frames = self.segment_seconds * TOKENS_PER_SECOND[self.type]
        if abs(frames - round(frames)) > 1e-9:
            yield "segment_seconds", "segment_seconds must be a multiple of 0.04 s, the duration of a frame"

    def build(self, out: int) -> Encoder:
        """Build the audio encoder that returns the network's frames."""
        from system.models.audio.hub_frames_encoder import HubFramesEncoder

        ((name, _),) = self.experts.items()
        size = round(self.segment_seconds * self.sample_rate)
        return HubFramesEncoder(name, self.build_network(), self.pretrained(), size)
