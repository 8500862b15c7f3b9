"""A folder of fetched audio: <id>.flac each, and which of them are whole."""

import logging
import os
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from data_tools.documents import sha256_of
from data_tools.errors import DataError
from data_tools.files import remove_parts
from data_tools.freesound.database import naming, transaction

DATABASE = "fetched.sqlite"
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, seconds REAL NOT NULL, bytes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS lost (id INTEGER PRIMARY KEY, why TEXT NOT NULL);
"""


log = logging.getLogger(__name__)


class StoredFile(NamedTuple):
    """A file in the folder. sha256, bytes: of the FLAC file."""

    id: int
    sha256: str
    seconds: float
    bytes: int


class Folder:
    """rate: of its files, Hz. What is known of them is kept in fetched.sqlite.

    Files are named by their ids alone, so that no title can lead anywhere.
    """

    def __init__(self, path: Path, rate: int, originals: bool) -> None:
        """Raises DataError for a folder that was begun with another rate or kind of file, or whose database cannot be
        used."""
        self.path, self.rate = path, rate
        self._unharmed: set[Path] = set()  # files whose content has been compared
        path.mkdir(parents=True, exist_ok=True)
        with naming(path / DATABASE), ExitStack() as unfinished:
            self.database = sqlite3.connect(path / DATABASE, isolation_level=None)
            unfinished.callback(self.database.close)
            self._begin(originals)
            unfinished.pop_all()
        remove_parts(path)

    def _begin(self, originals: bool) -> None:
        self.database.executescript(_SCHEMA)
        for name, value in (("rate", str(self.rate)), ("files", "originals" if originals else "previews")):
            self.database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            (before,) = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if before != value:
                problem = f"was begun with {name} {before}, not {value}; use that, or another folder"
                raise DataError(f"{self.path}: {problem}")

    def close(self) -> None:
        self.database.close()

    def audio(self, sound_id: int) -> Path:
        return self.path / f"{sound_id}.flac"

    def part(self, sound_id: int) -> Path:
        return self.path / f".{sound_id}.{os.getpid()}.part"

    def files(self) -> dict[int, StoredFile]:
        """Whole files by id; one that somebody deleted, or that is not what was fetched by now, is not among them."""
        with naming(self.path / DATABASE):
            rows = [StoredFile(*row) for row in self.database.execute("SELECT id, sha256, seconds, bytes FROM files")]
        return {row.id: row for row in rows if self._has(row)}

    def _has(self, row: StoredFile) -> bool:
        path = self.audio(row.id)
        if not path.is_file() or path.stat().st_size != row.bytes:
            return False
        if path not in self._unharmed:
            if sha256_of(path) != row.sha256:
                log.warning("%s is damaged: it is not what was fetched; it is fetched again", path)
                return False
            self._unharmed.add(path)
        return True

    def lost(self) -> dict[int, str]:
        """Why a sound could not be had, by id."""
        with naming(self.path / DATABASE):
            return dict(self.database.execute("SELECT id, why FROM lost"))

    def add_file(self, stored: StoredFile) -> None:
        with naming(self.path / DATABASE), transaction(self.database):
            self.database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", stored)
            self.database.execute("DELETE FROM lost WHERE id = ?", (stored.id,))

    def record_failure(self, sound_id: int, why: str) -> None:
        with naming(self.path / DATABASE):
            self.database.execute("INSERT OR REPLACE INTO lost VALUES (?, ?)", (sound_id, why))
