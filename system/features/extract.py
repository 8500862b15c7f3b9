"""Compute missing frames of clips, and read their waveforms.

Any number of processes, ranks of a run or commands started by hand, may fill the same banks: each takes groups of clips
in an order of its own, and skips what others have stored.
"""

import logging
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data_tools.arrays import Vectors
from data_tools.audio import Sound, read_audio, read_excerpt, sound_of
from data_tools.cli import counted, progress
from data_tools.errors import AudioError, KitError
from data_tools.files import checksum, quick_checksum
from data_tools.manifest import Clip
from system.audio import SPARE, Device, ExpertSettings, Frames, common_fault, length_fault
from system.audio.stored import EmbeddingFile, Waveform, to_int16
from system.devices import device_of, memory_errors
from system.features.bank import Bank
from system.moments.windows import Grid

GROUP_CLIPS, GROUP_SECONDS = 16, 120.0  # most of a group, whose clips share batches; a kill loses two groups
BYTES_A_SECOND = 88_200  # of a file whose length is unknown: one channel of 16 bits at 44.1 kHz

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass
class Features:
    """Frames of clips by expert."""

    banks: dict[str, Any]  # Bank, Waveforms, PieceBank or Vectors, by an expert's name in the recipe
    keys: dict[str, str] = field(default_factory=dict)  # checksum of the audio by id of a readable clip
    broken: dict[str, str] = field(default_factory=dict)  # why a clip cannot be read, by its id
    grids: dict[str, Grid] = field(default_factory=dict)  # times of frames

    def leave_out(self, clips: Sequence[Clip], error: AudioError) -> None:
        """Report clips of the same broken audio."""
        for clip in clips:
            self.keys.pop(clip.id, None)
            if clip.id not in self.broken:
                is_first = clip.path == clips[0].path
                self.broken[clip.id] = str(error) if is_first else f"{clip.path}: it equals {error}"
                log.warning("skipped a clip: %s", self.broken[clip.id])


class Waveforms:
    """Waveforms by key, decoded from files whenever they are read.

    It is used like a Bank of samples (N, 1) int16.
    """

    def __init__(self, expert: Waveform, threads: ThreadPoolExecutor, damaged: Path) -> None:
        """Begin without files.

        Args:
            damaged: File with the keys of files that turned out to be damaged.
        """
        self.expert, self.threads, self.dim, self.dtype = expert, threads, 1, np.dtype(np.int16)
        self.damaged = damaged
        self.files: dict[str, tuple[str, Sound]] = {}  # path, and its length and rate

    def rows_of(self, key: str) -> int:
        return self.files[key][1].samples_at(self.expert.rate, self.expert.resampling)

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Decode `count` samples from sample `first` on.

        Raises:
            KitError: The file is damaged.
        """
        path, sound = self.files[key]
        rate, resampling = self.expert.rate, self.expert.resampling
        try:
            if count < self.rows_of(key):
                wave = read_excerpt(path, sound, rate, first, count, resampling)
            elif len(wave := read_audio(path, rate, resampling)) != count:
                raise AudioError(f"{path}: the file changed while it was in use")
            return to_int16(wave)
        except AudioError as error:
            if key in (quick_checksum(Path(path)), checksum(Path(path))):  # it has not changed
                self.damaged.parent.mkdir(parents=True, exist_ok=True)
                with self.damaged.open("a") as file:
                    file.write(f"{key}\n")
            cure = "start a new run, which skips this file; lbar data check finds all damaged files"
            raise KitError(f"{error}; {cure}") from error


def build_features(
    clips: Collection[Clip],
    experts: Mapping[str, ExpertSettings],
    banks: Path,
    device: Device | None = None,
    whole: Container[str] = (),
    timed: bool = False,
) -> Features:
    """Return the frames of clips, and store missing ones.

    Args:
        device: None: the machine's default.
        whole: Ids of clips whose waveforms are decoded now, so that damage is found early.
        timed: Leave out clips whose frames have another length than the manifest says, since times would be wrong.
            Clips of stored frames always are.
    """
    for name, one in experts.items():
        if one.reads_clips and (of_all := common_fault(one, list(clips))):
            raise KitError(f"expert {name}: {of_all}")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # of this process
    features = Features({}, grids={name: Grid.of(one) for name, one in experts.items()})
    threads = ThreadPoolExecutor(cores, "decoding")
    name, expert = next(iter(experts.items()))  # several are all of frames that are stored
    if isinstance(expert, EmbeddingFile):
        features.banks[name] = vectors = expert.read_embeddings()
        _find_embeddings(features, clips, expert, vectors)
    elif isinstance(expert, Waveform):
        features.banks[name] = waveforms = Waveforms(expert, threads, banks / "damaged.txt")
        _find_keys(features, clips, threads)
        _find_sounds(features, clips, waveforms, whole)
    else:
        features.banks |= {name: bank_of(one, banks) for name, one in experts.items()}
        _find_keys(features, clips, threads)
        _fill(features, clips, experts, threads, device)
        threads.shutdown()
    for name, one in experts.items():
        if one.reads_clips and (timed or not one.computed):
            _leave_out_other_lengths(features, clips, name)
    if features.broken:
        log.warning("skipped %s that cannot be used; see the warnings above", counted(len(features.broken), "clip"))
    return features


def bank_of(expert: ExpertSettings, banks: Path) -> Bank:
    """Open the bank of an expert's frames."""
    return Bank(banks / expert.bank_name(), expert.dim, expert.dtype, expert.identity())


