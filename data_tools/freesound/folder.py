"""A folder of fetched audio: <id>.flac each, and which of them are whole."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError

DATABASE = "fetched.sqlite"


class Kept(NamedTuple):
    """A file in the folder. sha256: of the FLAC file."""

    id: int
    sha256: str
    seconds: float


class Folder:
    """rate: of its files, Hz. What is known of them is kept in fetched.sqlite.

    Files are named by their ids alone, so that no title can lead anywhere.
    """

    def __init__(self, path: Path, rate: int, originals: bool) -> None:
        """Raises DataError for a folder that was begun with another rate or kind of file."""
        self.path, self.rate = path, rate
        path.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(path / DATABASE, isolation_level=None)
        self.database.executescript(
            "PRAGMA journal_mode = WAL;"
            "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, seconds REAL NOT NULL);"
            "CREATE TABLE IF NOT EXISTS lost (id INTEGER PRIMARY KEY, why TEXT NOT NULL);"
        )
        for name, value in (("rate", str(rate)), ("files", "originals" if originals else "previews")):
            self.database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            (before,) = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            if before != value:
                raise DataError(f"{path}: was begun with {name} {before}, not {value}; use that, or another folder")
        for leftover in path.glob(".*.part*"):  # of a run that was killed
            leftover.unlink()

    def audio(self, sound_id: int) -> Path:
        return self.path / f"{sound_id}.flac"

    def part(self, sound_id: int) -> Path:
        return self.path / f".{sound_id}.part"

    def kept(self) -> dict[int, Kept]:
        """Whole files by id; one that somebody deleted is not among them."""
        rows = map(Kept._make, self.database.execute("SELECT id, sha256, seconds FROM kept"))
        return {row.id: row for row in rows if self.audio(row.id).is_file()}

    def lost(self) -> dict[int, str]:
        """Why a sound could not be had, by id."""
        return dict(self.database.execute("SELECT id, why FROM lost"))

    def keep(self, sound_id: int, sha256: str, seconds: float) -> None:
        self.database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (sound_id, sha256, seconds))
        self.database.execute("DELETE FROM lost WHERE id = ?", (sound_id,))

    def lose(self, sound_id: int, why: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO lost VALUES (?, ?)", (sound_id, why))
