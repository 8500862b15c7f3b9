"""The interface of audio encoders: a network, and its settings in a recipe."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from torch import nn

from data_tools.settings import Name
from system.audio import Expert
from system.models.base import EncoderKind
from system.models.batch import Series
from system.models.embeddings import Embedded
from system.moments.windows import Grid

# B clips, L frames, E embedding

OneExpert = Annotated[dict[Name, Expert], Field(min_length=1, max_length=1)]  # by any name


class AudioEncoder(nn.Module, ABC):
    """Frames of clips, by expert -> Embedded: (B, E), or a padded series (B, L, E) with its lengths."""

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

        Raises KitError if the file is missing, or is not the published file.
        """

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs, in addition to the weights, to use the encoder.

        Files whose path a setting (`--set`) can replace are left out.
        """


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

    part_names: ClassVar[tuple[str, ...]] = ()  # of the parts that are trained

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
    def build(self, out: int) -> AudioEncoder:
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
        return dict.fromkeys(self.part_names, True)
