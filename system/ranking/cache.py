"""Cache of clip embeddings.

The verbs rank, search, serve and embed share it. Its files:

<cache>/embeddings-<model>/     a bank of the clips' embeddings by that model, one per content key
        banks/                  frames of exported models, if the current folder has no `banks`
"""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.errors import KitError, sentence_of
from data_tools.manifest import Clip
from system.audio.checkpoint import weights_sha256
from system.features.bank import Bank
from system.features.extract import Features, build_features, content_keys, warn_of_other_lengths
from system.models.base import excluded
from system.models.embeddings import Embedded, Embeddings, Ragged
from system.models.retrieval import RetrievalModel
from system.models.settings import Model
from system.moments.windows import Grid
from system.ranking.embedding import embed_in_blocks
from system.ranking.listing import Listed
from system.ranking.model import ClipSource, KnownFeatures, ModelPool

# C clips, L frames, D embedding

VERSION = 1  # of embeddings: counted up when encoders compute others of the same weights
CLIPS_AT_ONCE = 256  # embedded, then stored; whole batches, so that a resumed run has the same ones
NEEDED = 1 << 20  # bytes of room without which a cache is not begun
log = logging.getLogger(__name__)


def cache_folder(folder: Path | None = None) -> Path:
    """Return the folder of cached embeddings, which is created; by default lbar-kit in the user's cache directory.

    If the folder cannot be written, or its disk is full, log a warning and return a temporary folder, which is deleted
    when the process ends.
    """
    try:
        folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lbar-kit"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.write(bytes(NEEDED))
    except (OSError, RuntimeError) as error:  # the latter: a user without a home
        reason = sentence_of(error) if isinstance(error, OSError) else str(error).rstrip(".")
        log.warning(
            "embeddings cannot be cached (%s), so later commands compute them again; "
            "name a writable folder with --cache",
            reason,
        )
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def frame_banks_folder(cache: Path) -> Path:
    """Return the path of the folder that stores the frames of an exported model's experts.

    If the current folder contains `banks`, it is used; else `banks` in the cache.
    """
    return Path("banks") if Path("banks").is_dir() else cache / "banks"


class Filled(NamedTuple):
    """Result of storing the embeddings of clips on disk.

    keys: Dict from the id of each readable clip to its content key, a checksum of the audio file. broken: Dict from the
    id of each unreadable clip to the reason. left: Dict from content key to each embedding that could not be stored,
    since the disk is full.
    """

    bank: Bank
    keys: dict[str, str]
    broken: dict[str, str]
    left: dict[str, np.ndarray]


