"""A bank: series of vectors by key, in one flat memory-mapped file, built once, resumable at any moment.

    <folder>/bank.json      what made it (expert, front-end, weights), dimension, value type
             frames.bin     all series, one behind the other
             index.jsonl    a line per finished series: key, first row, rows; written after its frames

A series counts as stored when its index line is whole; bytes behind the last whole line are cut off when the bank is
opened for writing. That makes it safe against kills at any moment; a power cut may cost what the system had not
written out."""

import fcntl
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.files import write_text
from system.errors import KitError

log = logging.getLogger(__name__)


class Bank:
    """Stored series by key, each (T, D) with T >= 1. Open with `open_bank`."""

    def __init__(self, folder: Path, dim: int, dtype: np.dtype[Any]) -> None:
        self.folder, self.dim, self.dtype = folder, dim, dtype
        self.rows: dict[str, tuple[int, int]] = {}  # key -> first row, number of rows
        self._end_of_index = 0
        self._map: np.ndarray | None = None
        self._read_index()

    @property
    def _frames_file(self) -> Path:
        return self.folder / "frames.bin"

    @property
    def _index_file(self) -> Path:
        return self.folder / "index.jsonl"

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def _read_index(self) -> None:
        """Take the whole lines only: a killed writer may have left half a line, or a line whose frames are not all
        there."""
        if not self._index_file.exists():
            return
        stored = (
            self._frames_file.stat().st_size // (self.dim * self.dtype.itemsize) if self._frames_file.exists() else 0
        )
        with self._index_file.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    item = json.loads(line)
                    key, first, rows = str(item["key"]), int(item["first"]), int(item["rows"])
                except (ValueError, KeyError, TypeError):
                    break
                if first + rows > stored:
                    break
                self.rows[key] = (first, rows)
                self._end_of_index += len(line)

    def read(self, key: str) -> np.ndarray:
        """The (T, D) series of a key, a view of the mapped file. Raises KeyError for an unknown key."""
        first, rows = self.rows[key]
        if self._map is None or len(self._map) < first + rows:
            end = max(first + rows for first, rows in self.rows.values())  # behind it may stand half a series
            self._map = np.memmap(self._frames_file, self.dtype, "r", shape=(end, self.dim))
        return self._map[first : first + rows]

    def add(self, series: Iterable[tuple[str, np.ndarray]]) -> Iterator[str]:
        """Store series as they come and yield each key once it is on disk; a key that is there already is passed over.

        One writer at a time: another process is waited for, and what it stored is seen before the first series is asked
        for. Raises KitError when a series has another dimension or no rows.
        """
        try:
            with self._lock():
                self.rows.clear()
                self._end_of_index = 0
                self._read_index()  # another process may have added series since this one opened the bank
                with self._frames_file.open("ab") as frames, self._index_file.open("ab") as index:
                    yield from self._append_all(frames, index, series)
        except OSError as error:  # of a write: it names no file
            raise error if error.filename else OSError(error.errno, error.strerror, str(self._frames_file)) from error

    def _append_all(self, frames: Any, index: Any, series: Iterable[tuple[str, np.ndarray]]) -> Iterator[str]:
        index.truncate(self._end_of_index)
        end = max((first + rows for first, rows in self.rows.values()), default=0)
        frames.truncate(end * self.dim * self.dtype.itemsize)
        for key, values in series:
            if key in self.rows:
                continue
            end = self._append(frames, index, key, values, end)
            yield key

    def _append(self, frames: Any, index: Any, key: str, values: np.ndarray, end: int) -> int:
        if values.ndim != 2 or values.shape[1] != self.dim or not len(values):
            raise KitError(f"{self.folder}: frames of shape {values.shape} do not fit a bank of dimension {self.dim}")
        stored = np.ascontiguousarray(values, self.dtype)
        line = json.dumps({"key": key, "first": end, "rows": len(stored)}).encode() + b"\n"
        frames.write(stored.tobytes())
        frames.flush()
        index.write(line)  # after its frames: a line stands for frames that are there
        index.flush()
        self.rows[key] = (end, len(stored))
        return end + len(stored)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for another process that is adding to %s", self.folder)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def open_bank(folder: Path, dim: int, dtype: str, identity: dict[str, Any]) -> Bank:
    """Open a bank, or begin an empty one. KitError when the folder holds a bank that something else made."""
    facts = {"identity": identity, "dim": dim, "dtype": dtype}
    facts_file = folder / "bank.json"
    if not facts_file.exists():
        write_text(facts_file, json.dumps(facts, indent=1) + "\n")
    try:
        found = json.loads(facts_file.read_text())
    except ValueError as error:
        raise KitError(f"{facts_file} is damaged; delete {folder} and build the bank again") from error
    if found != json.loads(json.dumps(facts)):
        raise KitError(f"{folder} was made by {found}, not by {facts}; delete it or use another banks folder")
    return Bank(folder, dim, np.dtype(dtype))
