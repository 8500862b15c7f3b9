"""Waveforms read from audio files.

Waveforms of clips that are decoded from their files each time they are read, instead of from a bank.
"""

import os
from collections.abc import KeysView
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.audio.excerpts import Sound, read_excerpt
from data_tools.audio.read import AudioError, content_key, read_audio
from data_tools.errors import KitError
from system.experts.waveform import Waveform, as_stored
from system.features.sounds import note_broken

BATCHES_AHEAD = 3  # that are decoded during the current step


def decode_threads() -> int:
    """Return the number of threads that decode in this process: the machine's usable cores, shared by its processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class AudioFiles:
    """Waveforms (N, 1) int16 by key, read like a Bank. A part of a long file is decoded without the rest.

    Whole files equal those of a bank. Parts differ from it by at most one 16-bit step, in few samples.
    """

    where = "in audio files, which are decoded for each batch"

    def __init__(self, expert: Waveform, banks: Path, threads: ThreadPoolExecutor) -> None:
        """banks: Folder that stores facts about files. threads: They decode the clips of a batch."""
        self.expert, self.folder, self.threads = expert, banks, threads
        self.dim: int = expert.dim
        self.dtype: np.dtype[Any] = np.dtype(expert.dtype)
        self._files: dict[str, tuple[str, Sound]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def keys(self) -> KeysView[str]:
        """Return the keys of all clips."""
        return self._files.keys()

    def add(self, key: str, path: str, sound: Sound) -> str:
        """Add a clip's audio file. Of several files with equal content, the first is read.

        Returns: The key; another one if a file with this key has other content.
        """
        first, _ = self._files.setdefault(key, (path, sound))
        if first != path and content_key(first) != content_key(path):
            key = content_key(path)
            self._files.setdefault(key, (path, sound))
        return key

    def rows_of(self, key: str) -> int:
        """Return the number of samples of a clip at the expert's rate."""
        return self._files[key][1].samples_at(self.expert.rate, self.expert.resampling)

    def read(self, key: str) -> np.ndarray:
        """Decode all samples (N, 1) of a clip. Raises KitError for a damaged file."""
        return self.part(key, 0, self.rows_of(key))

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Decode `count` samples (N, 1) of a clip from sample `first` on. Raises KitError for a damaged file."""
        path, sound = self._files[key]
        rate, resampling = self.expert.rate, self.expert.resampling
        try:
            if count == self.rows_of(key):
                return as_stored(read_audio(path, rate, resampling))
            return as_stored(read_excerpt(path, sound, rate, first, count, resampling))
        except AudioError as error:
            note_broken(path, self.folder, error)
            hint = "start a new run, which leaves the file out; python -m data_tools check finds all such files"
            raise KitError(f"{error}; {hint}") from error
