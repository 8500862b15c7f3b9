"""Interface of settings of audio encoders.

The settings of each kind of encoder can build the encoder. torch is only imported for this.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from system.audio import Expert
from system.models.base import EncoderKind
from system.moments.windows import Grid

if TYPE_CHECKING:
    from system.models.audio.encoder import AudioEncoder

Encoder: TypeAlias = "AudioEncoder"  # the network that settings build; naming it imports no torch


class AudioSettings(EncoderKind):
    """Settings of one kind of audio encoder.

    A subclass defines its `kind`. As a field or a property, it defines its `experts`: a dict from name to each frozen
    model whose frames the encoder reads.
    """

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def experts(self) -> Mapping[str, Expert]:
            """Dict from name to expert (frozen model), for the experts whose frames the encoder reads."""
            ...

    @property
    def reads_clips(self) -> bool:
        """Whether the encoder reads the audio files of clips, so that these files must exist."""
        return any(expert.reads_clips for expert in self.experts.values())

    @property
    def training_frames(self) -> int | None:
        """Maximum number of the expert's frames per clip in training; None for no limit.

        A random part of this length is cut out of longer clips.
        """
        return None

    @property
    def frame_grid(self) -> Grid | None:
        """Times of the frames of a clip's embedding; None if they equal the times of the expert's frames."""
        return None

    @abstractmethod
    def build(self, out: int) -> Encoder:
        """Build the encoder with untrained weights.

        out: Number of values per embedding, the same as for text embeddings. Only this method imports torch.
        """

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield the name and an error message of each setting that does not fit embeddings of `out` values."""
        yield from ()

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Dict from the name of each part of the encoder to whether the part has trainable parameters.

        Each part may have a separate learning rate.
        """
        return {}
