"""Clips of any folder or manifest, embedded by a trained model: what rank, search, serve and embeddings do alike, and
the cache that they share.

    <cache>/contents.sqlite         the content key of every file, by its path, size and time of change
            embeddings-<model>/     a bank: the embedding of every content, by that model
            banks/                  frames, for exported models where the current folder has no `banks`
"""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data_tools.audio.read import AudioError
from data_tools.cli import counted
from data_tools.datasets.blind import folder_clips
from data_tools.errors import KitError, sentence_of
from data_tools.files import absolute
from data_tools.manifest import Clip, of_split, read_manifest
from system.features.bank import Bank, open_bank
from system.features.build import build_features
from system.features.contents import ContentKeys
from system.models.similarity import Embedded, Embeddings, Ragged
from system.recipe import schema
from system.runs.checkpoints import weights_sha256
from system.runs.open import Trained
from system.runs.retrieve import embed_in_parts

# C clips, L frames, D embedding

VERSION = 1  # of embeddings: counted up when encoders compute others of the same weights
CLIPS_AT_ONCE = 256  # embedded, then stored; whole batches, so that a resumed run has the same ones
NEEDED = 1 << 20  # bytes of room without which a cache is not begun
log = logging.getLogger(__name__)


class Listed(NamedTuple):
    """clips: of a folder or a manifest. others: paths of files that are no clips -> why."""

    clips: Sequence[Clip]
    others: Mapping[str, str]


class Pool(NamedTuple):
    """clips: those that can be read. embedded: of them, (C, D) or ragged series, on the model's device. skipped:
    paths of all other files -> why."""

    clips: list[Clip]
    embedded: Embeddings
    skipped: Mapping[str, str]


def pool_of(recipe: schema.Recipe, audio: Path | None, split: str | None) -> Listed:
    """The clips of `audio` (a manifest or a folder); by default those that the recipe's first `rank` entry ranks.

    split: only this split's clips. Raises KitError for no clip at all, and DataError as reading a manifest does.
    """
    if audio is None:
        ranked = next(iter(recipe.scored or recipe.rank_moments), None)
        if ranked is None:
            raise KitError(f"the recipe {recipe.name} ranks nothing; name the clips with --audio")
        source = recipe.data[recipe.ranked_source(ranked)]
        audio, split = Path(source.manifest), split or source.split
        if not audio.exists():
            raise KitError(f"{audio}, which the recipe {recipe.name} ranks, is not here; name the clips with --audio")
    return read_pool(audio, split)


def read_pool(path: Path, split: str | None) -> Listed:
    """The clips of a manifest (.jsonl), or every audio file of a folder; of one split, or all."""
    if not path.is_dir():
        return Listed(of_split(read_manifest(path), split, path), {})
    clips, others = folder_clips(path, path.resolve().name)
    no_audio = {absolute(path / name): "its name is no audio's" for name in others}
    return Listed(of_split(clips, split, path), no_audio)


def cache_folder(folder: Path | None = None) -> Path:
    """`folder`, by default lbar-kit in the user's cache directory; where nothing can be written there, or its disk is
    full, a temporary one, with a warning: the work is done, and not kept."""
    try:
        folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lbar-kit"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.write(bytes(NEEDED))
    except (OSError, RuntimeError) as error:  # the latter: a user without a home
        reason = sentence_of(error) if isinstance(error, OSError) else str(error).rstrip(".")
        log.warning("embeddings are not kept (%s); name a folder that can be written by --cache", reason)
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def frame_banks(cache: Path) -> Path:
    """Where the frames of an exported model are kept: in the current folder's `banks` where there is one, as training
    leaves it, else in the cache."""
    return Path("banks") if Path("banks").is_dir() else cache / "banks"


