"""Interface of settings of text encoders.

The interface of a kind of text encoder: settings, building, costs. torch is imported to build or count it.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from system.models.base import EncoderKind
from system.models.costs import TOKENS, weights_left_out

if TYPE_CHECKING:
    import torch

    from system.models.text.encoder import TextEncoder

Encoder: TypeAlias = "TextEncoder"  # the network that settings build; naming it imports no torch


class TextSettings(EncoderKind):
    """Settings of one kind of text encoder.

    A subclass defines its `kind` and, as a field or a property, its `dim`: the size of embeddings of text and audio.
    reads_vocabulary: Whether it is built for the words of the training captions. frozen_scores: Kinds of scores for its
    published weights; empty for any.
    """

    reads_vocabulary: ClassVar[bool] = False
    frozen_scores: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # an abstract property, which a field may not replace

        @property
        def dim(self) -> int:
            """Size of embeddings of text and audio."""
            ...

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return True

    @property
    def trains_published(self) -> bool:
        """Whether a published network is trained, which may have low-rank adapters."""
        return False

    def texts_fault(self, texts: Sequence[str]) -> str | None:
        """Return why some texts cannot be embedded; None if they can, or if it is not known without the network."""
        return None

    @abstractmethod
    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder with new weights. Only this method imports torch.

        vocabulary: Words of all training captions; empty unless the encoder `reads_vocabulary`. banks: The folder of
        the feature banks, which may hold cached embeddings.
        """

    def network_for_costs(self, vocabulary: list[str]) -> tuple["torch.nn.Module", Callable[[], "torch.Tensor"]]:
        """Return an untrained network for counting its cost, and a function that embeds one caption of TOKENS tokens.

        The network has shapes but no values.
        Raises UnknownSizeError if the network's sizes are not known on this machine.
        """
        with weights_left_out():
            encoder = self.build(vocabulary, Path()).train()
        caption = " ".join(islice(cycle(vocabulary), TOKENS))
        return encoder, lambda: encoder.embed_alike([caption]).values
