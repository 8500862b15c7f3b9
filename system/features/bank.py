"""A bank: series of vectors by key, in one flat memory-mapped file, built once, resumable at any moment.

    <folder>/bank.json      what made it (expert, front-end, weights), dimension, value type
             frames.bin     all series, one behind the other
             index.jsonl    a line per finished series: key, first row, rows, CRC-32; written after its frames

A series counts as stored when its index line is whole; bytes behind the last whole line are cut off when the bank is
opened for writing. That makes it safe against kills at any moment. The checksum, of the key and the frames, is compared
when a series is read for the first time, so that neither a flipped bit nor what a power cut has left unwritten is ever
used. Banks of earlier releases have no checksums; they are read as they are."""

import json
import logging
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data_tools.documents import parse_json
from data_tools.errors import DataError, KitError
from data_tools.files import remove_parts, replacing, sync, write_text
from data_tools.locks import lock

log = logging.getLogger(__name__)


class Bank:
    """Stored series by key, each (T, D) with T >= 1. Open with `open_bank`."""

    def __init__(self, folder: Path, dim: int, dtype: np.dtype[Any], hint: str, verify: bool) -> None:
        self.folder, self.dim, self.dtype, self.hint = folder, dim, dtype, hint
        self._frames_file, self._index_file = folder / "frames.bin", folder / "index.jsonl"
        self._end = 0  # rows in the file, while it is written to
        self._read_index(skip_damaged=verify)
        if verify:
            dropped, unknown = self.drop_damaged()
            if unknown:
                log.warning("%s: %d series are of an earlier release, which stored no checksums", self.folder, unknown)
            level = logging.WARNING if dropped else logging.INFO
            log.log(level, "%s: %d series, %d were damaged and are forgotten", self.folder, len(self), dropped)

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def _read_index(self, skip_damaged: bool = False) -> None:
        """Take the whole lines only. A killed writer may have left half a line, or frames without their line; a power
        cut lines at the end whose frames are not all there: these series are forgotten. Anything else is damage."""
        self.rows: dict[str, tuple[int, int]] = {}  # key -> first row, number of rows
        self._checksums: dict[str, int] = {}  # of the series not yet read
        self._end_of_index = 0
        self._map: np.ndarray | None = None
        if not self._index_file.exists():
            return
        frame_bytes = self.dim * self.dtype.itemsize
        stored = self._frames_file.stat().st_size // frame_bytes if self._frames_file.exists() else 0
        lines = self._index_file.read_bytes().split(b"\n")[:-1]
        items = [self._item(line, stored) for line in lines]
        last = max((number for number, item in enumerate(items) if item), default=-1)
        if lost := len(items) - last - 1:
            log.warning(
                "%s: the frames of the last %d of %d series are lost, or their lines are damaged (a power cut?); "
                "they are computed again", self.folder, lost, len(items),
            )  # fmt: skip
        for number, item in enumerate(items[: last + 1]):
            if item is None:  # a kill leaves no such line before a whole one
                if skip_damaged:
                    continue
                raise KitError(f"{self._index_file}, line {number + 1}, is damaged; {self.hint}")
            key, first, rows, checksum = item
            self.rows[key] = (first, rows)
            if checksum is not None:
                self._checksums[key] = checksum
        self._end_of_index = sum(len(line) + 1 for line in lines[: last + 1])

    @staticmethod
    def _item(line: bytes, stored: int) -> tuple[str, int, int, int | None] | None:
        """Key, first row, rows and checksum of an index line; None for a line that is none, or tells of more than the
        `stored` rows."""
        try:
            item = parse_json(line, "")
            key, first, rows, checksum = item["key"], item["first"], item["rows"], item.get("crc32")
        except (DataError, KeyError, TypeError, AttributeError):
            return None
        numbers = (first, rows) if checksum is None else (first, rows, checksum)
        whole = isinstance(key, str) and all(type(number) is int for number in numbers)
        return (key, first, rows, checksum) if whole and 0 <= first < first + rows <= stored else None

    def read(self, key: str) -> np.ndarray:
        """The (T, D) series of a key, a view of the mapped file.

        Raises KeyError for an unknown key, KitError where the series is not what was stored.
        """
        first, rows = self.rows[key]
        if self._map is None or len(self._map) < first + rows:
            end = max(first + rows for first, rows in self.rows.values())  # behind it may stand half a series
            self._map = np.memmap(self._frames_file, self.dtype, "r", shape=(end, self.dim))
        found = self._map[first : first + rows]
        expected = self._checksums.get(key)
        if expected is not None:
            if _checksum(key, found) != expected:
                raise KitError(f"{self._frames_file}: the frames of {key} are damaged; {self.hint}")
            self._checksums.pop(key, None)  # another thread may have read it meanwhile
        return found

    def drop_damaged(self) -> tuple[int, int]:
        """Read every series and forget the damaged ones, so that they are computed again.

        Returns how many lines of the index were dropped, and how many series have no checksum and could not be judged.
        """
        with self._lock():
            self._read_index(skip_damaged=True)
            unknown = len(self.rows) - len(self._checksums)
            whole = {key: self.rows[key] for key in self.rows if key not in self._checksums or self._is_whole(key)}
            lines = self._index_file.read_bytes().split(b"\n")[:-1] if self._index_file.exists() else []
            kept = [line for line in lines if self._names(line, whole)]
            if len(kept) < len(lines):
                with replacing(self._index_file) as temporary:
                    temporary.write_bytes(b"".join(line + b"\n" for line in kept))
            self._read_index()
        return len(lines) - len(kept), unknown

    def _names(self, line: bytes, series: Mapping[str, tuple[int, int]]) -> bool:
        """Whether an index line is that of one of these series."""
        item = self._item(line, sys.maxsize)
        return item is not None and series.get(item[0]) == item[1:3]

    def _is_whole(self, key: str) -> bool:
        try:
            self.read(key)
        except KitError:
            return False
        return True

    @contextmanager
    def writing(self) -> Iterator[Callable[[str, np.ndarray], None]]:
        """Gives a function that stores a series (T, D) by its key: on disk when it returns, skipped if it is there.

        One writer at a time: another process is waited for, and what it stored is seen before the first series is.
        The function raises KitError for a series of another dimension or without rows.
        """
        try:
            with self._lock():
                self._read_index()  # another process may have added series since this one opened the bank
                with self._frames_file.open("ab") as frames, self._index_file.open("ab") as index:
                    index.truncate(self._end_of_index)
                    self._end = max((first + rows for first, rows in self.rows.values()), default=0)
                    frames.truncate(self._end * self.dim * self.dtype.itemsize)
                    yield partial(self._append, frames, index)
                sync(self._frames_file)
                sync(self._index_file)
        except OSError as error:  # of a write: it names no file
            raise error if error.filename else OSError(error.errno, error.strerror, str(self._frames_file)) from error

    def _append(self, frames: BinaryIO, index: BinaryIO, key: str, values: np.ndarray) -> None:
        if key in self.rows:
            return
        if values.ndim != 2 or values.shape[1] != self.dim or not len(values):
            raise KitError(f"{self.folder}: frames of shape {values.shape} do not fit a bank of dimension {self.dim}")
        stored = np.ascontiguousarray(values, self.dtype)
        item = {"key": key, "first": self._end, "rows": len(stored), "crc32": _checksum(key, stored)}
        line = json.dumps(item).encode() + b"\n"
        frames.write(stored.tobytes())
        frames.flush()
        index.write(line)  # after its frames: a line stands for frames that are there
        index.flush()
        self.rows[key] = (self._end, len(stored))
        self._end += len(stored)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        waiting = f"waiting for another process that is adding to {self.folder}"
        with lock(self.folder / "lock", waiting, wait=True):
            remove_parts(self.folder)
            yield


