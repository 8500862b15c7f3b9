"""Published text models: transformers and sentence encoders, by sentence-transformers.

`pooling` makes a text's vector from its tokens: the model's own way, or the first token ([CLS]; metric learning 2022,
SALSA 2024, the 2025 baseline), the mean, or the last token (language models).
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from data_tools.classify.embed import limit_length, load_sentence_transformer, model_fingerprint
from data_tools.classify.model_files import fetch
from data_tools.cli import counted, progress
from data_tools.errors import KitError, first_line
from data_tools.settings import Size
from system.audio import Need
from system.devices import on_device
from system.features.bank import Bank
from system.models import Dropout, head
from system.models.batch import Embedded
from system.models.text import TextEncoder, TextSettings

# N texts, V values of a published model's vector

AT_ONCE = 64  # texts of a frozen model
POOLINGS = {"first": "cls", "mean": "mean", "last": "lasttoken"}
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class PublishedText(TextSettings):
    """Settings of a published model and linear layers.

    If the model is frozen, each text is embedded once and stored.
    """

    model: str  # folder, package or hub name
    trainable: bool  # false: frozen
    hidden: Size | None = None  # of a layer with ReLU before the last one
    dim: Size  # D, of an embedding
    head: Literal["linear", "none"] = "linear"  # none: the model's vectors, which must have `dim` values

    @property
    def is_trained(self) -> bool:
        return self.trainable or self.head == "linear"

    def needs(self) -> list[Need]:
        return [Need("model", self.model, model="text model")]

    @property
    def description(self) -> str:
        return self.model

    @abstractmethod
    def load(self) -> Any:
        """Load the model in float32 on the CPU.

        Its interface is that of a SentenceTransformer.
        """

    def clean(self, text: str) -> str:
        """Change a caption before it is tokenised."""
        return text

    def build(self, vocabulary: list[str], banks: Path) -> TextEncoder:
        return PublishedEncoder(self, banks)


class Published(PublishedText):
    """A published text model by folder, package or hub name.

    One linear layer follows, or two with a ReLU between them.

    Sources: "On Metric Learning for Audio-Text Cross-Modal Retrieval" (2022), section 2.2: the first token of BERT; the
    DCASE 2025 baseline and SALSA (2024): RoBERTa-large, captions in lower case without ASCII punctuation, cut at 32
    tokens. Deviation: a frozen model has no dropout; the public code of 2022 leaves a frozen BERT's dropout on.
    """

    kind: Literal["published"]
    pooling: Literal["own", "first", "mean", "last"] = "own"  # own: as published for sentences, with its prompt
    removed: str = ""  # characters taken out of captions
    lowercase: bool = False  # captions in lower case, before characters are taken out
    max_tokens: Annotated[int, Field(ge=3)] | None = None  # longer captions are cut; null: at the model's longest
    dropout: Dropout | None = None  # of hidden states and attention; null: as published

    def clean(self, text: str) -> str:
        return (text.lower() if self.lowercase else text).translate(str.maketrans("", "", self.removed))

    def load(self) -> Any:
        if self.pooling == "own":
            network = load_sentence_transformer(self.model, "cpu")
        else:
            network = load_tokens(self.model, self.pooling, self.dropout)
        limit_length(network, self.max_tokens)
        return network


def load_tokens(name: str, pooling: str, dropout: float | None = None) -> Any:
    """Load a transformer and its pooling as a SentenceTransformer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder, rates = str(fetch(name)), {} if dropout is None else dict.fromkeys(RATES, dropout)
    try:
        found = Transformer(folder, config_kwargs=rates, model_kwargs={"trust_remote_code": False})
        pooled = Pooling(found.get_embedding_dimension(), POOLINGS[pooling])
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        raise KitError(f"text model {name!r} cannot be loaded ({first_line(error)}); name its folder") from error
    if getattr(found.model.config, "is_encoder_decoder", False):
        raise KitError(f"text model {name!r} has a decoder; name a model that is an encoder")
    if rates and not any(isinstance(one, nn.Dropout) and one.p == dropout for one in found.modules()):
        raise KitError(f"text model {name!r} has no {RATES[0]}; set text.dropout to null")
    tokenizer = found.tokenizer
    if pooling == "first" and tokenizer("a")["input_ids"][0] != tokenizer.cls_token_id:
        raise KitError(f"text model {name!r} has no first token for the whole text; set pooling to mean or last")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token  # the mask leaves padding out
    found.model.pooler = None  # it comes after the first token; its weights would be saved and counted
    return SentenceTransformer(modules=[found, pooled], device="cpu", trust_remote_code=False).float()


