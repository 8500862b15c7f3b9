"""Text encoder in a checkpoint of M2D-CLAP.

This file converts the trained encoder to a folder that a recipe can name. Imports torch.
"""

from pathlib import Path

import torch

from data_tools.errors import KitError
from system.audio.checkpoint import load_checkpoint
from system.models.text.published import load_tokens

TEXT = "text_encoder."
FIRST = "embeddings.word_embeddings.weight"


def write_text_encoder(checkpoint: Path, model: str, folder: Path) -> int:
    """Write a folder with the tokenizer of `model` and a checkpoint's text encoder; return the number of tensors.

    model: Folder or hub name of the transformer that was fine-tuned; for M2D-CLAP 2025 google-bert/bert-base-uncased.
    Its pooler is left out. Returns: The number of written tensors. Raises KitError if the folder exists, or if the
    checkpoint has no text encoder of this size.
    Source: github.com/nttcslab/m2d at f0c4128. The prefix `text_encoder.` of tensor names was taken from this code, and
    not checked on the published file.
    """
    if folder.exists():
        raise KitError(f"{folder} already exists; remove it, or name another folder with --out")
    weights = load_checkpoint(checkpoint)
    prefix = _text_encoder_prefix(weights, checkpoint)
    transformer = load_tokens(model, "mean")[0]
    tokenizer, network = transformer.tokenizer, transformer.model
    tensors = {key: value for key, value in network.state_dict().items() if value.is_floating_point()}
    with torch.no_grad():
        for key, value in tensors.items():
            found = weights.get(prefix + key)
            if found is None or found.shape != value.shape:
                raise KitError(f"{checkpoint}: the tensor {prefix}{key} is missing or has another shape")
            value.copy_(found)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return len(tensors)


def _text_encoder_prefix(weights: dict[str, torch.Tensor], path: Path) -> str:
    """Return the prefix of the text encoder's tensor names. Raises KitError if the file has no text encoder."""
    found = [key for key in weights if key.startswith(TEXT) and key.endswith(FIRST)]
    if len(found) != 1:
        raise KitError(
            f"{path} has no text encoder (a tensor {TEXT}...{FIRST}); "
            "name an M2D-CLAP file with TI in its name, such as m2d_clap_vit_base-80x1001p16x16p16kpBpTI-2025.zip"
        )
    return found[0].removesuffix(FIRST)
