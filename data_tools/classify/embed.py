"""Embed texts by sentence-transformers, and store the vectors.

A part of the texts is one file, named by the texts and the model: a stopped computation continues, and another call
with the same texts reads them.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.classify.model_files import configuration_files, fetch
from data_tools.cli import progress
from data_tools.errors import KitError, first_line
from data_tools.files import writing

# N texts, D embedding

DEFAULT_MODEL = "sentence-transformers/all-mpnet-base-v2"
PART = 2048  # texts per file; a kill loses at most these


def embed(texts: Sequence[str], name: str, folder: Path) -> np.ndarray:
    """Embed texts.

    Args:
        texts: N texts.
        name: Folder of a sentence-transformers model, package that contains one, or name on the Hugging Face hub.
        folder: Folder of the stored parts.

    Returns:
        (N, D) float32.

    Raises:
        KitError: The model cannot be loaded, or gives vectors that are NaN or too large.
    """
    model = load_sentence_transformer(name).eval()
    version = model_fingerprint(model, fetch(name))
    parts = []
    folder.mkdir(parents=True, exist_ok=True)
    with progress("embedding", len(texts), "text") as bar:
        for start in range(0, len(texts), PART):
            some = list(texts[start : start + PART])
            path = folder / f"{hashlib.sha256(chr(0).join([version, *some]).encode()).hexdigest()[:24]}.npy"
            if not path.is_file():
                vectors = np.asarray(model.encode(some, batch_size=64, show_progress_bar=False), np.float32)
                if not np.abs(vectors).max() < np.finfo(np.float16).max:
                    raise KitError(f"model {name!r}: its vectors are NaN or too large; use another model")
                with writing(path) as file:
                    np.save(file, vectors.astype(np.float16))
            parts.append(np.load(path))
            bar.update(len(some))
    return np.concatenate(parts).astype(np.float32)


def load_sentence_transformer(name: str, device: str | None = None) -> Any:
    """Load a SentenceTransformer in float32 by folder, package or hub name.

    Args:
        name: Folder of the model, name of a Python package that contains it, or name on the Hugging Face hub.
        device: None for the GPU if the machine has one.
    Returns: the model. It cuts texts to the number of positions of its transformer, even if its tokenizer states no
    limit or a longer one.
    Raises: KitError if the folder is missing or contains no such model.
    """
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)  # it logs each load
    folder = str(fetch(name))
    try:
        model = SentenceTransformer(folder, device=device, trust_remote_code=False).float()
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        reason = first_line(error)
        raise KitError(
            f"model {name!r} cannot be loaded as a sentence-transformers model ({reason}); give the folder of such a "
            "model, or its Hugging Face name while online"
        ) from error
    limit_length(model)
    return model


def limit_length(model: Any, longest: int | None = None) -> None:
    """Let a SentenceTransformer cut texts at its number of positions, and at most at `longest` tokens."""
    transformer = getattr(model[0], "model", None)  # static embeddings and bags of words do not have one
    if hasattr(transformer, "config"):
        limits = (model.max_seq_length, position_count(transformer), longest)
        model.max_seq_length = min((limit for limit in limits if limit is not None), default=None)


def position_count(transformer: Any) -> int | None:
    """Return the maximum number of tokens that a transformer can process; None if it has no limit.

    RoBERTa and its relatives (XLM-RoBERTa, CamemBERT, MPNet, CLAP's text encoder) count positions from the padding
    token's number plus one, so that a table of 514 positions allows 512 tokens.
    """
    positions = getattr(transformer.config, "max_position_embeddings", None)
    if positions is None or positions < 0:  # relative positions
        return None
    parts = [part for part in transformer.modules() if hasattr(getattr(part, "position_embeddings", None), "weight")]
    skipped = [part.padding_idx + 1 for part in parts if isinstance(getattr(part, "padding_idx", None), int)]
    return int(positions) - max(skipped, default=0)


def model_fingerprint(model: Any, folder: Path) -> str:
    """Return the SHA-256 of everything that decides the vectors of a text model.

    Args:
        model: The loaded network: its modules with their settings, and its weights and buffers.
        folder: The model's folder. Its configuration, tokenizer and prompts decide the vectors too.
    """
    import torch

    digest = hashlib.sha256(repr(model).encode())
    for path in configuration_files(folder):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    for name, value in model.state_dict().items():
        digest.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
