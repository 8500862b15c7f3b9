"""What an audio encoder is."""

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
        """Embeddings of the clips. In evaluation the embedding of a clip does not depend on the others."""

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """What its parameters are counted by, for people to read."""

    def load_pretrained(self) -> None:
        """Take published weights into a fresh encoder; KitError when the file is missing or another one."""

    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs beside the weights, and what no `--set` can name there."""

    def with_each(self, audio: dict[str, Series]) -> tuple[Embedded, dict[str, torch.Tensor]]:
        """Embeddings of the clips, and (B, E) of every expert by its name where several are averaged; else none."""
        return self(audio), {}