def keys_in(folder: Path) -> set[str]:
    """The keys that a bank holds, by its index alone; none where there is no bank."""
    index = folder / "index.jsonl"
    lines = index.read_bytes().split(b"\n")[:-1] if index.exists() else []
    return {item[0] for line in lines if (item := Bank._item(line, sys.maxsize))}


def _checksum(key: str, values: np.ndarray) -> int:
    """CRC-32 of a key and its series."""
    return zlib.crc32(np.ascontiguousarray(values).data, zlib.crc32(key.encode()))


def open_bank(
    folder: Path, dim: int, dtype: str, identity: dict[str, Any], hint: str | None = None, verify: bool = False
) -> Bank:
    """Open a bank, or begin an empty one.

    hint: what to do about damage, the end of the message's sentence. verify: read every series now, and forget those
    that are damaged, so that they are computed again; says how many.
    Raises KitError when the folder holds a bank that something else made, or one that is damaged.
    """
    facts = {"identity": identity, "dim": dim, "dtype": dtype}
    facts_file = folder / "bank.json"
    if not facts_file.exists():
        write_text(facts_file, json.dumps(facts, indent=1) + "\n")
    try:
        found = parse_json(facts_file.read_bytes(), str(facts_file))
    except DataError as error:
        raise KitError(f"{facts_file} is damaged; delete {folder} and build the bank again") from error
    if found != json.loads(json.dumps(facts)):
        raise KitError(f"{folder} was made by {found}, not by {facts}; delete it or use another banks folder")
    hint = hint or f"delete {folder}, then the same command computes it again"
    return Bank(folder, dim, np.dtype(dtype), hint, verify)