def _find_embeddings(features: Features, clips: Collection[Clip], expert: EmbeddingFile, vectors: Vectors) -> None:
    """Find the embeddings of clips in files of another program."""
    clip_of: dict[str, str] = {}
    for clip in clips:
        key = vectors.name_of(clip)
        if key is None:
            features.leave_out([clip], AudioError(expert.missing_embedding(clip)))
        elif (other := clip_of.setdefault(key, clip.id)) != clip.id:
            files = " and ".join(expert.files)
            raise KitError(f"{files}: {key!r} fits two clips, {other} and {clip.id}; name embeddings by clip ids")
        else:
            features.keys[clip.id] = key


def _find_keys(features: Features, clips: Collection[Clip], threads: ThreadPoolExecutor) -> None:
    """Find a checksum of each clip's audio file.

    It covers a file's size and ends, or all bytes if different files have these in common.
    """
    keys = _read_each(features, clips, lambda path: quick_checksum(Path(path)), threads)
    files = Counter(keys.values())
    alike = [clip for clip in clips if clip.path in keys and files[keys[clip.path]] > 1]
    contents = _read_each(features, alike, lambda path: checksum(Path(path)), threads)
    different = Counter(key for key, _ in {(keys[path], content) for path, content in contents.items()})
    keys |= {path: content for path, content in contents.items() if different[keys[path]] > 1}
    features.keys |= {clip.id: keys[clip.path] for clip in clips if clip.id not in features.broken}


def _find_sounds(features: Features, clips: Collection[Clip], waveforms: Waveforms, whole: Container[str]) -> None:
    """Read the length and rate of each file."""
    damaged = waveforms.damaged.read_text().split() if waveforms.damaged.exists() else []
    there = [clip for clip in clips if clip.id in features.keys]
    key_of = {clip.path: features.keys[clip.id] for clip in there}
    decoded = {clip.path for clip in there if clip.id in whole}

    def sound(path: str) -> Sound:
        if key_of[path] in damaged:
            raise AudioError(f"{path}: an earlier run found damage; repair or remove this file")
        found = sound_of(path)
        if path in decoded:
            read_audio(path, found.rate)
        return found

    for path, found in _read_each(features, there, sound, waveforms.threads).items():
        waveforms.files.setdefault(key_of[path], (path, found))


def _read_each(
    features: Features, clips: Iterable[Clip], read: Callable[[str], Made], threads: ThreadPoolExecutor
) -> dict[str, Made]:
    """Read the file of each clip once.

    Clips of broken files are left out.

    Returns:
        What `read` returns, by path.
    """
    clips_of: dict[str, list[Clip]] = {}
    for clip in clips:
        clips_of.setdefault(clip.path, []).append(clip)
    found = dict(zip(clips_of, threads.map(partial(_attempt, read), clips_of), strict=True))
    for path, one in found.items():
        if isinstance(one, AudioError):
            features.leave_out(clips_of[path], one)
    return {path: one for path, one in found.items() if not isinstance(one, AudioError)}


def _attempt(read: Callable[[str], Made], path: str) -> Made | AudioError:
    """Return the result of reading a file, or its AudioError.

    Raises:
        KitError: The disk fails.
    """
    try:
        return read(path)
    except AudioError as error:
        return error
    except FileNotFoundError:
        return AudioError(f"{path}: no such audio file")
    except OSError as error:
        raise KitError(f"{path}: {error.strerror or error}") from error


