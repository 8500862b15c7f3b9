"""Pre-trained text encoders, by the name or folder that also tells their size. Never imports torch."""

import math
import struct
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from data_tools.classify.model_files import fetch, installed_as, local_folder
from data_tools.documents import parse_json
from data_tools.errors import DataError
from data_tools.strict import Size
from system.models.costs import (
    TOKENS,
    TRAINING,
    Cost,
    encoder_activations,
    encoder_flops,
    layer_parameters,
    mlp_parameters,
)
from system.models.text.base import Encoder, TextSettings

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error)


@dataclass(frozen=True)
class TextSize:
    """A pre-trained text encoder: its parameters and layers."""

    parameters: int
    width: int
    layers: int
    ffn_dim: int
    heads: int


BERT = TextSize(108_891_648, 768, 12, 3072, 12)  # bert-base-uncased without its pooler
MINILM = TextSize(22_713_216, 384, 6, 1536, 12)  # all-MiniLM-L6-v2
NAMED = {"bert-base-uncased": BERT, "all-MiniLM-L6-v2": MINILM}
MAX_HEADER = 100_000_000  # bytes, of a safetensors file


class PreTrained(TextSettings):
    """unknown: what the model is taken for when its files are not here, or of another form."""

    model: str  # folder, package or hub name

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})
    unknown: ClassVar[TextSize]

    @abstractmethod
    def count(self, folder: Path, config: dict[str, Any]) -> int:
        """Parameters, from the folder's files, of which config.json has been read."""

    def _known_size(self) -> TextSize | None:
        """From the folder's files, or of two models that are known by name."""
        try:
            folder = local_folder(self.model) or Path(self.model)
            config = parse_json((folder / "config.json").read_bytes(), "config.json")
            keys = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
            return TextSize(self.count(folder, config), *(int(config[key]) for key in keys))
        except _UNREADABLE:
            return NAMED.get(self.model.rpartition("/")[2])

    def size(self) -> TextSize:
        """From the folder's files; `unknown` for a hub name and for files of another form."""
        return self._known_size() or self.unknown

    @property
    def size_known(self) -> bool:
        return self._known_size() is not None

    def cost_with(self, behind: int, trainable: bool) -> Cost:
        """behind: trainable parameters behind the pre-trained ones. A frozen encoder has embedded the captions before
        the first step."""
        size = self.size()
        if not trainable:
            return Cost({"text": behind}, 0.0, float(TRAINING * behind), frozen=size.parameters)
        layers = size.width, size.layers, size.ffn_dim
        activations = encoder_activations(TOKENS, *layers, size.heads)
        return Cost({"text": behind + size.parameters}, activations, encoder_flops(TOKENS, *layers) + TRAINING * behind)

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Downloads the model where it is not here."""
        try:
            fetch(self.model)
        except DataError as error:
            yield "model", str(error)

    def plan_lines(self) -> Iterator[str]:
        folder, missing = local_folder(self.model), "MISSING: no such folder, nor in the hub's cache"
        missing += installed_as(self.model) or "; python -m system download RECIPE fetches it"
        yield f"text model {self.model}: {missing if folder is None else f'here, in {folder}'}"
        if self._known_size() is None:
            taken = f"a model of {self.unknown.parameters:,} parameters"
            yield f"  its size is unknown: memory and times of a step below take it for {taken}"


class FirstToken(PreTrained):
    """A pre-trained transformer's first token ([CLS]); linear to `hidden`, ReLU, linear to `dim`.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2.
    """

    kind: Literal["first_token"]
    trainable: bool  # false: frozen
    removed: str  # characters taken out of captions
    dropout: float | None = Field(ge=0, lt=1)  # of the transformer's hidden states and attention; null: as published
    hidden: Size  # of the layer behind the network
    dim: Size  # D, of an embedding

    unknown: ClassVar[TextSize] = BERT

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.pretrained_encoder import FirstTokenEncoder

        return FirstTokenEncoder(self, banks)

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        """Its file may hold more than is used."""
        tables = sum(int(config[name]) for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
        width, depth, ffn_dim = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
        return (tables + 2) * width + depth * layer_parameters(width, ffn_dim)

    def cost(self, vocabulary: int) -> Cost:
        return self.cost_with(mlp_parameters(self.size().width, self.hidden, self.dim), self.trainable)


class SentenceTransformers(PreTrained):
    """A pre-trained sentence encoder by hub name or folder; frozen, its embeddings are computed once and kept."""

    kind: Literal["sentence_transformers"]
    dim: Size  # D of the model, checked when it is loaded
    trainable: bool  # false: frozen, and its embeddings are kept in the banks
    projection: Literal["none", "linear"]  # a trainable D x D layer behind the encoder

    unknown: ClassVar[TextSize] = MINILM

    @property
    def is_published(self) -> bool:
        return self.projection == "none"

    @property
    def size_known(self) -> bool:
        return not self.trainable or super().size_known

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.pretrained_encoder import SentenceTransformersEncoder

        return SentenceTransformersEncoder(self, banks)

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
