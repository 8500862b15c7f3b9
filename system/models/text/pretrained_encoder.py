"""Pre-trained text encoders: networks.

This file has their base class, the text encoder of CLAP, and encoders by a transformer's first token, last token, or
mean of the tokens.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from data_tools.classify.embed import model_fingerprint, position_count
from data_tools.classify.model_files import fetch
from data_tools.errors import KitError, first_line
from system.compute.device import on_device
from system.features.bank import open_bank
from system.features.texts import store_vectors
from system.models.embeddings import Embedded
from system.models.text.encoder import TextEncoder
from system.networks.layers import head, pooled_over_time

# N texts, V values of a pre-trained model's vector

FROZEN_AT_ONCE = 64  # texts
CLAP_TOKENS = 77
NO_LIMIT = 1_000_000  # tokenizers without a limit give a far larger number


class Bank(NamedTuple):
    """The bank of a frozen model's vectors. folder: Folder of all banks. name: Part of the bank's name."""

    folder: Path
    name: str


class PreTrainedEncoder(TextEncoder):
    """A pre-trained model, and trained layers after it.

    If the model is frozen, its vector of each text is computed once, without dropout, and stored on disk in a bank.
    """

    def store_model(self, model: Any, name: str, after: nn.Module, trainable: bool, bank: Bank, size: int) -> None:
        """Store the model and the layers `after` it; if the model is frozen, open the bank that caches its vectors.

        Args:
            model: The pre-trained network.
            name: The folder, package or hub name of the model. Its files and weights determine the bank's name.
            after: The trained layers after the model.
            trainable: Whether the model is trained too.
            bank: Folder and name of the bank of vectors.
            size: V, the number of values of a vector.
        """
        self._after = [after]  # in a list: a module is registered under one name only
        self.trained = model if trainable else None
        # A frozen model is no submodule, so that checkpoints do not hold it and it never enters training mode.
        self._frozen: list[Any] = [] if trainable else [model.eval().requires_grad_(False)]
        self._identity, self._name = model_fingerprint(model, fetch(name)), name
        if not trainable:
            kept = f"{self._identity[:12]}-{bank.name}"
            self.bank = open_bank(bank.folder / f"text-{kept}", size, "float32", {bank.name: self._identity})

    @property
    def _model(self) -> Any:
        """The pre-trained model, whether it is trainable or frozen."""
        return self.trained if self.trained is not None else self._frozen[0]

    @abstractmethod
    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the trainable model."""

    @abstractmethod
    def _frozen_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the frozen model."""

    def _clean_texts(self, texts: Sequence[str]) -> list[str]:
        """Return the texts unchanged; a subclass may clean the texts for the tokenizer."""
        return list(texts)

    def _cached_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the frozen model's vectors (N, V) of cleaned texts from the bank, on the CPU.

        Missing vectors are computed and stored first.
        """
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        store_vectors(self.bank, dict(zip(keys, texts, strict=True)), self._frozen_vectors, f"by {self._name}")
        return torch.from_numpy(np.stack([self.bank.read(key)[0] for key in keys]))

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        """Embed some texts of similar length, padded to the longest."""
        texts, (after,) = self._clean_texts(texts), self._after
        if self.trained is not None:
            return Embedded(after(self._vectors(texts)))
        if self.caches_texts:
            return Embedded(after(on_device(self._cached_vectors(texts), self.device)))
        return Embedded(after(self._frozen_vectors(texts)))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of characters of each text, for grouping by length; 0 if vectors of texts are stored."""
        if self.trained is None and self.caches_texts:
            return [0] * len(texts)  # vectors in a bank are not padded
        return [len(text) for text in texts]

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute and store the frozen model's vectors of texts, which do not change during training."""
        unique = list(dict.fromkeys(self._clean_texts(texts)))
        if self.trained is None and unique:
            self._cached_vectors(unique)

    def identity(self) -> str | None:
        """Return the checksum of the pre-trained model, never None."""
        return self._identity

    def frozen_parameters(self) -> int:
        """Count the parameters that are not trained."""
        return sum(p.numel() for model in self._frozen for p in model.parameters())


