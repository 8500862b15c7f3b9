"""Frames of clips: which bank an expert's frames are in, and how missing ones are computed."""

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_tools.audio.read import AudioError, content_key, read_audio
from data_tools.cli import counted, each, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.experts.base import Device, ExpertSettings, Frames
from system.features.bank import Bank, open_bank

# An expert is handed clips in groups, so that short ones share batches; a kill loses the group under way.
GROUP_CLIPS = 16
GROUP_SECONDS = 120
DECODERS = 2  # threads
DECODED_AHEAD = 4  # clips that wait decoded

log = logging.getLogger(__name__)


class ContentKeys:
    """sha256 of audio files, remembered by path, size and time of change, so that a file is read once.

    A changed file (another size or time) is read again; its frames are then looked for under the new content. So is, by
    `again`, one whose frames are about to be computed: files may be copied over with their size and time kept.
    """

    def __init__(self, folder: Path, time: Literal["st_mtime_ns", "st_ctime_ns"] = "st_mtime_ns") -> None:
        """time: which time of change. The second, of the file's entry, cannot be set, so that no change is missed; a
        copy of a data set has others."""
        folder.mkdir(parents=True, exist_ok=True)
        self._time = time
        self.path = folder / "contents.sqlite"
        self._read_now: dict[str, str] = {}  # by path, contents that this process has read itself
        self._store: sqlite3.Connection | None = None
        self._execute("pragma synchronous = off")  # only remembered work: what a power cut loses is read again
        columns = "path text primary key, size integer, changed integer, sha256 text"
        self._execute(f"create table if not exists files ({columns})")

    def _execute(self, command: str, *values: object) -> list[Any]:
        """Rows that a command gives. Errors as sentences: of a full, locked or read-only disk, or of a file that is no
        store."""
        try:
            self._store = self._store or sqlite3.connect(self.path, timeout=60)
            found = self._store.execute(command, values).fetchall()
            self._store.commit()
            return found
        except sqlite3.OperationalError as error:
            raise KitError(f"{self.path}: {error}; free the disk, or let this user write there") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema is quoted
            raise KitError(f"{self.path} is damaged ({error}); delete it, it is made again") from error

    def __call__(self, path: str) -> str:
        """The content key of a file. Raises AudioError for a missing one."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise AudioError(f"{path}: no such audio file") from error
        rows = self._execute("select size, changed, sha256 from files where path = ?", path)
        if rows and rows[0][:2] == (status.st_size, getattr(status, self._time)):
            return str(rows[0][2])
        return self.again(path)

    def again(self, path: str) -> str:
        """The content key of a file as it is now, whatever is remembered. Raises AudioError for a missing one."""
        if path in self._read_now:
            return self._read_now[path]
        try:
            status, key = Path(path).stat(), content_key(path)
        except OSError as error:
            raise AudioError(f"{path}: no such audio file") from error
        facts = path, status.st_size, getattr(status, self._time), key
        self._execute("insert or replace into files values (?, ?, ?, ?)", *facts)
        self._read_now[path] = key
        return key

    def forget(self) -> None:
        """Have every file read again when it is next asked for."""
        self._execute("delete from files")

    def close(self) -> None:
        if self._store:
            self._store.close()


@dataclass
class Features:
    """Banks of several experts and the content keys of clips: what training and ranking read.

    banks: by the expert's name in the recipe. keys: clip id -> content key; a clip whose audio is broken is not in it.
    broken: clip id -> why.
    """

    banks: dict[str, Bank]
    keys: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def frames(self, expert: str, clip_id: str) -> np.ndarray:
        """(T, D) float16 frames of a clip."""
        return self.banks[expert].read(self.keys[clip_id])


def bank_of(expert: ExpertSettings, banks: Path, verify: bool = False) -> Bank:
    """The bank of an expert's frames, in a folder named by all that decides the frames. verify: see open_bank."""
    verifying = "python -m system features RECIPE --verify"
    hint = (
        f"{verifying} finds all that is damaged and computes it again (RECIPE: the recipe, or resolved.json of a run); "
        f"without a recipe delete {banks / expert.key()}, then all of it is computed again"
    )
    return open_bank(banks / expert.key(), expert.dim, expert.dtype, expert.identity(), hint, verify)