def _fill(
    features: Features, clips: Collection[Clip], experts: Mapping[str, ExpertSettings], threads: ThreadPoolExecutor,
    device: Device | None,
) -> None:  # fmt: skip
    """Compute the missing frames of all experts.

    All networks are opened first, so that a damaged file is reported early.
    """
    missing: dict[str, dict[str, list[Clip]]] = {}  # clips by key, by expert
    for clip in clips:
        for name, bank in features.banks.items():
            if (key := features.keys.get(clip.id)) and key not in bank:
                missing.setdefault(name, {}).setdefault(key, []).append(clip)
    if not missing:
        return
    device = device or device_of()
    device = device_of("cpu") if device.type == "mps" else device  # experts may need float64
    networks = {name: experts[name].load(device) for name in missing}
    for name, lacking in missing.items():
        lacking = {key: some for key, some in lacking.items() if some[0].id in features.keys}
        with progress(f"{name} frames", len(lacking), "clip") as bar:
            for waves in _decoded(features.banks[name], experts[name], lacking, threads):
                _store_frames(features, name, networks[name], waves, lacking)
                bar.update(len(waves))
        log.info("expert %s: computed the frames of %s", name, counted(len(lacking), "clip"))
        del networks[name]


def _store_frames(
    features: Features, name: str, frames_of: Frames, waves: dict[str, Any], clips: Mapping[str, list[Clip]]
) -> None:
    """Store the frames of waves by key."""
    bank = features.banks[name]
    for key in [key for key, wave in waves.items() if isinstance(wave, AudioError)]:
        features.leave_out(clips[key], waves.pop(key))
    hint = "stop other programs, or use a machine with more memory"
    with memory_errors(f"{name}: {counted(len(waves), 'clip')}", hint):
        frames = frames_of(list(waves.values())) if waves else []
    limit = np.inf if bank.dtype.kind == "i" else np.finfo(bank.dtype).max
    for key, series in zip(waves, frames, strict=True):
        if np.abs(series).max() <= limit:
            bank.store(key, series)
        else:
            large = f"frames by {name} have values too large for {bank.dtype}; repair or remove this audio file"
            features.leave_out(clips[key], AudioError(f"{clips[key][0].path}: {large}"))


def _decoded(
    bank: Any, expert: ExpertSettings, missing: Mapping[str, list[Clip]], threads: ThreadPoolExecutor
) -> Iterator[dict[str, Any]]:
    """Yield groups of waves of similar lengths by key.

    The next group is decoded meanwhile.
    """
    firsts = {key: clips[0] for key, clips in missing.items()}
    seconds = {key: one.seconds or Path(one.path).stat().st_size / BYTES_A_SECOND for key, one in firsts.items()}
    left, groups = sorted(missing, key=seconds.__getitem__), list[list[str]]()
    while left:
        size = min(GROUP_CLIPS, ceil(GROUP_SECONDS / max(1, seconds[left[-1]])))
        groups.append(left[-size:])
        del left[-size:]
    random.SystemRandom().shuffle(groups)  # other processes have another order

    def lacking() -> Iterator[list[str]]:
        for group in groups:
            bank.refresh()
            yield [key for key in group if key not in bank]

    def decode(keys: Sequence[str]) -> dict[str, Any]:
        paths = [firsts[key].path for key in keys]
        return dict(zip(keys, threads.map(partial(_attempt, expert.read), paths), strict=True))

    for waves in read_ahead(decode, lacking(), 1):
        yield {key: wave for key, wave in waves.items() if key not in bank}


def read_ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int) -> Iterator[Made]:
    """Yield what `make` makes of each item, in order.

    Threads make the next `count` meanwhile.
    """
    threads, waiting = ThreadPoolExecutor(count, "ahead"), deque[Future[Made]]()
    try:
        for item in items:
            waiting.append(threads.submit(make, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        for one in waiting:
            yield one.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _leave_out_other_lengths(features: Features, clips: Collection[Clip], name: str) -> None:
    """Leave out clips whose frames have another length.

    Times of moments would be wrong. Smaller differences are a warning, which names the first one.
    """
    bank, hop = features.banks[name], features.grids[name].hop
    slight = []
    for clip in [clip for clip in clips if clip.id in features.keys]:
        seconds = bank.rows_of(features.keys[clip.id]) * hop
        if fault := length_fault(clip, seconds, hop, SPARE):
            features.leave_out([clip], AudioError(fault))
        elif fault := length_fault(clip, seconds, hop):
            slight.append(fault)
    if slight:
        log.warning("expert %s: times of %s may be wrong, first %s", name, counted(len(slight), "recording"), slight[0])
