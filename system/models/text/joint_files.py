"""Load text encoders of audio-text models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_tools.errors import KitError, first_line
from data_tools.files import read_json

TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")  # without one, the library makes an empty tokenizer


def require_model_type(name: str, folder: Path, types: tuple[str, ...], title: str) -> None:
    """Raise KitError if the model type in a folder's config.json is not in `types`. title: Name for these types."""
    found = read_json(folder / "config.json").get("model_type")
    if found not in types:
        raise KitError(
            f"text model {name!r} is no {title}: its config.json says model_type {found}; name a model of "
            "this type, or set another kind of text encoder"
        )


def load_text_encoder(name: str, folder: Path, kind: Any, settings: Callable[[], Any]) -> tuple[Any, Any]:
    """Load and return the tokenizer and the text encoder of a model of audio and text in a folder.

    kind: Class of the text encoder. settings: Function that reads the settings of this class; its errors are reported
    as errors of the folder. Raises KitError if the tokenizer or weights are missing, and for damaged files.
    """
    from transformers import AutoTokenizer

    from system.networks.hugging_face import silence_transformers

    if not any(one.is_file() for pattern in TOKENIZER_FILES for one in folder.glob(pattern)):
        raise KitError(
            f"text model {folder} has no tokenizer file, such as tokenizer.json; download or save the model again"
        )
    with silence_transformers():
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
