"""PE-AV's text encoder: network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_tools.classify.model_files import fetch
from data_tools.files import read_json
from system.models.text.joint_files import load_text_encoder, require_model_type
from system.models.text.pretrained_encoder import Bank, TransformerEncoder, build_projection, longest_input

TYPES = ("pe_audio", "pe_audio_video")

# N texts, V values of a vector


class PeAudioEncoder(TransformerEncoder):
    """PE's embeddings of texts, with a linear layer if `linear`. They do not have unit length."""

    def __init__(self, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """Load the model. linear: Whether a trained layer follows. Raises KitError for a model of another type."""
        super().__init__()
        tokenizer, model = load_pe_texts(name)
        self.project = build_projection(name, int(model.config.text_config.hidden_size), dim, linear)
        self.store_tokenizer(tokenizer)
        self.store_model(model, name, self.project, trainable, bank, dim)
        self._longest = longest_input(tokenizer, model.text_model, None)

    @property
    def logit_numbers(self) -> tuple[float, float]:
        """Scale and bias that turn the dot product of a clip and a text into a logit."""
        return float(self._model.text_audio_logit_scale), float(self._model.text_audio_logit_bias)

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the model."""
        vectors: torch.Tensor = self._model(**self._model_inputs(texts))
        return vectors

    def save_assets(self, folder: Path) -> None:
        """Save the text encoder of the PE model and its tokenizer in the folder of an exported retrieval model."""
        self._model.save_pretrained(folder / "text")
        path = folder / "text" / "config.json"
        config = read_json(path) | {"architectures": ["PeAudioModel"]}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        self.tokenizer.save_pretrained(folder / "text")


def load_pe_texts(name: str) -> tuple[Any, Any]:
    """Load the tokenizer and the text encoder of a PE model, in float32 on the CPU.

    Raises KitError for a model of another type, and if weights are missing.
    """
    from system.networks.pe_audio import PeTexts, read_config

    folder = fetch(name)
    require_model_type(name, folder, TYPES, "PE-AV or PE-A-Frame")
    return load_text_encoder(name, folder, PeTexts, lambda: read_config(folder))
