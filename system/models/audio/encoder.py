"""The interface of audio encoders."""

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import nn

from system.models.batch import Series
from system.models.embeddings import Embedded

# B clips, L frames, E embedding


class AudioEncoder(nn.Module, ABC):
    """Frames of clips, by expert -> Embedded: (B, E), or a padded series (B, L, E) with its lengths."""

    @abstractmethod
    def forward(self, audio: dict[str, Series]) -> Embedded:
        """Embed the clips of a batch.

        In evaluation mode the embedding of a clip does not depend on the other clips.
        """

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """Return a dict from the name of each part of the encoder to its torch module.

        Parameters are counted per part.
        """

    def load_pretrained(self) -> None:
        """Load the published weights into a new encoder.

        Raises KitError if the file is missing, or is not the published file.
        """

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs, in addition to the weights, to use the encoder.

        Files whose path a setting (`--set`) can replace are left out.
        """

    def embed_with_experts(self, audio: dict[str, Series]) -> tuple[Embedded, dict[str, torch.Tensor]]:
        """Embed clips; return their embeddings, and those of each expert if the embedding is a mean over experts.

        The embeddings by expert are a dict from expert to (B, E); it is empty if the encoder has only one expert.
        """
        return self(audio), {}
