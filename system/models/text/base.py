"""What a kind of text encoder is: settings, what it takes, and how it is made. Never imports torch."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from system.models.base import EncoderKind
from system.models.costs import Cost

if TYPE_CHECKING:
    from system.models.text.encoder import TextEncoder

Encoder: TypeAlias = "TextEncoder"  # the network that settings build; naming it imports no torch


class TextSettings(EncoderKind):
    """Settings of one kind of text encoder.

    A subclass names its `kind` and `dim`, a field or a property: the values of an embedding, which the audio's have
    too. reads_vocabulary: whether it is made for the words of the training captions.
    """

    reads_vocabulary: ClassVar[bool] = False

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def dim(self) -> int: ...

    @abstractmethod
    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """The encoder with fresh weights. vocabulary: of all training captions, none unless it `reads_vocabulary`.
        banks: the folder of the feature banks, where embeddings may be kept. It alone imports torch."""

    @property
    def size_known(self) -> bool:
        """Whether `cost` knows the trainable parameters; where not, it takes the encoder for another one."""
        return True

    @abstractmethod
    def cost(self, vocabulary: int) -> Cost:
        """Of a caption. vocabulary: words of the training captions."""