class PublishedEncoder(TextEncoder):
    """A published model, trained or frozen, and trained layers."""

    def __init__(self, settings: PublishedText, banks: Path) -> None:
        super().__init__()
        self.settings, network = settings, settings.load()
        size = int(network.get_embedding_dimension())
        self.head = head(size, settings, settings.dim, f"text model {settings.model!r}")
        # A frozen model is no submodule, so that checkpoints do not hold it and it never enters training mode.
        self._network = [network]
        self._identity = model_fingerprint(network, fetch(settings.model))
        self._prompt = str(network.prompts.get(network.default_prompt_name) or "") or None
        if settings.trainable:
            self.trained = network
        else:
            network.eval().requires_grad_(False)
            facts = settings.model_dump(include={"kind", "pooling", "max_tokens"}) | {"weights": self._identity}
            name = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
            self.bank = Bank(banks / f"text-{name}", size, "float32", facts)
        self.logit_numbers = getattr(network, "logit_numbers", None)

    @property
    def network(self) -> Any:
        """The published model."""
        return self._network[0]

    @property
    def is_stored(self) -> bool:
        """Whether vectors are read from the bank."""
        return self.caches_texts and not self.settings.trainable

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Compute the model's vectors (N, V) of cleaned texts."""
        network = self.network.to(self.device)
        inputs = network.preprocess(list(texts), prompt=self._prompt)
        inputs = {name: on_device(one, self.device) if torch.is_tensor(one) else one for name, one in inputs.items()}
        found: Tensor = network(inputs)["sentence_embedding"]
        return found

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        texts = [self.settings.clean(text) for text in texts]
        if not self.is_stored:
            return Embedded(self.head(self.vectors(texts)))
        self._store(texts)
        stored = np.concatenate([self.bank.read(text_key(text)) for text in texts])
        return Embedded(self.head(on_device(torch.from_numpy(stored), self.device)))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return super().lengths(texts) if self.is_stored else [len(text) for text in texts]

    def prepare(self, texts: Sequence[str]) -> None:
        if not self.settings.trainable:
            self._store([self.settings.clean(text) for text in texts])

    @torch.no_grad()
    def _store(self, texts: Sequence[str]) -> None:
        """Store the vectors of cleaned texts that the bank lacks."""
        missing = sorted((text for text in dict.fromkeys(texts) if text_key(text) not in self.bank), key=len)
        if not missing:
            return
        said = f"embedding {counted(len(missing), 'caption', ',')} by {self.settings.model}"
        with progress(said, len(missing), "caption") as bar:
            for start in range(0, len(missing), AT_ONCE):
                some = missing[start : start + AT_ONCE]
                for text, vector in zip(some, self.vectors(some).float().cpu().numpy(), strict=True):
                    self.bank.store(text_key(text), vector[None])
                bar.update(len(some))

    def identity(self) -> str:
        return self._identity

    def frozen_parameters(self) -> int:
        return 0 if self.settings.trainable else sum(p.numel() for p in self.network.parameters())

    def save_assets(self, folder: Path) -> None:
        self.network.save(str(folder / "text"))


def text_key(text: str) -> str:
    """Return the key of a text's vector in a bank."""
    return hashlib.sha256(text.encode()).hexdigest()