class CachedEmbeddings(ClipSource):
    """Embeddings of clips, cached by content key (a checksum of the audio), and so never computed again."""

    def __init__(self, settings: Model, banks: Path, folder: Path) -> None:
        """Keep the model's settings for later. banks: Folder of experts' frames. folder: Result of cache_folder."""
        self.settings, self.banks, self.folder = settings, banks, folder
        self._experts = dict(settings.audio.experts)
        self.grids = {name: Grid(1 / one.frames_per_second, one.first_centre) for name, one in self._experts.items()}

    def open(self, model: RetrievalModel, listed: Listed, strict: bool = False) -> ModelPool:
        """Return a pool of the readable clips, with embeddings. strict: A clip that cannot be read is an error.

        If the cache's disk is full, log a warning and continue without caching.
        """
        filled = self.fill(model, listed.clips, strict, goes_on_when_full=True)
        clips = [clip for clip in listed.clips if clip.id not in filled.broken]
        if not clips:
            first_error = filled.broken[listed.clips[0].id]
            raise KitError(
                f"none of {counted(len(listed.clips), 'clip')} can be read, first {first_error}; repair the files"
            )
        keys = [filled.keys[clip.id] for clip in clips]
        series = [filled.left[key] if key in filled.left else filled.bank.read(key) for key in keys]
        skipped = {clip.path: filled.broken[clip.id] for clip in listed.clips if clip.id in filled.broken}
        skipped |= dict(listed.others)
        used, left_out = counted(len(clips), "clip"), counted(len(skipped), "file")
        log.info("using %s; skipped %s that cannot be read or are not audio", used, left_out)
        embedded = self._join(series, model.device)
        return ModelPool(clips=clips, skipped=skipped, embedded=embedded, unit_length=model.unit_length)

    def features(self, model: RetrievalModel, clips: Sequence[Clip]) -> Features:
        """Return the experts' frames of clips: stored frames are read, and missing frames are computed."""
        found = build_features(clips, self._experts, self.banks, device=model.device)
        for name, expert in self._experts.items():
            if expert.computed:  # for others build_features warns
                warn_of_other_lengths(found, clips, name)
        return found

    def fill(
        self, model: RetrievalModel, clips: Sequence[Clip], strict: bool = False, goes_on_when_full: bool = False
    ) -> Filled:
        """Embed and store the clips without a cached embedding.

        Embeddings are stored in parts, so that a killed process can be resumed.
        strict: Raise KitError for the first clip that cannot be read. goes_on_when_full: If the disk is full, log a
        warning and keep the remaining embeddings in memory, instead of raising OSError.
        """
        bank = self._Bank(model)
        with ThreadPoolExecutor() as threads:
            found = content_keys(clips, threads)
        keys = {name: key for name, key in found.items() if isinstance(key, str)}  # build_features reports others
        lacking = [clip for clip in clips if keys.get(clip.id, "") not in bank]
        whole = {clip.id for clip in lacking}
        features = build_features(lacking, self._experts, self.banks, strict, model.device, whole)
        wanted = {features.keys[clip.id]: clip for clip in lacking if clip.id in features.keys}
        not_stored: dict[str, np.ndarray] = {}
        for part, embedded in embed_in_blocks(model, list(wanted.values()), features, CLIPS_AT_ONCE):
            series = dict(zip((features.keys[clip.id] for clip in part), _split_by_clip(embedded), strict=True))
            try:
                if not not_stored:
                    _store_embeddings(bank, series)
                    continue
            except OSError as error:
                if not goes_on_when_full:
                    raise
                reason = f"{error.filename}: {error.strerror}"
                log.warning(
                    "new embeddings cannot be cached (%s); free disk space, or name another folder with --cache", reason
                )
            not_stored |= series
        return Filled(bank, keys | features.keys, features.broken, not_stored)

    def _Bank(self, model: RetrievalModel) -> Bank:
        """Open the bank (store of arrays) with a model's embeddings in the cache.

        The bank's name is a checksum of everything that changes an embedding.
        """
        audio = self.settings.audio
        identity = {
            "version": VERSION,
            "settings": audio.model_dump(mode="json", exclude=excluded({"experts", *audio.file_settings})),
            "files": audio.file_checksums(),
            "experts": {name: expert.identity() for name, expert in self._experts.items()},
            "weights": weights_sha256(model.audio),
        }
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        return Bank(self.folder / f"embeddings-{name}", self.settings.text.dim, "float32", identity)

    def _join(self, series: Sequence[np.ndarray], device: torch.device) -> Embeddings:
        """Join the embeddings of clips in one object on `device`: vectors, or ragged series of frames."""
        values = torch.from_numpy(np.concatenate(series)).to(device)
        if not self.settings.score.of_series:
            return Embedded(values)
        return Ragged(values, torch.tensor([len(frames) for frames in series], device=device))


class FileEmbeddings(CachedEmbeddings):
    """Embeddings that another program computed, read from that program's files without reading audio."""

    def open(self, model: RetrievalModel, listed: Listed, strict: bool = False) -> ModelPool:
        """Return a pool of the clips with an embedding in the files; raise KitError if none has. strict: Not used."""
        features = self.features(model, listed.clips)
        if not features.keys:
            first_error = features.broken[listed.clips[0].id]
            raise KitError(
                f"none of {counted(len(listed.clips), 'clip')} has an embedding, first {first_error}; name files "
                "with the embeddings of these clips"
            )
        skipped = {clip.path: features.broken[clip.id] for clip in listed.clips if clip.id in features.broken}
        return KnownFeatures(features).open(model, listed._replace(others={**skipped, **listed.others}))

    def features(self, model: RetrievalModel, clips: Sequence[Clip]) -> Features:
        """Read the embeddings of clips from the files, in place of frames."""
        return build_features(clips, self._experts, self.banks)


def _split_by_clip(embedded: Embeddings) -> list[np.ndarray]:
    """Return a float32 array per clip: its series of frame embeddings (L, D), or its single embedding (1, D)."""
    values = embedded.values.float().cpu().numpy()
    if isinstance(embedded, Ragged):
        return np.split(values, embedded.lengths.cumsum(0)[:-1].cpu().numpy())
    return list(values[:, None])


def _store_embeddings(bank: Bank, computed: Mapping[str, np.ndarray]) -> None:
    """Store embeddings in a bank. computed: Dict from content key (checksum of a clip's audio) to embeddings."""
    for key, series in computed.items():
        bank.store(key, series)
