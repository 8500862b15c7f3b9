"""EmbeddingGemma 2's text encoder: network."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from data_tools.classify.model_files import fetch
from data_tools.files import read_json
from system.models.text.joint_files import load_text_encoder, require_model_type
from system.models.text.pretrained_encoder import Bank, TransformerEncoder, build_projection, longest_input

PROMPTS = "config_sentence_transformers.json"
QUERY_PROMPTS = ("query", "SearchQuery", "Retrieval-query")  # names of the prompt for search queries, the first counts

# N texts, V values of a vector


class EmbeddingGemmaEncoder(TransformerEncoder):
    """EmbeddingGemma 2's embeddings of texts, with a linear layer if `linear`. They are not scaled to length 1."""

    def __init__(self, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """Load the model. linear: Whether a trained layer follows. Raises KitError for a model of another type."""
        super().__init__()
        from system.networks.embedding_gemma import GemmaTexts, read_config

        folder = fetch(name)
        require_model_type(name, folder, ("embedding_gemma2",), "EmbeddingGemma 2")
        tokenizer, model = load_text_encoder(name, folder, GemmaTexts, lambda: read_config(folder, with_audio=False))
        self.prompt = query_prompt(folder)
        self.project = build_projection(name, int(model.config.text_config.embedding_dim), dim, linear)
        self.store_tokenizer(tokenizer)
        self.store_model(model, name, self.project, trainable, bank, dim)
        self._longest = longest_input(tokenizer, model.language_model, None)

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the model."""
        vectors: torch.Tensor = self._model(**self._model_inputs(texts))
        return vectors

    def save_assets(self, folder: Path) -> None:
        """Save Gemma's text encoder, tokenizer and prompt in the folder of an exported retrieval model."""
        self._model.save_pretrained(folder / "text")
        self.tokenizer.save_pretrained(folder / "text")
        prompts = json.dumps({"prompts": {QUERY_PROMPTS[0]: self.prompt}})
        (folder / "text" / PROMPTS).write_text(prompts, encoding="utf-8")


def query_prompt(folder: Path) -> str:
    """Return the prompt for search queries that is stored in a model's folder; "" if no prompt is stored."""
    path = folder / PROMPTS
    prompts = read_json(path).get("prompts", {}) if path.is_file() else {}
    return next((str(prompts[name]) for name in QUERY_PROMPTS if prompts.get(name)), "")
