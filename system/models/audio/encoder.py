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
        """Embed the clips. In evaluation mode the embedding of a clip does not depend on the others."""

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """Return the parts of the encoder. Parameters are counted per part."""

    def load_pretrained(self) -> None:
        """Load published weights into a new encoder. Raises KitError if the file is missing or another one."""

    def save_assets(self, folder: Path) -> None:
        """Write the files that another machine needs in addition to the weights, and that no `--set` can replace."""

    def embed_with_experts(self, audio: dict[str, Series]) -> tuple[Embedded, dict[str, torch.Tensor]]:
        """Return the embeddings of the clips, and (B, E) embeddings by expert if several are averaged; else empty."""
        return self(audio), {}
