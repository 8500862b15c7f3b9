"""A sentence-transformers model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data_tools.classify.embed import load_sentence_transformer, model_fingerprint
from data_tools.errors import KitError
from system.features.bank import open_bank
from system.models.similarity import Embedded
from system.models.text.encoder import EmbeddingCache, TextEncoder, Tokens
from system.models.text.sentence_transformers import SentenceTransformers


class SentenceEncoder(TextEncoder):
    """A sentence-transformers model. Frozen: embeddings are computed once a text and kept in a bank of their own.
    Trainable: texts are tokenised once."""

    def __init__(self, settings: SentenceTransformers, banks: Path) -> None:
        super().__init__()
        model = load_sentence_transformer(settings.model, "cpu").float()
        model.tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # texts are tokenised only once
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
        self._identity = model_fingerprint(model, model.tokenizer)
        self._tokens = Tokens(self._tokenise)
        if self._frozen:
            folder = banks / f"text-{self._identity[:12]}"
            bank = open_bank(folder, settings.dim, "float32", {"sentence_transformers": self._identity})
            self._cache = EmbeddingCache(bank, lambda texts: self._encoded(texts).cpu().numpy())

    @property
    def _model(self) -> Any:
        return self.trained if self.trained is not None else self._frozen[0]

    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        if self.trained is None:
            vectors = self._cache(texts).to(self.device) if self.remembers else self._encoded(texts)
            return Embedded(self.project(vectors))
        tokens = self._tokens.of(texts, self.remembers)
        inputs = self.trained.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
        inputs = {name: inputs[name].to(self.device) for name in ("input_ids", "attention_mask")}
        return Embedded(self.project(self.trained(inputs)["sentence_embedding"]))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        if self.trained is None:
            return [len(text) if not self.remembers else 0 for text in texts]  # those that are kept are not padded
        return [len(tokens) for tokens in self._tokens.of(texts, self.remembers)]

    def prepare(self, texts: Sequence[str]) -> None:
        unique = list(dict.fromkeys(texts))
        if self.trained is None:
            self._cache(unique)
        else:
            self._tokens.of(unique, self.remembers)

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """Cut to the model's longest input."""
        found = self._model.preprocess(texts)
        rows = zip(found["input_ids"], found["attention_mask"].bool(), strict=True)
        return [tokens[mask].tolist() for tokens, mask in rows]

    def identity(self) -> str | None:
        return self._identity

    def frozen_parameters(self) -> int:
        return sum(p.numel() for model in self._frozen for p in model.parameters())

    def _encoded(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, D) of the frozen model."""
        vectors: torch.Tensor = self._model.to(self.device).encode(
            list(texts), batch_size=64, show_progress_bar=False, normalize_embeddings=False, convert_to_tensor=True
        )
        return vectors

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        tokenizer = self._model.tokenizer
        unknown = {tokenizer.unk_token_id, *tokenizer.all_special_ids}
        return [text for text in texts if set(tokenizer(text)["input_ids"]) <= unknown]

    def save_assets(self, folder: Path) -> None:
        self._model.save(str(folder / "text"))
