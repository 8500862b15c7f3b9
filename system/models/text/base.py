"""Interface of settings of text encoders.

The settings of each kind of encoder can build the encoder. torch is only imported for this.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from system.models.base import EncoderKind

if TYPE_CHECKING:
    from system.models.text.encoder import TextEncoder

Encoder: TypeAlias = "TextEncoder"  # the network that settings build; naming it imports no torch


class TextSettings(EncoderKind):
    """Settings of one kind of text encoder.

    A subclass defines its `kind` and, as a field or a property, its `dim`: the number of values per embedding of text
    and audio. reads_vocabulary: Whether the encoder is built for the words of the training captions. frozen_scores:
    Kinds of scores that fit the published weights; empty if all kinds fit.
    """

    reads_vocabulary: ClassVar[bool] = False
    frozen_scores: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def dim(self) -> int:
            """Number of values per embedding, equal for texts and clips."""
            ...

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return True

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        """Return an error message if a text cannot be embedded, else None.

        The network is not built for this check, so that some errors are only found later.
        """
        return None

    @abstractmethod
    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder. Weights without a published value are untrained. Only this method imports torch.

        vocabulary: Words of all training captions; empty unless the encoder `reads_vocabulary`. banks: Folder for
        stored embeddings of texts, the same as for the frames of clips.
        """