def embed(trained: Trained, listed: Listed, cache: Path, strict: bool = False) -> Pool:
    """The clips that can be read, embedded; what the cache has is not computed again. A file that cannot be read is
    skipped with a warning, and said in the count at the end. Where the cache takes no more, a warning says so.

    cache: as cache_folder gives it. strict: KitError for the first file that cannot be read instead. Raises KitError
    where none can be.
    """
    bank = _bank_of(trained, cache)
    keys, broken, left = _fill(bank, trained, listed.clips, cache, strict, goes_on_when_full=True)
    clips = [clip for clip in listed.clips if clip.id not in broken]
    if not clips:
        raise KitError(f"none of {counted(len(listed.clips), 'clip')} is readable, first {broken[listed.clips[0].id]}")
    of_series = trained.recipe.model.score.of_series
    series = [left[key] if (key := keys[clip.id]) in left else bank.read(key) for clip in clips]
    embedded = _joined(series, of_series, trained.model.device)
    skipped = {clip.path: broken[clip.id] for clip in listed.clips if clip.id in broken} | dict(listed.others)
    log.info("%s used, %d skipped", counted(len(clips), "clip"), len(skipped))
    return Pool(clips, embedded, skipped)


def embeddings_bank(
    trained: Trained, clips: Sequence[Clip], cache: Path, strict: bool = False
) -> tuple[Bank, dict[str, str], dict[str, str]]:
    """The bank of the model's embeddings of clips by content, with these clips in it; their content keys by id, and why
    the others cannot be read. strict: as of embed."""
    bank = _bank_of(trained, cache)
    keys, broken, _ = _fill(bank, trained, clips, cache, strict)
    return bank, keys, broken


def _fill(
    bank: Bank, trained: Trained, clips: Sequence[Clip], cache: Path, strict: bool, goes_on_when_full: bool = False
) -> tuple[dict[str, str], dict[str, str], dict[str, np.ndarray]]:
    """Embed the clips that the bank lacks, and store them some hundred at a time: what a kill interrupts goes on where
    it was. Returns the content keys of those that can be read, and why others cannot, by id; and by content key the
    embeddings that are not in the bank.

    goes_on_when_full: where the disk takes no more, warn, and keep the others in memory, instead of an OSError.
    """
    keys: dict[str, str] = {}
    with closing(ContentKeys(cache, "st_ctime_ns")) as content:
        for clip in clips:
            with suppress(AudioError):  # which is said when its frames are looked for
                keys[clip.id] = content(clip.path)
        lacking = [clip for clip in clips if keys.get(clip.id, "") not in bank]
        experts, device = dict(trained.recipe.model.audio.experts), trained.model.device
        features = build_features(lacking, experts, Path(trained.recipe.banks), strict, device=device, content=content)
    wanted = {features.keys[clip.id]: clip for clip in lacking if clip.id in features.keys}
    left: dict[str, np.ndarray] = {}
    for part, embedded in embed_in_parts(trained.model, list(wanted.values()), features, CLIPS_AT_ONCE):
        found = dict(zip((features.keys[clip.id] for clip in part), _series_of(embedded), strict=True))
        try:
            if not left:
                _store(bank, found)
                continue
        except OSError as error:
            if not goes_on_when_full:
                raise
            reason = f"{error.filename}: {error.strerror}"
            log.warning("new embeddings are not kept (%s); make room there, or name another folder by --cache", reason)
        left |= found
    return keys | features.keys, features.broken, left


def _series_of(embedded: Embeddings) -> list[np.ndarray]:
    """Of every clip (L, D) float32; of one embedding, (1, D)."""
    values = embedded.values.float().cpu().numpy()
    if isinstance(embedded, Ragged):
        return np.split(values, embedded.lengths.cumsum(0)[:-1].cpu().numpy())
    return list(values[:, None])


def _bank_of(trained: Trained, cache: Path) -> Bank:
    """The model's embeddings in the cache, in a folder named by all that decides them."""
    audio = trained.recipe.model.audio
    identity = {
        "version": VERSION,
        "settings": audio.model_dump(mode="json", exclude={"experts", *audio.file_settings}),
        "files": audio.file_checksums(),
        "experts": {name: expert.identity() for name, expert in audio.experts.items()},
        "weights": weights_sha256(trained.model.audio),
    }
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return open_bank(cache / f"embeddings-{name}", trained.recipe.model.text.dim, "float32", identity)


def _store(bank: Bank, computed: Mapping[str, np.ndarray]) -> None:
    with bank.writing() as store:
        for key, series in computed.items():
            store(key, series)


def _joined(series: Sequence[np.ndarray], of_series: bool, device: torch.device) -> Embeddings:
    """One embedding a clip, or ragged series."""
    values = torch.from_numpy(np.concatenate(series)).to(device)
    if not of_series:
        return Embedded(values)
    return Ragged(values, torch.tensor([len(frames) for frames in series], device=device))
