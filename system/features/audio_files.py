"""Waveforms read from audio files.

Waveforms of clips that are decoded from their files each time they are read, instead of from a bank.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.audio import Sound, content_key, read_audio, read_excerpt, sound_of
from data_tools.errors import AudioError, KitError
from system.experts.waveform import Waveform, to_int16
from system.features.sounds import note_broken


def decode_threads() -> int:
    """Return the number of decoding threads of this process: the machine's usable cores, divided by its processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class AudioFiles:
    """Waveforms (N, 1) int16 by key, decoded from audio files, with the reading methods of a Bank of stored frames.

    A part of a long file is decoded without the rest of the file. The waveform of a whole file equals the waveform in a
    bank. In a part of a file, a few samples may differ by one 16-bit step.
    """

    def __init__(self, expert: Waveform, banks: Path, threads: ThreadPoolExecutor) -> None:
        """Create an empty table of audio files. threads: Threads that decode the files. banks: Folder of stored frames.

        The error messages of broken files are also stored in the folder `banks`.
        """
        self.expert, self.folder, self.threads = expert, banks, threads
        self.dim: int = expert.dim
        self.dtype: np.dtype[Any] = np.dtype(expert.dtype)
        self._files: dict[str, tuple[str, Sound]] = {}

    def add(self, files: Sequence[tuple[str, str, Sound]]) -> list[str]:
        """Add the audio files of clips, each as (key, path, length and sample rate). Returns: The key of each file.

        If several files have the same key and equal contents, only the
        first file is read later. If they have different contents, the key of each of these files is replaced by a
        checksum of all its bytes. Raises AudioError if such a file is missing.
        """
        first: dict[str, str] = {}
        several: dict[str, dict[str, None]] = {}  # paths of files with the same key
        for key, path, _ in files:
            if first.setdefault(key, path) != path:
                several.setdefault(key, {first[key]: None})[path] = None
        contents = {path: content_key(path) for group in several.values() for path in group}
        mixed = {key for key, group in several.items() if len({contents[path] for path in group}) > 1}
        keys = [contents[path] if key in mixed else key for key, path, _ in files]
        for key, (_, path, sound) in zip(keys, files, strict=True):
            self._files.setdefault(key, (path, sound))
        return keys

    def rows_of(self, key: str) -> int:
        """Return the number of rows of a clip's waveform: its samples at the expert's rate."""
        return self._files[key][1].samples_at(self.expert.rate, self.expert.resampling)

    def read(self, key: str) -> np.ndarray:
        """Decode all samples (N, 1) of a clip. Raises KitError for a damaged file."""
        return self.part(key, 0, self.rows_of(key))

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Decode a part of a clip: `count` samples (N, 1) from sample `first` on. Raises KitError if it is damaged."""
        path, sound = self._files[key]
        rate, resampling = self.expert.rate, self.expert.resampling
        try:
            if count < self.rows_of(key):
                return to_int16(read_excerpt(path, sound, rate, first, count, resampling))
            wave = read_audio(path, rate, resampling)
            if len(wave) != count:
                raise AudioError(f"{path}: the file changed while it was in use")
            return to_int16(wave)
        except AudioError as error:
            if not _is_damaged(path, sound):
                raise KitError(f"{error}; start a new run") from error
            note_broken(path, self.folder, error)
            raise KitError(
                f"{error}; start a new run, which skips this file; lbar data check finds all damaged files"
            ) from error


def _is_damaged(path: str, sound: Sound) -> bool:
    """Return whether an audio file is certainly damaged, after an attempt to decode it has failed.

    It is if it still states its earlier length and sample rate, `sound`.
    """
    try:
        return sound_of(path) == sound
    except (AudioError, OSError):
        return False
