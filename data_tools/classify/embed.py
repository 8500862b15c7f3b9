"""Stored sentence embeddings.

Each text's embedding is computed only once. The files are memory-mapped. After a kill, the computation can be resumed.

    <folder>/<model>-<fingerprint>/vectors.f16   one row per text, 16-bit floats, in order of computation
                                   texts.sha     16 bytes of SHA-256 of each row's text; written after its vector

A row counts if both files contain it completely. Bytes after the last such row are removed before new rows are added.
Each model, and each version of its weights, has its own folder.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.classify.model_files import configuration_files, fetch
from data_tools.cli import progress
from data_tools.errors import DataError, first_line
from data_tools.locks import lock_of

# N texts, D embedding

DEFAULT_MODEL = "sentence-transformers/all-mpnet-base-v2"
TEXTS_AT_ONCE = 2048  # computed, sorted by length, and stored together; a kill loses at most these
_BATCH = 64
_DIGEST = 16  # bytes; two of a million texts have the same first 16 with a probability of 1e-27


class SentenceEncoder:
    """A sentence-transformers model in float32, on the GPU if the machine has one.

    name: Folder of the model, name of a Python package that contains it, or name on the Hugging Face hub. fingerprint:
    Hash that changes whenever an embedding would change. Vectors are returned as the model computes them: of unit
    length for both all-MiniLM-L6-v2 and all-mpnet-base-v2. Raises DataError if the model cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        """Load the model and compute its fingerprint."""
        self.name = name
        self._model = load_sentence_transformer(name).eval()
        self.dim = int(self._model.get_embedding_dimension())
        self.fingerprint = model_fingerprint(self._model, fetch(name))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts: return (N, D) float32 vectors, in the order of the texts."""
        # The library sorts its input by length, so that there is hardly any padding.
        return np.asarray(self._model.encode(list(texts), batch_size=_BATCH, show_progress_bar=False), np.float32)


class Embeddings:
    """The stored vectors of one model."""

    def __init__(self, folder: Path, dim: int) -> None:
        """Open the stored vectors in a folder, which may be missing. dim: Number of values of a vector."""
        self.folder, self.dim = folder, dim
        self._vectors_file, self._texts_file = folder / "vectors.f16", folder / "texts.sha"
        self._row = self._find_rows()

    def __len__(self) -> int:
        """Return the number of stored vectors."""
        return len(self._row)

    def _find_rows(self) -> dict[bytes, int]:
        """Return a dict from the digest of each stored text to the row of its vector; incomplete rows are left out."""
        digests = self._texts_file.read_bytes() if self._texts_file.is_file() else b""
        stored = self._vectors_file.stat().st_size // (2 * self.dim) if self._vectors_file.is_file() else 0
        count = min(len(digests) // _DIGEST, stored)
        return {digests[n * _DIGEST : (n + 1) * _DIGEST]: n for n in range(count)}

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts without a stored vector, each once."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._row]

    def rows(self, texts: Sequence[str]) -> np.ndarray:
        """Return the index of each text's row in `vectors`, (N,) int64. Raises KeyError for a text without a vector."""
        return np.fromiter((self._row[_digest(text)] for text in texts), np.int64, len(texts))

    def vectors(self) -> np.ndarray:
        """Return all stored vectors, (rows, D) float16, memory-mapped. Requires at least one stored vector."""
        return np.memmap(self._vectors_file, np.float16, "r", shape=(len(self), self.dim))

    def add(self, texts: Sequence[str], encoder: SentenceEncoder) -> int:
        """Compute and store the missing vectors of texts; return their number. Shows progress.

        Only one process may write at a time. Raises DataError if another one does, and for vectors that are not finite
        16-bit floats.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock_of(self._vectors_file):
            self._row = self._find_rows()  # it may have grown since it was opened
            missing = self.missing(texts)
            with (
                self._vectors_file.open("ab") as vectors,
                self._texts_file.open("ab") as digests,
                progress("embedding", len(missing), "text") as bar,
            ):
                vectors.truncate(len(self) * self.dim * 2)
                digests.truncate(len(self) * _DIGEST)
                for start in range(0, len(missing), TEXTS_AT_ONCE):
                    part = missing[start : start + TEXTS_AT_ONCE]
                    vectors.write(self._as_float16(encoder.encode(part), len(part)).tobytes())
                    vectors.flush()
                    names = [_digest(text) for text in part]
                    digests.write(b"".join(names))  # after its vectors: a digest promises a stored vector
                    digests.flush()
                    self._row.update(zip(names, range(len(self), len(self) + len(part)), strict=True))
                    bar.advance(len(part))
        return len(missing)

    def _as_float16(self, values: np.ndarray, count: int) -> np.ndarray:
        """Convert `count` vectors of a model to float16. Raises DataError for a wrong shape, NaN, and large values."""
        if values.shape != (count, self.dim) or not np.abs(values).max() < np.finfo(np.float16).max:
            raise DataError(
                f"{self.folder}: the model gave embeddings that are NaN or too large for 16-bit floats; use "
                "another model"
            )
        return values.astype(np.float16)


def open_embeddings(folder: Path, encoder: SentenceEncoder) -> Embeddings:
    """Open the stored vectors of an encoder in a folder. The files are created when the first vector is added."""
    name = re.sub(r"[^\w.-]+", "_", encoder.name.rstrip("/").split("/")[-1])
    return Embeddings(folder / f"{name}-{encoder.fingerprint[:12]}", encoder.dim)


def _digest(text: str) -> bytes:
    """Return a short hash of a text; the text's vector is stored under this hash."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST]


def load_sentence_transformer(name: str, device: str | None = None) -> Any:
    """Load a SentenceTransformer in float32 by folder, package or hub name.

    Args:
        name: Folder of the model, name of a Python package that contains it, or name on the Hugging Face hub.
        device: None for the GPU if the machine has one.
    Returns: the model. It cuts texts to the number of positions of its transformer, even if its tokenizer states no
    limit or a longer one.
    Raises: DataError if the folder is missing or contains no such model.
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
        raise DataError(
            f"model {name!r} cannot be loaded as a sentence-transformers model ({reason}); give the folder of such a "
            "model, or its Hugging Face name while online"
        ) from error
    transformer = getattr(model[0], "model", None)  # static embeddings and bags of words do not have one
    positions = position_count(transformer) if hasattr(transformer, "config") else None
    if positions is not None and (model.max_seq_length is None or model.max_seq_length > positions):
        model.max_seq_length = positions
    return model


def position_count(transformer: Any) -> int | None:
    """Return the maximum number of tokens that a transformer can process; None if it has no limit.

    RoBERTa and its relatives (XLM-RoBERTa, CamemBERT, MPNet, CLAP's text encoder) count positions from the padding
    token's number plus one, so that a table of 514 positions allows 512 tokens.
    """
    names = ("max_position_embeddings", "max_encoder_position_embeddings")  # the second one is LED's
    positions = next((value for name in names if (value := getattr(transformer.config, name, None))), None)
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
