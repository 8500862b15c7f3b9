"""Pre-trained text encoders: settings.

The name or folder of the model also determines its size. Never imports torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, ValidationError, model_validator

from data_tools.classify.model_files import fetch, folder_problem, local_folder, vector_size
from data_tools.errors import DataError
from data_tools.settings import Size, mistakes
from system.models.base import Facts, hub_facts
from system.models.text.base import Encoder, TextSettings


class PreTrained(TextSettings):
    """Settings of a pre-trained model, by its name. A subclass defines the field `trainable`. If it is false, the model
    is frozen, and embeds all captions before the first training step.
    """

    model: str  # folder, package or hub name

    file_settings: ClassVar[frozenset[str]] = frozenset({"model"})

    if TYPE_CHECKING:  # a field of every subclass
        trainable: bool

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Yield "model" and an error message if the model is damaged, or missing and not downloadable."""
        try:
            problem = folder_problem(fetch(self.model))
        except DataError as error:
            yield "model", str(error)
        else:
            if problem:
                yield "model", f"text model {self.model}: {problem}; name a folder that contains a model"

    @property
    def hub_model(self) -> str:
        """Name or folder of the Hugging Face model."""
        return self.model

    def plan_facts(self) -> Facts:
        """Return a description of the encoder for the verb `check`, and a list of its missing files."""
        return hub_facts(f"text model {self.model}", self.model, local_folder(self.model))


class TokenSettings(PreTrained):
    """Settings of the three kinds of encoders that read a transformer's tokens."""

    pooling: ClassVar[Literal["first", "mean", "last"]]

    trainable: bool  # false: frozen
    removed: str  # characters taken out of captions
    lowercase: bool = False  # captions in lower case, before characters are taken out
    max_tokens: Annotated[int, Field(ge=3)] | None = None  # longer captions are cut; null: at the transformer's longest
    dropout: float | None = Field(ge=0, lt=1)  # of the transformer's hidden states and attention; null: as published
    hidden: Size | None  # of a layer with ReLU after the network; null: one linear layer to `dim`
    dim: Size  # D, of an embedding
    head: Literal["linear", "none"] = "linear"  # none: the transformer's vectors, which must have `dim` values

    @model_validator(mode="after")
    def _require_layers_for_hidden(self) -> Self:
        """Raise an error if `hidden` sets the size of a layer, but `head` is `none`."""
        if self.head == "none" and self.hidden is not None:
            said = (
                "`head: none` adds no layer, but `hidden` sets the size of a layer; set hidden: null, or head: linear"
            )
            raise cast(ValidationError, mistakes([(("head",), said)]))
        return self

    @property
    def is_published(self) -> bool:
        """Whether all weights of the encoder are published."""
        return self.head == "none"

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return self.trainable or self.head == "linear"

    def clean_caption(self, text: str) -> str:
        """Return a caption without the characters in `removed`, in lower case if `lowercase` is set."""
        text = text.lower() if self.lowercase else text
        return text.translate(str.maketrans("", "", self.removed))

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder: a published model, followed by untrained layers if `head` is linear."""
        from system.models.text.pretrained_encoder import Bank, TokenEncoder

        cut = "" if self.max_tokens is None else f"_of_{self.max_tokens}"
        return TokenEncoder(
            self.model,
            Bank(banks, f"{self.kind}{cut}"),
            pooling=self.pooling,
            cleaned=self.clean_caption,
            trainable=self.trainable,
            max_tokens=self.max_tokens,
            dropout=self.dropout,
            hidden=self.hidden,
            dim=self.dim,
            has_head=self.head == "linear",
        )


class FirstToken(TokenSettings):
    """A pre-trained transformer's first token ([CLS]). Then one linear layer to `dim`, or two with ReLU: to `hidden`,
    then to `dim`.

    Source: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2. With one linear layer: the
    DCASE 2025 baseline and SALSA (2024). These use RoBERTa-large, and captions in lower case without ASCII punctuation.
    They cut captions at 32 tokens (and pad shorter captions to 32, which has no effect).
    """

    kind: Literal["first_token"]
    pooling = "first"


class MeanTokens(TokenSettings):
    """The mean of a pre-trained transformer's tokens, including the special ones, and then one or two linear layers.

    The linear layers are those of the kind `first_token`: to `dim`, or with ReLU to `hidden` and then to `dim`.

    Any transformer will do: BERT, the encoder of T5 or BART, and language models such as GPT-2 or Qwen3.
    """

    kind: Literal["mean_tokens"]
    pooling = "mean"


class LastToken(TokenSettings):
    """A pre-trained transformer's last token, and then one or two linear layers.

    This is for language models: only their last token depends on the whole text. The linear layers are those of the
    kind `first_token`.

    The last token is that of the tokenizer's output: an end token if the tokenizer adds one, as for Qwen3-Embedding.
    Source: Wang et al., "Improving Text Embeddings with Large Language Models" (2024), section 3.1; Zhang et al.,
    "Qwen3 Embedding" (2025), section 2.
    """

    kind: Literal["last_token"]
    pooling = "last"


class VectorSettings(PreTrained):
    """Settings of the kinds of encoders whose model returns one vector per text."""

    dim: Size  # D of the model, checked when it is loaded
    trainable: bool  # false: frozen, and its embeddings are kept in the banks
    projection: Literal["none", "linear"]  # a trainable D x D layer after the encoder

    def plan_fault(self) -> str | None:
        """Return an error message if `dim` differs from the size of the model's vectors; None if equal or not known."""
        folder = local_folder(self.model)
        size = vector_size(folder) if folder else None
        if size is None or size == self.dim:
            return None
        return f"{self.model} has vectors of {size} values, but text.dim is {self.dim}; set text.dim to {size}"

    @property
    def is_published(self) -> bool:
        """Whether all weights of the encoder are published."""
        return self.projection == "none"

    @property
    def is_trained(self) -> bool:
        """Whether the encoder has trainable parameters."""
        return self.trainable or self.projection == "linear"


class SentenceTransformers(VectorSettings):
    """A pre-trained sentence encoder by hub name or folder. If it is frozen, its embeddings are computed once."""

    kind: Literal["sentence_transformers"]

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder: a published model, followed by an untrained layer if `projection` is linear."""
        from system.models.text.sentence_encoder import load_sentence_encoder

        return load_sentence_encoder(self.model, self.dim, self.projection == "linear", self.trainable, banks)


class Clap(VectorSettings):
    """The text encoder of a public CLAP with its projection. With the audio encoder `hugging_face` of the same model it
    is a zero-shot system. Captions are cut at 77 tokens, as in CLAP's processor.

    Source: Wu et al., "Large-Scale Contrastive Language-Audio Pretraining" (2023);
    transformers' ClapTextModelWithProjection.
    """

    kind: Literal["clap"]

    def build(self, vocabulary: list[str], banks: Path) -> Encoder:
        """Build the encoder: a published model, followed by an untrained layer if `projection` is linear."""
        from system.models.text.pretrained_encoder import Bank, ClapEncoder

        return ClapEncoder(self.model, self.dim, self.projection == "linear", self.trainable, Bank(banks, "clap"))
