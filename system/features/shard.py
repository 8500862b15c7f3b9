"""Shard of a bank.

A shard is a part of a bank, to which only one process at a time adds series.

    <folder>/frames.bin      all its series, one after the other
             index.jsonl     one line per finished series; written after its frames
             lock            locked by the process that adds to the shard, until it ends
             under_way.json  keys that this process is computing (see shared_work.py)

A series counts as stored when its line in the index is complete. The next process that adds to the shard removes all
bytes after the last complete line. A process may thus be killed at any moment. The checksum is compared when a series
is read for the first time, so that changed bits, or data that were lost in a power cut, are never used.
"""

import logging
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data_tools.errors import KitError
from data_tools.files import replacing, sync
from system.features.index import Item, Table, blocks, item_of, line_of, table_of

log = logging.getLogger(__name__)


class Shard:
    """Series by key, each (T, D) with T >= 1, in the two files of one folder.

    hint: End of the error message for a damaged shard, with the cure.
    """

    def __init__(self, folder: Path, dim: int, dtype: np.dtype[Any], hint: str) -> None:
        """Set the paths of the files of a shard, a part of a bank. hint: Cure for damaged files, for messages."""
        self.folder, self.dim, self.dtype, self.repair_hint = folder, dim, dtype, hint
        self.frames_file, self.index_file = folder / "frames.bin", folder / "index.jsonl"
        self.lock_file, self.under_way_file = folder / "lock", folder / "under_way.json"
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._forget_lines()

    def _forget_lines(self) -> None:
        """Forget all index lines that were read, so that read_new_lines reads the whole index."""
        self.numbers: dict[str, int] = {}  # key -> its row of the table
        self._table = Table.of()
        self._checked = bytearray()  # of every series, whether it was compared with its checksum
        self._lines = 0  # of the index that were read
        self._read_to, self._last_line = 0, b""  # bytes of the index that were read, and the last line of them
        self._seen: tuple[int, ...] | None = None  # size and time of change of the files when they were read
        self._end = 0  # rows of frames up to the end of the last series in these lines
        self._lost = self._lost_bytes = 0  # lines at the end that are damaged, or whose frames are missing
        self._map: np.ndarray | None = None

    def read_new_lines(self, skip_damaged: bool = False) -> None:
        """Read the index lines added since the last call. skip_damaged: Drop damaged lines instead of raising KitError.

        If another process has removed lines since the last call, all lines are read again. A killed process may leave a
        partial line, or frames without an index line. After a power cut, frames of the last lines may be missing. All
        such series are dropped. Only other damage raises KitError.
        """
        state = self._file_states()
        if state == self._seen:
            return
        if not self._still_begins_alike():
            self._forget_lines()
        before, self._lost, self._lost_bytes = self._lost, 0, 0
        for lines in blocks(self.index_file, self._read_to):
            self._parse_lines(lines, skip_damaged)
        if self._lost not in (0, before):
            log.warning(
                "%s: the last %d of %d series of frames are lost or damaged, perhaps by a power cut, and are computed "
                "again",
                self.folder, self._lost, self._lines + self._lost,
            )  # fmt: skip
        self._seen = state

    def _file_states(self) -> tuple[int, ...]:
        """Return the sizes and modification times of the shard's two files: the index and the frames."""
        found = [path.stat() if path.exists() else None for path in (self.index_file, self.frames_file)]
        return tuple(n for status in found for n in ((status.st_size, status.st_mtime_ns) if status else (-1, -1)))

    def _still_begins_alike(self) -> bool:
        """Return whether the index file still begins with the lines that were read from it."""
        if not self._read_to:
            return True
        if not self.index_file.exists():
            return False
        with self.index_file.open("rb") as file:
            file.seek(self._read_to - len(self._last_line))
            return file.read(len(self._last_line)) == self._last_line

    def _parse_lines(self, lines: bytes, skip_damaged: bool) -> None:
        """Parse index lines, and add their series to the table.

        skip_damaged: Drop all damaged lines. Otherwise, a damaged line before an undamaged line raises KitError.
        """
        stored = self._stored_rows()
        table = None if self._lost else table_of(lines, stored)
        if table is not None:
            self._add(table, len(table.keys), lines)
            return
        for line in lines.split(b"\n")[:-1]:
            item = item_of(line, stored)
            if item is None:
                self._lost, self._lost_bytes = self._lost + 1, self._lost_bytes + len(line) + 1
                continue
            if self._lost and not skip_damaged:  # a kill leaves no such line before a whole one
                raise KitError(f"{self.index_file}, line {self._lines + 1}, is damaged; {self.repair_hint}")
            self._lines, self._read_to = self._lines + self._lost, self._read_to + self._lost_bytes
            self._lost = self._lost_bytes = 0
            self._add(Table.of(item), 1, line + b"\n")

    def _stored_rows(self) -> int:
        """Return the number of complete rows in the file of frames."""
        frame_bytes = self.dim * self.dtype.itemsize
        return self.frames_file.stat().st_size // frame_bytes if self.frames_file.exists() else 0

    def _add(self, table: Table, lines: int, text: bytes) -> None:
        """Add parsed index lines (`table`) to this object's table. lines: Number of index lines. text: Their bytes."""
        before = len(self._table.first)
        self.numbers.update(zip(table.keys, range(before, before + len(table.keys)), strict=True))
        for column, more in zip(self._table[1:], table[1:], strict=True):
            column.extend(more)
        self._checked.extend(False for _ in table.keys)
        self._end = max(self._end, table.end())
        self._lines, self._read_to = self._lines + lines, self._read_to + len(text)
        self._last_line = text[text.rfind(b"\n", 0, -1) + 1 :]

    def rows_of(self, key: str) -> int:
        """Return the number of rows of a stored series."""
        return self.span(key)[1]

    def span(self, key: str) -> tuple[int, int]:
        """Return the first row of a stored series in the file of frames, and its number of rows."""
        number = self.numbers[key]
        return self._table.first[number], self._table.rows[number]

    def read(self, key: str) -> np.ndarray:
        """Return the stored series (T, D) of a key, as a view of the memory-mapped file.

        Raises KeyError for an unknown key, and KitError if the series does not match its checksum.
        """
        number = self.numbers[key]
        first, rows = self._table.first[number], self._table.rows[number]
        if self._map is None or len(self._map) < first + rows:  # the file may end with a partial series
            self._map = np.memmap(self.frames_file, self.dtype, "r", shape=(self._end, self.dim))
        found = self._map[first : first + rows]
        if not self._checked[number]:
            if _checksum(key, found) != self._table.checksums[number]:
                raise KitError(f"{self.frames_file}: the frames of {key} are damaged; {self.repair_hint}")
            self._checked[number] = True
        return found

    def cut(self) -> None:
        """Cut off incomplete data that a killed process has left at the end of the shard's files.

        Only the process that adds to the shard may call this.
        """
        self._seen = None
        self.read_new_lines()
        for path, size in ((self.index_file, self._read_to), (self.frames_file, self._end * self._frame_bytes())):
            with path.open("ab") as file:
                file.truncate(size)

    def _frame_bytes(self) -> int:
        """Return the number of bytes of one stored row."""
        return self.dim * self.dtype.itemsize

    def store(self, key: str, values: np.ndarray) -> None:
        """Add a series (T, D) under a key. Raises KitError for a series of another dimension or without rows."""
        if values.ndim != 2 or values.shape[1] != self.dim or not len(values):
            raise KitError(
                f"{self.folder}: frames of shape {values.shape} cannot be stored; "
                f"expected (number of frames, {self.dim}), with at least one frame"
            )
        with self._named_errors():
            if self._files is None:
                self._files = self.frames_file.open("ab"), self.index_file.open("ab")
            self._append(*self._files, key, np.ascontiguousarray(values, self.dtype))

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Context manager that adds the name of the file of frames to an OSError without a file name."""
        try:
            yield
        except OSError as error:
            raise error if error.filename else OSError(error.errno, error.strerror, str(self.frames_file)) from error

    def _append(self, frames: BinaryIO, index: BinaryIO, key: str, stored: np.ndarray) -> None:
        """Write a series to the file `frames`, and then its index line to the file `index`."""
        item = Item(key, self._end, len(stored), _checksum(key, stored))
        line = line_of(item)
        frames.write(stored.tobytes())
        frames.flush()
        index.write(line)  # after its frames, since a line means that they exist
        index.flush()
        self._add(Table.of(item), 1, line)
        self._checked[-1] = True

    def close_files(self) -> None:
        """Close the shard's files, so that other machines with the same shared folder can read the stored series."""
        files, self._files = self._files, None
        with self._named_errors(), ExitStack() as stack:
            for file in files or ():
                stack.callback(file.close)

    def sync(self) -> None:
        """Flush all stored series to disk."""
        self.close_files()
        for path in (self.frames_file, self.index_file):
            if path.exists():
                sync(path)

    def undamaged_lines(self) -> tuple[list[bytes], int]:
        """Check every series. Returns: The index lines of the undamaged series, and the number of damaged series."""
        self._forget_lines()
        self.read_new_lines(skip_damaged=True)
        whole = {key: self.span(key) for key in self.numbers if self._is_undamaged(key)}
        known = self._read_to + self._lost_bytes  # excludes lines that others have added meanwhile
        text = b"".join(blocks(self.index_file))[:known]
        lines = text.split(b"\n")[:-1]
        kept = [line for line in lines if (item := item_of(line)) and whole.get(item.key) == (item.first, item.rows)]
        return kept, len(lines) - len(kept)

    def _is_undamaged(self, key: str) -> bool:
        """Return whether a series matches its checksum."""
        try:
            self.read(key)
        except KitError:
            return False
        return True

    def keep_only(self, lines: list[bytes]) -> None:
        """Rewrite the index so that it has only the given lines.

        The process must hold the lock of the shard.
        """
        with replacing(self.index_file) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))
        self._forget_lines()
        self.read_new_lines()


def _checksum(key: str, values: np.ndarray) -> int:
    """Return the CRC-32 of a key and its series."""
    return zlib.crc32(np.ascontiguousarray(values).data, zlib.crc32(key.encode()))
