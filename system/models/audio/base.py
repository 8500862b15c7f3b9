"""The interface of a kind of audio encoder: settings, building, costs. torch is imported to build or count it."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from system.experts import Expert
from system.models.base import EncoderKind
from system.models.costs import Cost, count

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

    def build_unread(self, out: int) -> Encoder:
        """The encoder without its published files, to count what it takes; UnknownSizeError where its sizes are not
        known."""
        return self.build(out)

    def cost(self, encoder: Encoder, seconds: float, longest: float, half: bool) -> Cost:
        """Count a training step of an encoder of these settings on a clip of `seconds`, in batches whose longest has
        `longest`. half: see count."""
        import torch

        from system.models.batch import Series

        limit = math.inf if self.training_frames is None else self.training_frames

        def frames(expert: Expert, seconds: float) -> int:
            return max(1, round(min(seconds * expert.frames_per_second, limit)))

        def run() -> torch.Tensor:
            audio = {}
            for name, expert in self.experts.items():
                dtype = getattr(torch, expert.dtype)
                values = torch.zeros(1, frames(expert, longest), expert.dim, dtype=dtype)
                audio[name] = Series(values, torch.tensor([frames(expert, seconds)]))
            embedded: torch.Tensor = encoder(audio).values
            return embedded

        return count(encoder, run, half)

    def misfits(self, out: int) -> Iterator[tuple[str, str]]:
        """What does not fit embeddings of `out` values: a setting, and what is wrong with it."""
        yield from ()

    @property
    def trained_parts(self) -> dict[str, bool]:
        """Whether anything is trained in each of the encoder's parts that may have a learning rate of its own."""
        return {}

    def part_name(self, part: str) -> str:
        """A part of the encoder as `check` names it."""
        return part
