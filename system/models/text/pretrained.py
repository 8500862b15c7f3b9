"""Pre-trained text encoders, by the name or folder that also tells their size. Never imports torch."""

import math
import struct
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from data_tools.classify.model_files import fetch, folder_problem, installed_as, local_folder
from data_tools.documents.json_text import parse_json
from data_tools.documents.strict import Size
from data_tools.errors import DataError
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
NAMED = {
    "bert-base-uncased": BERT,
    "all-MiniLM-L6-v2": MINILM,
    "roberta-base": TextSize(124_055_040, 768, 12, 3072, 12),  # without its pooler, as the next
    "roberta-large": TextSize(354_310_144, 1024, 24, 4096, 16),
}
MAX_HEADER = 100_000_000  # bytes, of a safetensors file


class PreTrained(TextSettings):
    """unknown: what the model is taken for when its files are not here, or of another form."""

    model: str  # folder, package or hub name

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})
    unknown: ClassVar[TextSize]

    @abstractmethod
    def count(self, folder: Path, config: dict[str, Any]) -> int:
        """Parameters, from the folder's files, of which config.json has been read."""

    def text_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The part of a folder's config.json that is of the text encoder."""
        return config

    def _known_size(self) -> TextSize | None:
        """From the folder's files, or of a few models that are known by name."""
        try:
            folder = local_folder(self.model) or Path(self.model)
            config = self.text_config(parse_json((folder / "config.json").read_bytes(), "config.json"))
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
            problem = folder_problem(fetch(self.model))
        except DataError as error:
            yield "model", str(error)
        else:
            if problem:
                yield "model", f"text model {self.model}: the folder {problem}; name one that holds a model"

    def plan_lines(self) -> Iterator[str]:
        folder = local_folder(self.model)
        if folder is None:
            hint = installed_as(self.model) or "; python -m system download RECIPE fetches it"
            fact = f"MISSING: no such folder, nor in the hub's cache{hint}"
        elif problem := folder_problem(folder):
            fact = f"MISSING: {folder} {problem}; name a folder that holds a model, or a hub name"
        else:
            fact = f"here, in {folder}"
        yield f"text model {self.model}: {fact}"
        if self._known_size() is None:
            taken = f"a model of {self.unknown.parameters:,} parameters"
            yield f"  its size is unknown: memory and times of a step below take it for {taken}"


class TokenSettings(PreTrained):
    """What the two kinds that read a transformer's tokens are told."""

    trainable: bool  # false: frozen
    removed: str  # characters taken out of captions
    lowercase: bool = False  # captions in lower case, before characters are taken out
    max_tokens: Annotated[int, Field(ge=3)] | None = None  # longer captions are cut; null: at the transformer's longest
    dropout: float | None = Field(ge=0, lt=1)  # of the transformer's hidden states and attention; null: as published
    hidden: Size | None  # of a layer with ReLU behind the network; null: one linear layer to `dim`
    dim: Size  # D, of an embedding

    unknown: ClassVar[TextSize] = BERT

    def cleaned(self, text: str) -> str:
        """A caption as the tokenizer gets it."""
        text = text.lower() if self.lowercase else text
        return text.translate(str.maketrans("", "", self.removed))

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.pretrained_encoder import Bank, TokenEncoder

        cut = "" if self.max_tokens is None else f"_of_{self.max_tokens}"
        return TokenEncoder(
            self.model,
            Bank(banks, f"{self.kind}{cut}"),
            first_token=self.kind == "first_token",
            cleaned=self.cleaned,
            trainable=self.trainable,
            max_tokens=self.max_tokens,
            dropout=self.dropout,
            hidden=self.hidden,
            dim=self.dim,
        )

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        return of_transformer(config)

    def cost(self, vocabulary: int) -> Cost:
        width = self.size().width
        behind = (width + 1) * self.dim if self.hidden is None else mlp_parameters(width, self.hidden, self.dim)
        return self.cost_with(behind, self.trainable)


class FirstToken(TokenSettings):
    """A pre-trained transformer's first token ([CLS]); linear to `hidden`, ReLU, linear to `dim`, or linear to `dim`.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2; of one linear layer: the
    DCASE 2025 baseline and SALSA (2024), which have RoBERTa-large, captions in lower case without ASCII punctuation,
    cut at 32 tokens (and filled up to them, which changes nothing).
    """

    kind: Literal["first_token"]


class MeanTokens(TokenSettings):
    """The mean of a pre-trained transformer's tokens, the special ones included; then as `first_token`."""

    kind: Literal["mean_tokens"]


class VectorSettings(PreTrained):
    """What the two kinds are told whose model gives a text's vector by itself."""

    dim: Size  # D of the model, checked when it is loaded
    trainable: bool  # false: frozen, and its embeddings are kept in the banks
    projection: Literal["none", "linear"]  # a trainable D x D layer behind the encoder

    @property
    def is_published(self) -> bool:
        return self.projection == "none"

    def cost(self, vocabulary: int) -> Cost:
        return self.cost_with((self.dim + 1) * self.dim if self.projection == "linear" else 0, self.trainable)


class SentenceTransformers(VectorSettings):
    """A pre-trained sentence encoder by hub name or folder; frozen, its embeddings are computed once and kept."""

    kind: Literal["sentence_transformers"]

    unknown: ClassVar[TextSize] = MINILM

    @property
    def size_known(self) -> bool:
        return not self.trainable or super().size_known

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.sentence_encoder import sentence_encoder

        return sentence_encoder(self.model, self.dim, self.projection == "linear", self.trainable, banks)

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        return sum(_safetensors_sizes(folder / "model.safetensors"))


class Clap(VectorSettings):
    """The text encoder of a public CLAP with its projection, beside `hugging_face` with the same model for audio: a
    zero-shot system. Captions are cut at 77 tokens, as its processor cuts them.

    Source: Wu et al., "Large-Scale Contrastive Language-Audio Pretraining" (2023);
    transformers' ClapTextModelWithProjection.
    """

    kind: Literal["clap"]

    unknown: ClassVar[TextSize] = BERT

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        from system.models.text.pretrained_encoder import Bank, ClapEncoder

        return ClapEncoder(self.model, self.dim, self.projection == "linear", self.trainable, Bank(banks, "clap"))

    def text_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return dict(config.get("text_config", config))

    def count(self, folder: Path, config: dict[str, Any]) -> int:
        return of_transformer(config)


def of_transformer(config: dict[str, Any]) -> int:
    """Parameters of BERT or RoBERTa without its pooler; a file may hold more than is used."""
    tables = sum(int(config[name]) for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
    width, depth, ffn_dim = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    return (tables + 2) * width + depth * layer_parameters(width, ffn_dim)


def _safetensors_sizes(path: Path) -> list[int]:
    """Values in every floating-point tensor, from the file's header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = parse_json(file.read(min(length, MAX_HEADER)), path.name)
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return [math.prod(entry["shape"]) for entry in tensors if str(entry["dtype"]).startswith(("F", "BF"))]
