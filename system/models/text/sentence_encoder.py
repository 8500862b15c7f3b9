"""sentence-transformers as text encoder.

Text encoders that sentence-transformers loads: transformers, and models without a transformer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_tools.classify.embed import load_sentence_transformer
from system.models.text.pretrained_encoder import Bank, PreTrainedEncoder, TransformerEncoder, build_projection


def load_sentence_encoder(name: str, dim: int, linear: bool, trainable: bool, banks: Path) -> PreTrainedEncoder:
    """Load a sentence-transformers model as text encoder.

    The class of the encoder depends on the model's input: tokens of a transformer, or words.
    name: Folder, package or hub name. dim: Required size of the model's vectors. linear: Whether a trained layer
    follows the model. trainable: Whether the model is trained too. banks: Folder for stored vectors of texts.
    """
    from transformers import PreTrainedTokenizerBase

    model = load_sentence_transformer(name, "cpu")
    is_transformer = isinstance(getattr(model[0], "tokenizer", None), PreTrainedTokenizerBase)
    kind = SentenceTransformersEncoder if is_transformer else StaticEncoder
    return kind(model, name, dim, linear, trainable, Bank(banks, "sentence_transformers"))


class SentenceTransformersEncoder(TransformerEncoder):
    """A sentence-transformers model, with a linear layer if `linear`. A default prompt precedes each caption."""

    def __init__(self, model: Any, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """Store a loaded model. dim: Size of its vectors. linear: Whether a trained layer follows."""
        super().__init__()
        self.prompt = default_prompt(model)
        self._prompt_length = model.preprocess(["a"], prompt=self.prompt).get("prompt_length") if self.prompt else None
        self.project = build_projection(name, model.get_embedding_dimension(), dim, linear)
        self.store_tokenizer(model.tokenizer)
        self.store_model(model, name, self.project, trainable, bank, dim)

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the longest input of the model."""
        found = self._model.preprocess(texts)
        rows = zip(found["input_ids"], found["attention_mask"].bool(), strict=True)
        return [tokens[mask].tolist() for tokens, mask in rows]

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the trainable model."""
        inputs: dict[str, Any] = dict(self._model_inputs(texts))
        if self._prompt_length is not None:  # some models exclude the prompt from their mean
            inputs["prompt_length"] = self._prompt_length
        vectors: torch.Tensor = self._model(inputs)["sentence_embedding"]
        return vectors

    def _frozen_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the frozen model."""
        return encode_frozen(self._model.to(self.device), texts)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens, or characters, of each text, for grouping by length; 0 for cached vectors."""
        if self.trained is None and not self.caches_texts:
            return [len(text) for text in texts]
        return super().lengths(texts)

    def save_assets(self, folder: Path) -> None:
        """Save the language model and its tokenizer in the folder of an exported retrieval model."""
        self._model.save(str(folder / "text"))


class StaticEncoder(PreTrainedEncoder):
    """A sentence-transformers model without a transformer, with a linear layer if `linear`.

    Such models are static embeddings (model2vec's), averages of word vectors, and bags of words.
    """

    def __init__(self, model: Any, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """Store a loaded model. dim: Size of its vectors. linear: Whether a trained layer follows."""
        super().__init__()
        self._prompt = default_prompt(model)
        self.project = build_projection(name, model.get_embedding_dimension(), dim, linear)
        self.store_model(model, name, self.project, trainable, bank, dim)

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the trainable model."""
        inputs = self._model.preprocess(list(texts), prompt=self._prompt or None)
        on_device = {key: value.to(self.device) if hasattr(value, "to") else value for key, value in inputs.items()}
        vectors: torch.Tensor = self._model(on_device)["sentence_embedding"]
        return vectors

    def _frozen_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the frozen model."""
        return encode_frozen(self._model.to(self.device), texts)

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without any known word. Their vectors are zero."""
        vectors = encode_frozen(self._model.to(self.device), texts, prompt="").abs().sum(1)
        return [text for text, total in zip(texts, vectors.tolist(), strict=True) if total == 0]

    def save_assets(self, folder: Path) -> None:
        """Save the language model and its tokenizer in the folder of an exported retrieval model."""
        self._model.save(str(folder / "text"))


def default_prompt(model: Any) -> str:
    """Return the prompt that a sentence-transformers model puts before every text; "" for most models."""
    return str(model.prompts.get(model.default_prompt_name) or "")


def encode_frozen(model: Any, texts: Sequence[str], prompt: str | None = None) -> torch.Tensor:
    """Compute the vectors (N, V) of texts with a frozen sentence-transformers model.

    prompt: Text before every input; None for the model's default prompt.
    """
    vectors: torch.Tensor = model.encode(
        list(texts),
        prompt=prompt,
        batch_size=64,
        show_progress_bar=False,
        normalize_embeddings=False,
        convert_to_tensor=True,
    )
    return vectors