def build_features(
    clips: list[Clip],
    experts: dict[str, ExpertSettings],
    banks: Path,
    strict: bool = False,
    verify: bool = False,
    device: "Device | None" = None,
    content: ContentKeys | None = None,
) -> Features:
    """Compute what the banks lack for these clips, with progress; a broken file is reported and left out.

    A content that several clips share is computed once. strict: raise KitError for the first broken file instead.
    verify: read all that the banks hold, and compute again what is damaged; read all audio files again.
    device: None for this machine's; what experts need float64 for, mps leaves to the CPU.
    content: what is known of the files (default: what is remembered in `banks`).
    Raises KitError for a file whose content is no longer what it was when its frames were looked for.
    """
    from system.compute.device import device_of

    features = Features({name: bank_of(expert, banks, verify) for name, expert in experts.items()})
    with closing(content or ContentKeys(banks)) as content:
        if verify:
            content.forget()
        for clip in each(clips, "content", "clip"):
            try:
                features.keys[clip.id] = content(clip.path)
            except AudioError as error:
                _broken(features, clip, error, strict)
        for clip in clips:
            key = features.keys.get(clip.id)
            if key and any(key not in bank for bank in features.banks.values()):
                _read_again(features, clip, content, strict)
    # All weights are opened before the first frame is computed: a damaged file is reported in seconds, not after hours.
    device = device or device_of()
    device = device_of("cpu") if device.type == "mps" else device
    networks = {name: e.load(device) for name, e in experts.items() if _missing(features, name, clips)}
    for name in list(networks):
        _fill(features, name, experts[name], networks.pop(name), clips, strict)
    if features.broken:
        log.warning("%s with broken audio left out", counted(len(features.broken), "clip"))
    return features


def _read_again(features: Features, clip: Clip, content: ContentKeys, strict: bool) -> None:
    """The content of a clip whose frames are about to be computed, from its bytes; says where it is another one."""
    try:
        before, features.keys[clip.id] = features.keys[clip.id], content.again(clip.path)
    except AudioError as error:
        _broken(features, clip, error, strict)
    else:
        if features.keys[clip.id] != before:
            log.warning("%s: its content changed, while its size and time of change stayed", clip.path)


def _broken(features: Features, clip: Clip, error: AudioError, strict: bool) -> None:
    if strict:
        raise KitError(str(error)) from error
    features.keys.pop(clip.id, None)
    if clip.id not in features.broken:
        features.broken[clip.id] = str(error)
        log.warning("left out: %s", error)


def _missing(features: Features, name: str, clips: list[Clip]) -> dict[str, Clip]:
    """By content, a clip for each content that the expert's bank lacks."""
    bank = features.banks[name]
    by_content = {features.keys[clip.id]: clip for clip in clips if clip.id in features.keys}
    return {key: clip for key, clip in by_content.items() if key not in bank}


def _fill(
    features: Features, name: str, expert: ExpertSettings, frames_of: Frames, clips: list[Clip], strict: bool
) -> None:
    from system.compute.device import memory_errors

    bank, missing = features.banks[name], _missing(features, name, clips)
    log.info("%s: computing the frames of %s", name, counted(len(missing), "clip"))
    failed: set[str] = set()

    def fails(key: str, error: AudioError) -> None:
        _broken(features, missing[key], error, strict)
        failed.add(key)

    with progress(f"{name} frames", len(missing), "clip") as bar, bank.writing() as store:
        wanted = {key: clip for key, clip in missing.items() if key not in bank}  # another process may have stored some
        for group in _groups(_decoded(wanted, expert), fails, GROUP_SECONDS * expert.rate):
            with memory_errors(
                f"{name}: {counted(len(group), 'clip')}", "free what else uses it, or compute on a larger one"
            ):
                computed = frames_of(list(group.values()))
            for key, frames in zip(group, computed, strict=True):
                if bank.dtype.kind == "i" or np.abs(frames).max() <= np.finfo(bank.dtype).max:
                    store(key, frames)
                    bar.advance()
                else:
                    unfit = f"{missing[key].path}: {name} gives frames that are not finite in {bank.dtype}"
                    fails(key, AudioError(unfit))
    for clip in clips:  # other clips with the content of a broken file
        if features.keys.get(clip.id) in failed:
            _broken(features, clip, AudioError(f"{clip.path}: same content as a broken file"), strict)
    log.info("%s: %s computed, in %s", name, counted(len(missing) - len(failed), "clip"), bank.folder)


def _decoded(clips: dict[str, Clip], expert: ExpertSettings) -> Iterator[tuple[str, Future[np.ndarray]]]:
    """The waves of clips in order, decoded by threads a few clips ahead of whoever asks."""
    with ThreadPoolExecutor(DECODERS) as pool:
        ahead: deque[tuple[str, Future[np.ndarray]]] = deque()
        for key, clip in clips.items():
            ahead.append((key, pool.submit(read_audio, clip.path, expert.rate, expert.resampling)))
            if len(ahead) > DECODED_AHEAD:
                yield ahead.popleft()
        yield from ahead


def _groups(
    decoded: Iterable[tuple[str, Future[np.ndarray]]], fails: Callable[[str, AudioError], None], samples: int
) -> Iterator[dict[str, np.ndarray]]:
    """Waves by key, GROUP_CLIPS together at most, fewer once they hold `samples`; those that cannot be decoded fail."""
    group: dict[str, np.ndarray] = {}
    for key, wave in decoded:
        try:
            group[key] = wave.result()
        except AudioError as error:
            fails(key, error)
            continue
        if len(group) == GROUP_CLIPS or sum(map(len, group.values())) >= samples:
            yield group
            group = {}
    if group:
        yield group
