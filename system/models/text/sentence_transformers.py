"""A pre-trained sentence encoder of the library sentence-transformers."""

import math
import struct
from pathlib import Path
from typing import Any, ClassVar, Literal

from data_tools.documents import parse_json
from data_tools.strict import Size
from system.models.costs import Cost
from system.models.text.base import Encoder
from system.models.text.pretrained import PreTrained, TextSize

MINILM = TextSize(22_713_216, 384, 6, 1536, 12)  # all-MiniLM-L6-v2
MAX_HEADER = 100_000_000  # bytes, of a safetensors file


class SentenceTransformers(PreTrained):
    """A pre-trained sentence encoder by hub name or folder; frozen, its embeddings are computed once and kept."""

    kind: Literal["sentence_transformers"]
    dim: Size  # D of the model, checked when it is loaded
    trainable: bool
    projection: Literal["none", "linear"]  # a trainable D x D layer behind the encoder

    unknown: ClassVar[TextSize] = MINILM

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.sentence_transformers_encoder import SentenceEncoder

        return SentenceEncoder(self, banks)

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        return sum(_safetensors_sizes(folder / "model.safetensors"))

    def cost(self, vocabulary: int) -> Cost:
        return self.cost_with((self.dim + 1) * self.dim if self.projection == "linear" else 0, self.trainable)


def _safetensors_sizes(path: Path) -> list[int]:
    """Values in every floating-point tensor, from the file's header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = parse_json(file.read(min(length, MAX_HEADER)), path.name)
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return [math.prod(entry["shape"]) for entry in tensors if str(entry["dtype"]).startswith(("F", "BF"))]