class TransformerEncoder(PreTrainedEncoder):
    """A pre-trained transformer with its tokenizer. If it is trainable, each text is tokenised once.

    prompt: Text before every caption; empty for most models. _longest: Number of tokens to which texts are cut.
    """

    prompt = ""
    _longest = NO_LIMIT

    def store_tokenizer(self, tokenizer: Any) -> None:
        """Store the tokenizer in the encoder, and start an empty cache of tokens."""
        tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # texts are tokenised only once
        self.tokenizer = tokenizer
        self._known_tokens: dict[str, list[int]] = {}

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the longest input of the model. Special tokens are included."""
        found: list[list[int]] = self.tokenizer(texts, truncation=True, max_length=self._longest)["input_ids"]
        return found

    @torch.no_grad()
    def _frozen_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the frozen model, texts of similar length together."""
        self._model.to(self.device)
        order = np.argsort([len(text) for text in texts])
        groups = [order[start : start + FROZEN_AT_ONCE] for start in range(0, len(order), FROZEN_AT_ONCE)]
        vectors = torch.cat([self._vectors([texts[i] for i in group]) for group in groups])
        return vectors[torch.from_numpy(np.argsort(order)).to(vectors.device)]

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of cleaned texts; ids are cached, unless private queries must not be stored."""
        known = self._known_tokens if self.caches_texts else {}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), 1024):
            batch = missing[start : start + 1024]
            known |= dict(zip(batch, self._tokenise(batch), strict=True))
        return [known[text] for text in texts]

    def _model_inputs(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the model's inputs for cleaned texts: padded tokens, including those of the prompt, and their mask."""
        tokens = self._token_ids([self.prompt + text for text in texts])
        inputs = self.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
        return {name: on_device(inputs[name], self.device) for name in ("input_ids", "attention_mask")}

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, for grouping by length; 0 if vectors of texts are stored."""
        if self.trained is None and self.caches_texts:
            return super().lengths(texts)
        return [len(tokens) for tokens in self._token_ids([self.prompt + text for text in self._clean_texts(texts)])]

    def prepare(self, texts: Sequence[str]) -> None:
        """Compute and store the tokens of texts, and, if the model is frozen, their vectors."""
        super().prepare(texts)
        if self.trained is not None:
            self._token_ids([self.prompt + text for text in self._clean_texts(texts)])

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without any known word."""
        unknown = {self.tokenizer.unk_token_id, *self.tokenizer.all_special_ids}
        tokens = self._token_ids(self._clean_texts(texts))
        return [text for text, ids in zip(texts, tokens, strict=True) if set(ids) <= unknown]

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that contain unknown tokens; an empty list for most tokenizers.

        Words are separated by blanks.
        """
        words = list(dict.fromkeys(text.split()))
        tokens = self._token_ids(self._clean_texts(words))
        return [word for word, ids in zip(words, tokens, strict=True) if self.tokenizer.unk_token_id in ids]


def build_projection(name: str, found: int, dim: int, linear: bool) -> nn.Module:
    """Return the layer after a model: a linear layer or, if `linear` is false, a layer without effect.

    name: Name of the model, for the error message. found: Size of the model's vectors. dim: Size of vectors in the
    settings. Raises KitError if the two sizes differ.
    """
    if found != dim:
        raise KitError(
            f"text model {name!r} returns vectors of {found} values, but text.dim is {dim}; set text.dim to {found}"
        )
    return nn.Linear(dim, dim) if linear else nn.Identity()


class ClapEncoder(TransformerEncoder):
    """CLAP's projected embeddings of texts, with a linear layer if `linear`."""

    def __init__(self, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """Load the model. linear: Whether a trained layer follows the model."""
        super().__init__()
        tokenizer, model = load_clap(name)
        self.project = build_projection(name, int(model.config.projection_dim), dim, linear)
        self.store_tokenizer(tokenizer)
        self.store_model(model, name, self.project, trainable, bank, dim)
        self._longest = longest_input(tokenizer, model, CLAP_TOKENS)

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the model, trained or frozen."""
        vectors: torch.Tensor = self._model(**self._model_inputs(texts)).text_embeds
        return vectors

    def save_assets(self, folder: Path) -> None:
        """Save the language model and its tokenizer in the folder of an exported retrieval model."""
        self._model.save_pretrained(folder / "text")
        self.tokenizer.save_pretrained(folder / "text")


class TokenEncoder(TransformerEncoder):
    """The first or the last token of a transformer's last layer, or the mean of its tokens; then one or two linear
    layers.

    If the transformer is trainable, all of its layers are trained. Its pooler is removed. If a model has a decoder
    (BART, mBART, LED), only its encoder is used.
    Source: github.com/XinhaoMei/audio-text_retrieval (2022). Deviation: a frozen transformer has no dropout; the
    public code leaves a frozen BERT's dropout on in training.
    """

    def __init__(
        self,
        name: str,
        bank: Bank,
        *,
        pooling: Literal["first", "mean", "last"],
        cleaned: Callable[[str], str],
        trainable: bool,
        max_tokens: int | None,
        dropout: float | None,
        hidden: int | None,
        dim: int,
        has_head: bool = True,
    ) -> None:
        """Load the transformer, and build the layers after it.

        pooling: The mean over the tokens, or the first or last token. cleaned: Function that cleans a caption before
        the tokenizer reads it. trainable: Whether the transformer is trained. max_tokens: Maximum number of tokens of a
        caption; None: only the model's own limits. dropout: Dropout of the transformer; None: as in its settings.
        hidden: Size of a layer with ReLU before the last layer; None for only the last layer. dim: Number of values per
        embedding. has_head: Whether there are layers after the transformer.
        """
        super().__init__()
        self.pooling, self.clean = pooling, cleaned
        tokenizer, whole = load_transformer(name, dropout)
        if pooling == "first" and tokenizer("a")["input_ids"][0] != tokenizer.cls_token_id:
            raise KitError(
                f"text model {name!r} has no first token that represents the whole text; use kind: mean_tokens or "
                "last_token"
            )
        self._whole = [whole]  # the published model, with its decoder if it has one
        model = whole.get_encoder() if whole.config.is_encoder_decoder else whole
        width = int(model.config.hidden_size)
        self.mlp = head(width, hidden, dim) if has_head else build_projection(name, width, dim, linear=False)
        self.store_tokenizer(tokenizer)
        self.store_model(model, name, self.mlp, trainable, bank, width)
        self._longest = longest_input(tokenizer, model, max_tokens)

    def _clean_texts(self, texts: Sequence[str]) -> list[str]:
        """Clean the texts for the tokenizer, as the settings state: remove characters, convert to lower case."""
        return list(map(self.clean, texts))

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the model, trained or frozen."""
        inputs = self._model_inputs(texts)
        tokens: torch.Tensor = self._model(**inputs).last_hidden_state
        if self.pooling == "first":
            return tokens[:, 0]
        counts = inputs["attention_mask"].sum(1)
        if self.pooling == "last":
            return tokens[torch.arange(len(tokens), device=tokens.device), counts - 1]
        return pooled_over_time(tokens, counts, "mean")

    def save_assets(self, folder: Path) -> None:
        """Save the language model and its tokenizer in the folder of an exported retrieval model."""
        self._whole[0].save_pretrained(folder / "text")
        self.tokenizer.save_pretrained(folder / "text")


def longest_input(tokenizer: Any, model: Any, longest: int | None) -> int:
    """Return the number of tokens to which texts are cut: the lowest limit of tokenizer, model and settings.

    The model's limit is its number of positions. longest: Limit in the settings; None for no limit.
    """
    limits = (tokenizer.model_max_length, position_count(model), longest, NO_LIMIT)
    return min(limit for limit in limits if limit is not None)


def load_clap(name: str) -> tuple[Any, Any]:
    """Load the tokenizer and the text encoder of a CLAP, in float32 on the CPU. Raises KitError for another model."""
    from transformers import AutoConfig, AutoTokenizer, ClapTextModelWithProjection
    from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

    disable_progress_bar()
    name = str(fetch(name))
    verbosity = get_verbosity()
    set_verbosity_error()  # else the library logs at length that a whole CLAP has an audio encoder too
    try:
        kind = AutoConfig.from_pretrained(name, trust_remote_code=False).model_type
        if kind not in ("clap", "clap_text_model"):
            raise KitError(
                f"text model {name!r} is not a CLAP: its config.json says model_type {kind}; "
                "name a CLAP, or set another kind of text encoder"
            )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = ClapTextModelWithProjection.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
    except KitError:
        raise
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        reason = first_line(error)
        raise KitError(
            f"the text encoder of CLAP cannot be loaded from {name!r} ({reason}); name the folder of a CLAP "
            "model, or, while online, its Hugging Face name"
        ) from error
    finally:
        set_verbosity(verbosity)
    return tokenizer, model


def load_transformer(name: str, dropout: float | None) -> tuple[Any, Any]:
    """Load a tokenizer and its model. name: Folder, package or Hugging Face name of the model.

    The model is on the CPU, in float32. dropout: Rate for hidden states and attention; None for the model's own
    rates. Raises KitError for a folder without such a model. If `dropout` is set, also raises KitError for a model
    without settings of dropout.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

    disable_progress_bar()
    name = str(fetch(name))
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        if dropout is not None and not all(hasattr(config, rate) for rate in rates):
            raise KitError(f"text model {name!r} has no settings {' and '.join(rates)}; set text.dropout to null")
        config.update({rate: dropout for rate in rates if dropout is not None})
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        before = get_verbosity()
        set_verbosity_error()  # else the library logs at length that a saved folder has no pooler
        model = AutoModel.from_pretrained(name, config=config, dtype=torch.float32, trust_remote_code=False)
        set_verbosity(before)
    except KitError:
        raise
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        reason = first_line(error)
        raise KitError(
            f"text model {name!r} cannot be loaded ({reason}); name its folder, or, while online, its Hugging Face name"
        ) from error
    tokenizer.padding_side = "right"  # the first and the last token are found by their number
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token  # of padding, which the mask leaves out
    model.pooler = None  # comes after the first token; untrained weights of it would be saved and counted
    return tokenizer, model
