"""Cache of clip embeddings.

A clip is known by the path, size and times of its file.

    <cache>/embeddings-<model>/   a bank of the embeddings of clips by that model
            banks/                frames of exported models, if the current folder has no `banks`

Delete a folder to have its embeddings computed again.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.audio.checkpoint import weights_sha256
from system.features.bank import Bank
from system.features.extract import build_features
from system.models.batch import Embedded, Embeddings, Ragged
from system.models.retrieval import RetrievalModel
from system.models.settings import Model
from system.ranking.embedding import embed_each

# C clips, T frames, D embedding

VERSION = 2  # of embeddings: counted up when encoders compute others of the same weights
PATHS: Any = {"experts": True, "files": True, "network": {"weights"}}  # settings whose files have checksums


def cache_folder(folder: Path | None = None) -> Path:
    """Return the folder of cached embeddings.

    By default it is lbar-kit in the user's cache directory.
    """
    if folder is None:
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lbar-kit"
        except RuntimeError:
            raise KitError("this user has no home folder; name a folder with --cache") from None
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_key(path: str) -> str:
    """Return a key of a file's path, size and times.

    A missing file has the key "".
    """
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    times = f"{status.st_mtime_ns}\n{status.st_ctime_ns}"  # copies may keep the first
    return hashlib.sha256(f"{os.path.abspath(path)}\n{status.st_size}\n{times}".encode()).hexdigest()[:32]


def embed_cached(
    model: RetrievalModel, settings: Model, clips: Sequence[Clip], banks: Path, folder: Path
) -> tuple[list[Clip], Embeddings, dict[str, str]]:
    """Embed clips, and store the embeddings in the cache.

    Each batch is stored, so that a killed process can be resumed with the same batches.

    Args:
        banks: Folder of the experts' frames.
        folder: Of the cache.

    Returns:
        The readable clips, their embeddings, and why others are left out, by id.
    """
    bank, broken = _bank(model, settings, folder), dict[str, str]()
    keys = {clip.id: file_key(clip.path) for clip in clips}
    if lacking := [clip for clip in clips if keys[clip.id] not in bank]:
        whole = {clip.id for clip in lacking}
        features = build_features(lacking, dict(settings.audio.experts), banks, model.device, whole)
        wanted, broken = {keys[clip.id]: clip for clip in lacking if clip.id in features.keys}, features.broken
        new = list(wanted)
        for number, found in embed_each(model, list(wanted.values()), features):
            bank.store(new[number], found.view(-1, bank.dim).float().cpu().numpy())
    readable = require_readable(clips, broken)
    stored = [bank.read(keys[clip.id]) for clip in readable]
    values = torch.from_numpy(np.concatenate(stored)).to(model.device)
    lengths = [len(series) for series in stored]
    return readable, Ragged(list(values.split(lengths))) if settings.score.of_series else Embedded(values), broken


def _bank(model: RetrievalModel, settings: Model, folder: Path) -> Bank:
    """Open the bank of a model.

    Its name is a checksum of all that changes an embedding.
    """
    audio = settings.audio
    identity = {
        "version": VERSION,
        "settings": audio.model_dump(mode="json", exclude=PATHS),
        "files": audio.file_checksums(),
        "experts": {name: expert.identity() for name, expert in audio.experts.items()},
        "weights": weights_sha256(model.audio),
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return Bank(folder / f"embeddings-{name}", settings.text.dim, "float32", identity)


def require_readable(clips: Sequence[Clip], broken: Mapping[str, str]) -> list[Clip]:
    """Return the clips that can be read, at least one."""
    readable = [clip for clip in clips if clip.id not in broken]
    if not readable:
        first = next(iter(broken.values()), "")
        raise KitError(f"none of {counted(len(clips), 'clip')} can be read, first {first}; repair the files")
    return readable
