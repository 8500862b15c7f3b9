"""A pre-trained transformer's first token ([CLS]) behind two linear layers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from data_tools.classify.embed import model_fingerprint
from data_tools.errors import KitError
from system.features.bank import open_bank
from system.models.similarity import Embedded
from system.models.text.encoder import EmbeddingCache, TextEncoder, Tokens
from system.models.text.first_token import FirstToken

FROZEN_AT_ONCE = 64  # texts
NO_LIMIT = 1_000_000  # tokenizers without one give a far larger number


class FirstTokenEncoder(TextEncoder):
    """The last layer's first token; linear, ReLU, linear.

    Frozen: the first token is computed once a text, without dropout, and kept in a bank; the public code leaves a
    frozen BERT's dropout on in training. Trainable: all of the transformer learns but its pooler, which is not there.
    Source: github.com/XinhaoMei/audio-text_retrieval (2022).
    """

    def __init__(self, settings: FirstToken, banks: Path) -> None:
        super().__init__()
        self._without = str.maketrans("", "", settings.removed)
        self.tokenizer, model = load_transformer(settings.model, settings.dropout)
        width = int(model.config.hidden_size)
        self.mlp = nn.Sequential(nn.Linear(width, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, settings.dim))
        self.trained = model if settings.trainable else None
        # A frozen model is no submodule: its weights are in no checkpoint and its layers never enter training mode.
        # The library loads models in evaluation mode.
        self._frozen: list[Any] = [] if settings.trainable else [model.requires_grad_(False)]
        self._identity = model_fingerprint(model, self.tokenizer)
        self._tokens = Tokens(self._tokenise)
        if self._frozen:
            bank = open_bank(banks / f"text-{self._identity[:12]}", width, "float32", {"first_token": self._identity})
            self._cache = EmbeddingCache(bank, lambda texts: self._computed(texts).cpu().numpy())

    @property
    def _model(self) -> Any:
        return self.trained if self.trained is not None else self._frozen[0]

    def _cleaned(self, texts: Sequence[str]) -> list[str]:
        return [text.translate(self._without) for text in texts]

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        longest = min(self.tokenizer.model_max_length, NO_LIMIT, self._model.config.max_position_embeddings)
        found: list[list[int]] = self.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        return found

    def embed_alike(self, texts: Sequence[str]) -> Embedded:
        texts = self._cleaned(texts)
        if self.trained is not None:
            return Embedded(self.mlp(self._first(texts)))
        return Embedded(self.mlp(self._cache(texts).to(self.device) if self.remembers else self._computed(texts)))

    def _first(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, width), padded to the longest."""
        inputs = self.tokenizer.pad({"input_ids": self._tokens.of(texts, self.remembers)}, return_tensors="pt")
        inputs = {name: inputs[name].to(self.device) for name in ("input_ids", "attention_mask")}
        first: torch.Tensor = self._model(**inputs).last_hidden_state[:, 0]
        return first

    @torch.no_grad()
    def _computed(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, width) of the frozen model."""
        self._model.to(self.device)
        order = np.argsort([len(text) for text in texts])
        parts = [order[start : start + FROZEN_AT_ONCE] for start in range(0, len(order), FROZEN_AT_ONCE)]
        first = torch.cat([self._first([texts[i] for i in part]) for part in parts])
        return first[torch.from_numpy(np.argsort(order)).to(first.device)]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        if self.trained is None and self.remembers:
            return [0] * len(texts)  # what is kept is not padded
        return [len(tokens) for tokens in self._tokens.of(self._cleaned(texts), self.remembers)]

    def prepare(self, texts: Sequence[str]) -> None:
        unique = list(dict.fromkeys(self._cleaned(texts)))
        if self.trained is None:
            self._cache(unique)
        else:
            self._tokens.of(unique, self.remembers)

    def identity(self) -> str | None:
        return self._identity

    def frozen_parameters(self) -> int:
        return sum(p.numel() for model in self._frozen for p in model.parameters())

    def unreadable(self, texts: Sequence[str]) -> list[str]:
        unknown = {self.tokenizer.unk_token_id, *self.tokenizer.all_special_ids}
        tokens = self._tokens.of(self._cleaned(texts), self.remembers)
        return [text for text, ids in zip(texts, tokens, strict=True) if set(ids) <= unknown]

    def save_assets(self, folder: Path) -> None:
        self._model.save_pretrained(folder / "text")
        self.tokenizer.save_pretrained(folder / "text")


def load_transformer(name: str, dropout: float | None) -> tuple[Any, Any]:
    """Tokenizer and model, float32 on the CPU, by hub name or folder.

    dropout: of hidden states and attention; None: as the model's own settings say. KitError when it cannot be had, or
    takes no such dropout.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        if dropout is not None and not all(hasattr(config, rate) for rate in rates):
            raise KitError(f"text model {name!r} has no {' and '.join(rates)}; set text.dropout to null")
        config.update({rate: dropout for rate in rates if dropout is not None})
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        before = get_verbosity()
        set_verbosity_error()  # a saved folder has no pooler, of which the library tells at length
        model = AutoModel.from_pretrained(name, config=config, dtype=torch.float32, trust_remote_code=False)
        set_verbosity(before)
    except KitError:
        raise
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise KitError(
            f"no transformer {name!r} ({reason}); give a folder that holds one, or a hub name while online"
        ) from error
    if tokenizer.cls_token_id is None or not hasattr(model.config, "max_position_embeddings"):
        raise KitError(f"text model {name!r} has no first token that stands for a text; use one like BERT or RoBERTa")
    model.pooler = None  # behind the first token; untrained weights of it would be saved and counted
    tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # texts are tokenised only once
    return tokenizer, model
