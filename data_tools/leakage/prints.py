"""Many fingerprints on disk.

Fingerprints of many recordings in a temporary file: those of 400,000 clips take 10 GB and more.
"""

import os
import pickle
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_tools.errors import located
from data_tools.leakage.fingerprint import Fingerprint


class StoredPrints:
    """Fingerprints by clip id, in the system's folder of temporary files until the process ends. Not thread-safe."""

    def __init__(self) -> None:
        """Open a temporary file for the fingerprints."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the fingerprints are in use
        weakref.finalize(self, self._file.close)
        self._begins: dict[str, int] = {}
        self.unsure: list[str] = []  # ids of recordings so short or steady that noise would hide a copy

    def __len__(self) -> int:
        """Return the number of stored fingerprints."""
        return len(self._begins)

    def __contains__(self, clip_id: str) -> bool:
        """Whether the clip's fingerprint is stored."""
        return clip_id in self._begins

    def store(self, clip_id: str, one: Fingerprint) -> None:
        """Store a fingerprint. Raises OSError, which names the folder of temporary files, if the disk is full."""
        try:
            begin = self._file.seek(0, os.SEEK_END)
            pickle.dump(one, self._file)
            self._file.flush()
        except OSError as error:
            raise located(error, tempfile.gettempdir()) from error
        self._begins[clip_id] = begin
        if not one.sure:
            self.unsure.append(clip_id)

    def __getitem__(self, clip_id: str) -> Fingerprint:
        """Return the stored fingerprint of the clip with this id."""
        self._file.seek(self._begins[clip_id])
        fingerprint: Fingerprint = pickle.load(self._file)
        return fingerprint

    def of(self, clip_ids: Sequence[str]) -> "PrintsOf":
        """Return a sequence of the fingerprints of the clips with the given ids; each is read on demand."""
        return PrintsOf(self, clip_ids)


@dataclass
class PrintsOf(Sequence[Fingerprint]):
    """A sequence of stored fingerprints."""

    prints: StoredPrints
    clip_ids: Sequence[str]

    def __len__(self) -> int:
        """Return the number of fingerprints in the sequence."""
        return len(self.clip_ids)

    def __getitem__(self, index: Any) -> Any:
        """Return the fingerprint at an index, or PrintsOf for a slice."""
        if isinstance(index, slice):
            return PrintsOf(self.prints, self.clip_ids[index])
        return self.prints[self.clip_ids[index]]
