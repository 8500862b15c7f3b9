"""PE-AV's text encoder: network."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from data_tools.classify.model_files import fetch
from data_tools.documents.json_text import parse_json
from data_tools.errors import KitError, first_line
from system.models.text.pretrained_encoder import Bank, TransformerEncoder, longest_input, projection

# N texts, V values of a vector

TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")  # without one, the library makes an empty tokenizer
TYPES = ("pe_audio", "pe_audio_video")


class PeAudioEncoder(TransformerEncoder):
    """PE's embeddings of texts, with a linear layer if `linear`. They do not have unit length."""

    def __init__(self, name: str, dim: int, linear: bool, trainable: bool, bank: Bank) -> None:
        """linear: A trained layer after the model. Raises KitError for a model of another type."""
        super().__init__()
        tokenizer, model = load_pe_texts(name)
        self.project = projection(name, int(model.config.text_config.hidden_size), dim, linear)
        self.take_tokenizer(tokenizer)
        self.take(model, name, self.project, trainable, bank, dim)
        self._longest = longest_input(tokenizer, model.text_model, None)

    @property
    def logit_numbers(self) -> tuple[float, float]:
        """Scale and bias that turn the dot product of a clip and a text into a logit."""
        return float(self._model.text_audio_logit_scale), float(self._model.text_audio_logit_bias)

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the longest input of the model."""
        found: list[list[int]] = self.tokenizer(texts, truncation=True, max_length=self._longest)["input_ids"]
        return found

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the trainable model."""
        vectors: torch.Tensor = self._model(**self._inputs(texts))
        return vectors

    def _frozen_vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute the vectors (N, V) of texts with the frozen model."""
        return self._by_length(texts)

    def save_assets(self, folder: Path) -> None:
        """Save the text side of the model and its tokenizer in a folder, for an export."""
        self._model.save_pretrained(folder / "text")
        path = folder / "text" / "config.json"
        config = parse_json(path.read_bytes(), "config.json") | {"architectures": ["PeAudioModel"]}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        self.tokenizer.save_pretrained(folder / "text")


def load_pe_texts(name: str) -> tuple[Any, Any]:
    """Load the tokenizer and the text side of a PE model, in float32 on the CPU.

    Raises KitError for another model, and for a model without all its weights.
    """
    from system.networks.pe_audio import PeTexts, read_config

    folder = fetch(name)
    require_type(name, folder, TYPES, "PE-AV or PE-A-Frame")
    return load_text_side(name, folder, PeTexts, lambda: read_config(folder))


def require_type(name: str, folder: Path, types: tuple[str, ...], title: str) -> None:
    """Raise KitError unless the config.json of a folder names one of some types of models. title: Name of these."""
    found = parse_json((folder / "config.json").read_bytes(), "config.json").get("model_type")
    if found not in types:
        raise KitError(
            f"text model {name!r} is no {title}: its config.json says model_type {found}; name such a model, or set "
            "another kind of text encoder"
        )


def load_text_side(name: str, folder: Path, kind: Any, settings: Callable[[], Any]) -> tuple[Any, Any]:
    """Load the tokenizer of a folder, and its weights into a class of the text side of a model.

    kind: The class. settings: Reads the settings of the class; an error of it is reported as one of the folder.
    Raises KitError for a folder without a tokenizer or without some of the weights, and for damaged files.
    """
    from transformers import AutoTokenizer

    from system.networks.hugging_face import quiet

    if not any(one.is_file() for pattern in TOKENIZER_FILES for one in folder.glob(pattern)):
        raise KitError(
            f"text model {folder} has no vocabulary of a tokenizer, such as tokenizer.json; download or save the model "
            "again"
        )
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, said = kind.from_pretrained(
                folder,
                config=settings(),
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
            )
        except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
            reason = first_line(error)
            raise KitError(
                f"text model {name!r} cannot be loaded ({reason}); download or save the model again"
            ) from error
    if missing := sorted({*said["missing_keys"], *(key for key, *_ in said.get("mismatched_keys", ()))}):
        raise KitError(
            f"text model {name!r} has no weights for {len(missing)} tensors, such as {missing[0]}; "
            "download or save the model again"
        )
    return tokenizer, model
