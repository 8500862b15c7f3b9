"""Content keys of audio files.

Content keys of audio files, stored in the folder of the banks.
"""

import sqlite3
from pathlib import Path
from typing import Any, Literal

from data_tools.audio.read import AudioError, content_key
from data_tools.errors import KitError


class ContentKeys:
    """sha256 of audio files, stored by path, size and modification time, so that a file is read once.

    A changed file (another size or time) is read again and has a new key. `again` reads files whose frames are about to
    be computed, since a file may be replaced without a change of its size and time.
    """

    def __init__(self, folder: Path, time: Literal["st_mtime_ns", "st_ctime_ns"] = "st_mtime_ns") -> None:
        """time: Name of the time that is compared: of the last change of the content, or st_ctime_ns, of the file's
        inode. The latter cannot be set, so that no change is missed, but a copy of a data set has other times.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._time = time
        self.path = folder / "contents.sqlite"
        self._read_now: dict[str, str] = {}  # by path, contents that this process has read itself
        self._store: sqlite3.Connection | None = None
        self._execute("pragma synchronous = off")  # only a cache: after a power cut, lost files are read again
        columns = "path text primary key, size integer, changed integer, sha256 text"
        self._execute(f"create table if not exists files ({columns})")

    def _execute(self, command: str, *values: object) -> list[Any]:
        """Run an SQL command on the store of content keys, and return its rows.

        Raises KitError for a full, locked or read-only disk, and for a damaged file.
        """
        try:
            self._store = self._store or sqlite3.connect(self.path, timeout=60)
            found = self._store.execute(command, values).fetchall()
            self._store.commit()
            return found
        except sqlite3.OperationalError as error:
            raise KitError(
                f"{self.path} cannot be used ({error}); free disk space, or give this user write permission"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged schema is quoted
            raise KitError(f"{self.path} is damaged ({error}); delete it, and it is made again") from error

    def __call__(self, path: str) -> str:
        """Return the content key of a file.

        Raises: AudioError for a missing file; OSError for one that exists and cannot be read (a failing disk, too many
        open files, no permission). Such a clip is never left out as if it were missing.
        """
        try:
            status = Path(path).stat()
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        rows = self._execute("select size, changed, sha256 from files where path = ?", path)
        if rows and rows[0][:2] == (status.st_size, getattr(status, self._time)):
            return str(rows[0][2])
        return self.read_key(path)

    def read_key(self, path: str) -> str:
        """Read a file and return its content key, even if a key is stored.

        Raises as `__call__` does.
        """
        if path in self._read_now:
            return self._read_now[path]
        try:
            status, key = Path(path).stat(), content_key(path)
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        facts = path, status.st_size, getattr(status, self._time), key
        self._execute("insert or replace into files values (?, ?, ?, ?)", *facts)
        self._read_now[path] = key
        return key

    def delete_all(self) -> None:
        """Delete all stored content keys, so that every file is read again."""
        self._execute("delete from files")

    def close(self) -> None:
        """Close the store of content keys."""
        if self._store:
            self._store.close()
