"""What pre-trained text encoders have in common: a name or folder, and a size that its files tell. Never imports
torch."""

import os
import struct
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_tools.documents import parse_json
from system.models.costs import TOKENS, TRAINING, Cost, encoder_activations, encoder_flops
from system.models.text.base import TextSettings

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error)


@dataclass(frozen=True)
class TextSize:
    """A pre-trained text encoder: its parameters and layers."""

    parameters: int
    width: int
    layers: int
    ffn_dim: int
    heads: int


class PreTrained(TextSettings):
    """unknown: what the model is taken for when its files are not here, or of another form."""

    model: str  # hub name or folder

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})
    unknown: ClassVar[TextSize]

    @abstractmethod
    def count(self, folder: Path, config: dict[str, Any]) -> int:
        """Parameters, from the folder's files, of which config.json has been read."""

    def size(self) -> TextSize:
        """From the folder's files; `unknown` for a hub name and for files of another form."""
        try:
            config = parse_json((Path(self.model) / "config.json").read_bytes(), "config.json")
            keys = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
            return TextSize(self.count(Path(self.model), config), *(int(config[key]) for key in keys))
        except _UNREADABLE:
            return self.unknown

    def cost_with(self, behind: int, trainable: bool) -> Cost:
        """behind: trainable parameters behind the pre-trained ones. A frozen encoder has embedded the captions before
        the first step."""
        size = self.size()
        if not trainable:
            return Cost({"text": behind}, 0.0, float(TRAINING * behind), frozen=size.parameters)
        layers = size.width, size.layers, size.ffn_dim
        activations = encoder_activations(TOKENS, *layers, size.heads)
        return Cost({"text": behind + size.parameters}, activations, encoder_flops(TOKENS, *layers) + TRAINING * behind)

    def plan_lines(self) -> Iterator[str]:
        is_path = self.model.startswith((".", "~", os.sep))
        elsewhere = "MISSING: no such folder" if is_path else "no folder here: a hub name"
        yield f"text model {self.model}: {'a folder that is there' if Path(self.model).is_dir() else elsewhere}"
