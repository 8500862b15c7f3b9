"""What a kind of audio encoder is: settings, what it takes, and how it is made. Never imports torch."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from system.experts import Expert
from system.models.base import EncoderKind
from system.models.costs import Cost

if TYPE_CHECKING:
    from system.models.audio.encoder import AudioEncoder

Encoder: TypeAlias = "AudioEncoder"  # the network that settings build; naming it imports no torch


class AudioSettings(EncoderKind):
    """Settings of one kind of audio encoder.

    A subclass names its `kind` and its `experts`, a field or a property: the frozen models, by name, whose frames it
    reads.
    """

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def experts(self) -> Mapping[str, Expert]: ...

    @property
    def training_frames(self) -> int | None:
        """Of its expert, the most frames that training hears of a clip, a random part of a longer one; None: all."""
        return None

    @abstractmethod
    def build(self, out: int) -> Encoder:
        """The encoder with fresh weights. out: values of an embedding of text, which the score compares with its own.
        It alone imports torch."""

    @abstractmethod
    def cost(self, out: int, seconds: float, longest: float) -> Cost:
        """Of a clip of `seconds`, in batches whose longest has `longest`."""

    def misfits(self, out: int) -> Iterator[tuple[str, str]]:
        """What does not fit embeddings of `out` values: a setting, and what is wrong with it."""
        yield from ()

    def part_name(self, part: str) -> str:
        """A part of the encoder as `check` names it."""
        return part

    def part_note(self) -> str:
        """What `check` adds to the numbers of parameters."""
        return ""
