"""The audio encoders.

To add one, write its file here and add a line to KINDS. A file is imported when a recipe names its kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from torch import nn

from data_tools.settings import Name
from system.audio import ExpertSettings
from system.models import EncoderKind
from system.models.batch import Embedded, Series
from system.moments.windows import Grid

KINDS = {  # kind: module
    "crnn": "system.models.audio.crnn",
    "gru": "system.models.audio.crnn",
    "embeddings": "system.models.audio.heads",
    "expert_heads": "system.models.audio.heads",
    "frame_transformer": "system.models.audio.heads",
    "pooled_mlp": "system.models.audio.heads",
    "segments": "system.models.audio.segments",
}

# B clips, L frames, E embedding

OneExpert = Annotated[dict[Name, ExpertSettings], Field(min_length=1, max_length=1)]  # by any name


class AudioEncoder(nn.Module, ABC):
    """A network from frames of clips to embeddings.

    The frames are by expert. The embeddings are (B, E), or padded series (B, L, E).
    """

    @abstractmethod
    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch.

        In evaluation mode the embedding of a clip does not depend on the other clips.
        """

    def parts(self) -> dict[str, nn.Module]:
        """Return the parts with parameters by name.

        They are counted, and may have learning rates of their own.
        """
        return {name: part for name, part in self.named_children() if next(part.parameters(), None) is not None}

    def load_pretrained(self) -> None:
        """Load the published weights into a new encoder.

        Raises:
            KitError: The file is missing, or is not the published file.
        """

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs besides the weights.

        Files whose path a setting (`--set`) can replace are left out.
        """


class AudioSettings(EncoderKind):
    """Settings of one kind of audio encoder.

    A subclass defines its `kind` and, as a field or a property, its `experts`.
    """

    modules: ClassVar = KINDS

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def experts(self) -> Mapping[str, ExpertSettings]:
            """Experts whose frames the encoder reads, by name."""
            ...

    part_names: ClassVar[tuple[str, ...]] = ()  # of the parts that are trained

    @property
    def reads_clips(self) -> bool:
        """Whether the encoder reads the audio files of clips."""
        return any(expert.reads_clips for expert in self.experts.values())

    @property
    def training_frames(self) -> int | None:
        """Most frames of a clip in training; None: no limit.

        A random part of this length is cut out of longer clips.
        """
        return None

    @property
    def frame_grid(self) -> Grid | None:
        """Times of embedded frames; None: those of the expert's frames."""
        return None

    @abstractmethod
    def build(self, out: int) -> AudioEncoder:
        """Build the encoder with untrained weights.

        Args:
            out: Values of an embedding.
        """

    def setting_errors(self, out: int) -> Iterator[tuple[str, str]]:
        """Yield settings that do not fit embeddings of `out` values.

        Yields:
            The key, and a message.
        """
        yield from ()

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Whether each part of the encoder has trainable parameters.

        Each part may have a separate learning rate.
        """
        return dict.fromkeys(self.part_names, True)
