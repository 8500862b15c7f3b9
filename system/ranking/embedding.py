"""Embed clips and captions in evaluation mode, and cache the embeddings of clips.

In the cache, a clip is known by the path, size and times of its file.

    <cache>/embeddings-<model>/   a bank of the embeddings of clips by that model
            banks/                frames of exported models, if the current folder has no `banks`

Delete a folder to have its embeddings computed again.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_tools.cli import counted, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from system.audio.checkpoint import weights_sha256
from system.batches.items import Item
from system.batches.loader import collate
from system.features.bank import Bank
from system.features.extract import Features, build_features, read_ahead
from system.models.batch import Embedded, Embeddings, Ragged, unit_vectors
from system.models.retrieval import RetrievalModel
from system.models.settings import Model

# C clips, T frames, N texts, D embedding

VERSION = 2  # of embeddings: counted up when encoders compute others of the same weights
PATHS: Any = {"experts": True, "files": True, "network": {"weights"}}  # settings whose files have checksums

CLIPS_PER_BATCH = 64
SECONDS_PER_BATCH = 64 * 30  # of audio, with every clip padded to the longest of the batch


@contextmanager
def _evaluation_mode(model: RetrievalModel) -> Iterator[None]:
    """Turn off a model's dropout and gradients for a block."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Embeddings:
    """Embed clips, in their order."""
    found = {clip.id: one for clip, one in embed_each(model, clips, features)}
    ordered = [found[clip.id] for clip in clips]
    return Embedded(torch.stack(ordered)) if ordered[0].ndim == 1 else Ragged(ordered)


def embed_each(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Iterator[tuple[Clip, torch.Tensor]]:
    """Embed clips in batches of similar length, the shortest first.

    Padding changes no embedding.

    Yields:
        A clip, and its vector (D,) or its series (T, D) without padding.
    """
    bank = next(iter(features.banks.values()))
    frames = {clip.id: bank.rows_of(features.keys[clip.id]) for clip in clips}
    ordered = sorted(clips, key=lambda clip: frames[clip.id])
    slices = _batch_slices([frames[clip.id] for clip in ordered], [clip.seconds or 0.0 for clip in ordered])
    groups = [ordered[part] for part in slices]
    batches = read_ahead(lambda group: collate([Item(clip, ()) for clip in group], features), groups, 1)
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        for group, batch in zip(groups, batches, strict=True):
            with _evaluation_mode(model):
                found = model.audio(batch.to(model.device).audio)
                values = found.values.unbind()
                if found.lengths is not None:  # copies free the padding
                    values = [one[:size].clone() for one, size in zip(values, found.lengths.tolist(), strict=True)]
            yield from zip(group, values, strict=True)
            bar.update(found.size)


def _batch_slices(lengths: Sequence[int], seconds: Sequence[float]) -> Iterator[slice]:
    """Divide clips, sorted by their number of frames, into batches.

    A batch has a single clip, or at most CLIPS_PER_BATCH clips, at most SECONDS_PER_BATCH of audio after padding to its
    longest clip, and at most half of its frames are padding.
    """
    begin = total = 0
    for end, length in enumerate(lengths):
        count = end + 1 - begin
        longest = max(seconds[begin : end + 1])
        full = count > CLIPS_PER_BATCH or count * longest > SECONDS_PER_BATCH or count * length > 2 * (total + length)
        if full and end > begin:
            yield slice(begin, end)
            begin, total = end, 0
        total += length
    if len(lengths) > begin:
        yield slice(begin, len(lengths))


def embed_texts(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """Embed texts, in their order."""
    with _evaluation_mode(model):
        return model.text(texts)


def vectors(embedded: Embeddings, normalize: bool = True) -> np.ndarray:
    """Convert embeddings to an array (N, D) float32.

    Args:
        normalize: Scale vectors to length 1; zeros stay zeros.

    Raises:
        KitError: The model has no single vector per clip or text.
    """
    if embedded.lengths is not None:
        raise KitError("this model compares frames with words and has no single vector per clip or text; use lbar rank")
    values = unit_vectors(embedded) if normalize else embedded.values
    return values.float().cpu().numpy()


def require_readable(clips: Collection[Clip], broken: Mapping[str, str], where: str, every: bool = False) -> list[Clip]:
    """Return the clips that can be read.

    Args:
        broken: Why clips cannot be read, by id.
        where: For messages.
        every: Raise KitError if any clip cannot be read, instead of if none can.
    """
    lost = [clip.id for clip in clips if clip.id in broken]
    if lost and (every or len(lost) == len(clips)):
        some = f"{len(lost):,} of {counted(len(clips), 'clip', ',')} cannot be read"
        raise KitError(f"{where}: {some}, first {lost[0]}: {broken[lost[0]]}; repair or remove them")
    return [clip for clip in clips if clip.id not in broken]


def require_known_words(model: RetrievalModel, queries: Sequence[Query]) -> None:
    """Refuse queries without any word that a model knows.

    All clips would have the same score for them.
    """
    unknown = set(model.text.without_known_words([query.text for query in queries]))
    if named := [query for query in queries if query.text in unknown]:
        first = f"{counted(len(named), 'query')}, first {named[0].id} ({named[0].text[:60]!r})"
        raise KitError(f"the model knows no word of {first}, or has no embedding; reword them, or add --allow-unknown")


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
    return hashlib.sha256(os.fsencode(f"{os.path.abspath(path)}\n{status.st_size}\n{times}")).hexdigest()[:32]


def embed_cached(
    model: RetrievalModel, settings: Model, clips: Sequence[Clip], banks: Path, folder: Path, where: str, strict: bool
) -> tuple[list[Clip], Embeddings, dict[str, str]]:
    """Embed clips, and store the embeddings in the cache.

    They are stored as they are computed, so that a killed process goes on where it was.

    Args:
        banks: Folder of the experts' frames.
        folder: Of the cache.
        where: For messages.
        strict: Raise KitError if a clip cannot be read, before any is embedded.

    Returns:
        The readable clips, their embeddings, and why others are left out, by id.
    """
    bank, broken = _bank(model, settings, folder), dict[str, str]()
    keys = {clip.id: file_key(clip.path) for clip in clips}
    if lacking := [clip for clip in clips if keys[clip.id] not in bank]:
        whole = {clip.id for clip in lacking}
        features = build_features(lacking, dict(settings.audio.experts), banks, model.device, whole)
        wanted, broken = {keys[clip.id]: clip for clip in lacking if clip.id in features.keys}, features.broken
        require_readable(clips, broken, where, strict)
        for clip, found in embed_each(model, list(wanted.values()), features):
            bank.store(keys[clip.id], found.view(-1, bank.dim).float().cpu().numpy())
    readable = [clip for clip in clips if clip.id not in broken]
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
