"""Content keys and other facts about files.

A content key is a checksum of all bytes of a file. The facts take long to compute. They are therefore stored in SQLite,
and are valid while the size and the time of the last change of a file are the same.
"""

import gc
import os
import sqlite3
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from data_tools.audio import content_key
from data_tools.errors import AudioError, KitError

Time = Literal["st_mtime_ns", "st_ctime_ns"]
WRITTEN_TOGETHER = 1000  # files per transaction: one transaction per file would take longer than reading it
WRITTEN_AFTER = 5.0  # seconds: a kill loses the work of at most these


class FileFacts:
    """Facts about files by path, in one table of a SQLite file. New facts are written many files at a time."""

    def __init__(self, path: Path, table: str, columns: Sequence[str], time: Time = "st_mtime_ns") -> None:
        """Open or create the table of values about files, such as checksums. time: Field of os.stat; see below.

        A value is only used while the file's size and the field `time` are the same. The field st_mtime_ns is the time
        of the last change of the content; st_ctime_ns, of the content or the metadata. No program can set st_ctime_ns,
        so that no change is missed. But a file that was replaced by a copy with the same content then counts as
        changed, too. columns: Names and SQL types of the values.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._table, self._time = path, table, time
        self._flushed = clock.monotonic()
        self._insert = f"insert or replace into {table} values ({', '.join('?' * (3 + len(columns)))})"
        self._new: dict[str, tuple[object, ...]] = {}  # not written yet
        self._store: sqlite3.Connection | None = None
        self._execute("pragma synchronous = off")  # only a cache: after a power cut, lost files are read again
        listed = ["path text primary key", "size integer", "changed integer", *columns]
        if len(self._execute(f"pragma table_info({table})")) not in (0, len(listed)):
            self._execute(f"drop table {table}")  # of other code
        self._execute(f"create table if not exists {table} ({', '.join(listed)})")

    def _execute(self, command: str, *rows: Sequence[object]) -> list[Any]:
        """Run an SQL command once per row of values, in one transaction.

        Returns: The rows that the command finds; an empty list if there is more than one row of values. Raises KitError
        for a full, locked or read-only disk, and for a damaged file.
        """
        try:
            self._store = self._store or sqlite3.connect(self.path, timeout=60)
            if len(rows) > 1:
                self._store.executemany(command, rows)
                found = []
            else:
                found = self._store.execute(command, *rows).fetchall()
            self._store.commit()
            return found
        except sqlite3.OperationalError as error:
            raise KitError(
                f"{self.path} cannot be read or written ({error}); free disk space, or give this user write permission"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema is quoted
            raise KitError(
                f"{self.path} is damaged ({error}); delete this file, and run the same command again"
            ) from error

    def get(self, status: Mapping[str, os.stat_result]) -> dict[str, tuple[Any, ...]]:
        """Return the stored values of files, by path; unknown and changed files are left out.

        status: Dict from the path of each file to its present size and times, for at most a few thousand files.
        """
        stored = [path for path in status if path not in self._new]
        marks = ", ".join("?" * len(stored))
        rows = self._execute(f"select * from {self._table} where path in ({marks})", stored) if stored else []
        rows += [self._new[path] for path in status if path in self._new]
        present = {path: (one.st_size, getattr(one, self._time)) for path, one in status.items()}
        return {row[0]: tuple(row[3:]) for row in rows if tuple(row[1:3]) == present[row[0]]}

    def put(self, path: str, status: os.stat_result, facts: Sequence[object]) -> None:
        """Store values about a file, such as its checksum. status: Status of the file before it was read."""
        self._new[path] = (path, status.st_size, getattr(status, self._time), *facts)
        if len(self._new) >= WRITTEN_TOGETHER or clock.monotonic() - self._flushed > WRITTEN_AFTER:
            self.flush()

    def flush(self) -> None:
        """Write the values about files that were added by `put` to disk."""
        self._flushed = clock.monotonic()
        if self._new:
            rows, self._new = list(self._new.values()), {}
            self._execute(self._insert, *rows)

    def delete_all(self) -> None:
        """Delete all stored values about files, so that every file is read again."""
        self._new = {}
        self._execute(f"delete from {self._table}")

    def close(self) -> None:
        """Write the values that were added by `put` to disk, and close the SQLite file."""
        try:
            self.flush()
        finally:
            if self._store:
                self._store.close()
                self._store = None


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Context manager that pauses Python's garbage collection, which would scan all clips again and again.

    Use it for a block that creates objects for every clip and keeps all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ContentKeys:
    """sha256 of audio files, stored by path, size and modification time, so that a file is read once.

    A changed file (another size or time) is read again and has a new key. `read_key` reads files whose frames are about
    to be computed, since a file may be replaced without a change of its size and time.
    """

    def __init__(self, folder: Path, time: Time = "st_mtime_ns") -> None:
        """Open or create the store of content keys (checksums) of files. time: Field of os.stat; see below.

        A key is only used while the file's size and the field `time` are the same. The field st_mtime_ns is the time of
        the last change of the content; st_ctime_ns, of the content or the metadata.
        """
        self._read_now: dict[str, str] = {}  # by path, contents that this process has read itself
        self._facts = FileFacts(folder / "contents.sqlite", "files", ["sha256 text"], time)

    def __call__(self, path: str) -> str:
        """Return the content key of a file, the sha256 of its content.

        Raises: AudioError for a missing file; OSError for a file that exists and cannot be read. The cause may be a
        failing disk, too many open files, or no permission. Such a clip must not be left out like one without a file.
        """
        try:
            status = os.stat(path)  # noqa: PTH116  a third of the time of Path(path).stat()
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        stored = self._facts.get({path: status})
        return str(stored[path][0]) if stored else self.read_key(path)

    def read_key(self, path: str) -> str:
        """Read a file and return its content key, the sha256 of its content, even if a key of the file is stored.

        Raises the errors of `__call__`.
        """
        if path in self._read_now:
            return self._read_now[path]
        try:
            status, key = Path(path).stat(), content_key(path)
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        self._facts.put(path, status, [key])
        self._read_now[path] = key
        return key

    def delete_all(self) -> None:
        """Delete all stored content keys (checksums of files), so that every file is read again."""
        self._facts.delete_all()

    def close(self) -> None:
        """Write new content keys (checksums of files) to disk, and close their store."""
        self._facts.close()
