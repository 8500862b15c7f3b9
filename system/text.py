"""Caption encoders: a small transformer from scratch, or a pre-trained sentence encoder."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from data_tools.classify.embed import model_fingerprint
from system import schema
from system.attention import SeriesEncoder, mean_over_real
from system.bank import open_bank
from system.errors import KitError
from system.similarity import Embedded, joined
from system.words import words_of

# N captions, W words, D embedding

TEXTS_AT_ONCE = {"cpu": 128, "cuda": 512}  # a GPU needs more at once to be busy
QUERIES_AT_ONCE = 16  # of people who wait: 32 in two halves by length take 16 % less than 16 and 16 as they come


class TextEncoder(nn.Module, ABC):
    """Captions -> Embedded (N, D).

    remembers: what it works out of a text is kept for the next time, in memory or in a bank, as suits a data set's
    captions, which come again; not so what people type into a search page.
    """

    place: torch.Tensor
    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.empty(0), persistent=False)  # knows the device, also without parameters

    def forward(self, texts: Sequence[str]) -> Embedded:
        """Embeddings of the texts, in their order; N >= 1.

        Texts of like length are computed together, so that hardly anything is padded: of 2,560 captions of Clotho, half
        of a batch padded to its longest caption is padding, of sorted chunks of 128 one place in 25.
        """
        lengths = self.lengths(texts)
        order = sorted(range(len(texts)), key=lambda i: lengths[i])
        device = self.place.device
        size = TEXTS_AT_ONCE[device.type] if self.remembers else QUERIES_AT_ONCE
        parts = [self.embed_alike([texts[i] for i in order[s : s + size]]) for s in range(0, len(order), size)]
        return joined(parts).rows(torch.from_numpy(np.argsort(order)).to(device))

    @abstractmethod
    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        """Embeddings of some texts of about the same length, padded to the longest."""

    @abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Places that each text takes."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute before training what stays the same during it."""

    def identity(self) -> str | None:
        """Checksum of a pre-trained encoder; None for one from scratch, whose weights are all in the checkpoints."""
        return None

    def frozen_parameters(self) -> int:
        """Parameters that are used but not trained."""
        return 0

    @abstractmethod
    def unreadable(self, texts: Sequence[str]) -> list[str]:
        """Texts of which the encoder knows no word at all: all clips would score alike."""

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write what another machine needs beside the weights."""


class ScratchText(TextEncoder):
    """Word vectors, a BART-type encoder, mean over words, linear.

    Words outside the vocabulary are passed over, so that an unseen word adds no untrained noise; a text is cut after
    `max_words` known words.
    """

    def __init__(self, settings: schema.Transformer, vocabulary: list[str]) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.number = {word: n for n, word in enumerate(vocabulary, start=1)}  # 0 fills
        self.max_words = settings.max_words
        self._known: dict[str, list[int]] = {}
        self.words = nn.Embedding(len(vocabulary) + 1, settings.dim, padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.02)
        self.encoder = SeriesEncoder(
            settings.dim, settings.layers, settings.heads, settings.ff, settings.max_words, settings.dropout
        )
        self.out = nn.Linear(settings.dim, settings.dim)

    def _numbers(self, text: str) -> list[int]:
        known = self._known if self.remembers else {}
        if text not in known:
            known[text] = [self.number[word] for word in words_of(text) if word in self.number][: self.max_words]
        return known[text]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(self._numbers(text)) for text in texts]

    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        numbers = [self._numbers(text) or [0] for text in texts]
        lengths = torch.tensor([len(n) for n in numbers])
        filled = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.long)
        for row, n in zip(filled, numbers, strict=True):
            row[: len(n)] = torch.tensor(n)
        device = self.place.device
        real = (torch.arange(filled.shape[1]) < lengths[:, None]).to(device)
        return Embedded(self.out(mean_over_real(self.encoder(self.words(filled.to(device)), real), real)))

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        return [text for text in texts if not self._numbers(text)]

    def save_assets(self, folder: Path) -> None:
        (folder / "vocabulary.json").write_text(json.dumps(self.vocabulary, ensure_ascii=False), encoding="utf-8")


class SentenceText(TextEncoder):
    """A sentence-transformers model. Frozen: embeddings are computed once a text and kept in a bank of their own.
    Trainable: texts are tokenised once."""

    def __init__(self, settings: schema.SentenceTransformers, banks: Path) -> None:
        super().__init__()
        model = load_sentence_transformer(settings.model)
        found = model.get_embedding_dimension()
        if found != settings.dim:
            raise KitError(
                f"text model {settings.model!r} has {found} dimensions, not {settings.dim}; set text.dim to {found}"
            )
        self.project: nn.Module = (
            nn.Linear(settings.dim, settings.dim) if settings.projection == "linear" else nn.Identity()
        )
        self.trained = model if settings.trainable else None
        # A frozen model is no submodule: its weights are in no checkpoint and its layers never enter training mode.
        self._frozen: list[Any] = [] if settings.trainable else [model.eval()]
        self._identity = model_fingerprint(model)
        self._tokens: dict[str, list[int]] = {}
        if self._frozen:
            folder = banks / f"text-{self._identity[:12]}"
            self._bank = open_bank(folder, settings.dim, "float32", {"sentence_transformers": self._identity})

    @property
    def _model(self) -> Any:
        return self.trained if self.trained is not None else self._frozen[0]

    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        if self.trained is None:
            return Embedded(self.project(self._kept(texts) if self.remembers else self._encoded(texts)))
        inputs = self.trained.tokenizer.pad({"input_ids": self._tokenised(texts)}, return_tensors="pt")
        inputs = {name: inputs[name].to(self.place.device) for name in ("input_ids", "attention_mask")}
        return Embedded(self.project(self.trained(inputs)["sentence_embedding"]))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        if self.trained is None:
            return [len(text) if not self.remembers else 0 for text in texts]  # those that are kept are not padded
        return [len(tokens) for tokens in self._tokenised(texts)]

    def prepare(self, texts: Sequence[str]) -> None:
        unique = list(dict.fromkeys(texts))
        if self.trained is None:
            self._kept(unique)
        else:
            self._tokenised(unique)

    def _tokenised(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of the texts, special ones included, cut to the model's longest input."""
        known = self._tokens if self.remembers else {}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), 1024):
            part = missing[start : start + 1024]
            found = self._model.preprocess(part)
            rows = zip(part, found["input_ids"], found["attention_mask"].bool(), strict=True)
            known |= {text: tokens[real].tolist() for text, tokens, real in rows}
        return [known[text] for text in texts]

    def identity(self) -> str | None:
        return self._identity

    def frozen_parameters(self) -> int:
        return sum(p.numel() for model in self._frozen for p in model.parameters())

    def _kept(self, texts: Sequence[str]) -> torch.Tensor:
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._bank}
        if missing:
            vectors = self._encoded(list(missing.values())).cpu().numpy()
            for _ in self._bank.add((key, v[None]) for key, v in zip(missing, vectors, strict=True)):
                pass
        return torch.from_numpy(np.stack([self._bank.read(key)[0] for key in keys])).to(self.place.device)

    def _encoded(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, D) of the frozen model."""
        vectors: torch.Tensor = self._model.to(self.place.device).encode(
            list(texts), batch_size=64, show_progress_bar=False, normalize_embeddings=False, convert_to_tensor=True
        )
        return vectors

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        tokenizer = self._model.tokenizer
        unknown = {tokenizer.unk_token_id, *tokenizer.all_special_ids}
        return [text for text in texts if set(tokenizer(text)["input_ids"]) <= unknown]

    def save_assets(self, folder: Path) -> None:
        self._model.save(str(folder / "text"))


def load_sentence_transformer(name: str) -> Any:
    """A SentenceTransformer by hub name or folder, on the CPU. KitError when it cannot be had."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model = SentenceTransformer(name, device="cpu").float()
        model.tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # texts are tokenised only once
        return model
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise KitError(
            f"no sentence-transformers model {name!r} ({reason}); "
            "give a folder that holds one, or a hub name while online"
        ) from error


def build_text(
    settings: schema.Transformer | schema.SentenceTransformers, vocabulary: list[str], banks: Path
) -> TextEncoder:
    """The text encoder of a recipe. vocabulary: of all training captions; only the encoder from scratch reads it."""
    if isinstance(settings, schema.Transformer):
        return ScratchText(settings, vocabulary)
    return SentenceText(settings, banks)
