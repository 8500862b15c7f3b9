"""A folder of fetched audio: <id>.flac each, which of them are whole, and what it says of itself: the manifest, whom to
thank for each file, hours by licence."""

import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from data_tools.documents.json_text import sha256_of
from data_tools.errors import DataError
from data_tools.files import remove_parts, write_table
from data_tools.freesound.access import SITE
from data_tools.freesound.database import naming, transaction
from data_tools.freesound.selection import Chosen
from data_tools.manifest import audio_clip, write_manifest

DATABASE = "fetched.sqlite"
MANIFEST, ATTRIBUTION, LICENCES, LOST = "manifest.jsonl", "ATTRIBUTION.csv", "licences.csv", "lost.csv"
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
        self.path, self.rate, self.originals = path, rate, originals
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


def write_results(folder: Folder, sounds: Sequence[Chosen]) -> int:
    """Write the four tables of what was chosen and is there, the manifest last; print what they hold. Returns 0, or 1
    when nothing is there."""
    stored, lost = folder.files(), folder.lost()
    there = [sound for sound in sounds if sound.id in stored]
    rows = [(sound.id, lost[sound.id]) for sound in sounds if sound.id in lost]
    write_table(folder.path / LOST, ["freesound_id", "why"], rows)
    print(f"{len(there):>8}  files are there; {len(rows)} could not be had ({LOST} says why)")
    if other := len(stored) - len(there):
        print(f"{other:>8}  files of earlier runs stay in {folder.path} and are not in the manifest")
    if not there:
        return 1
    kind = "original file" if folder.originals else "preview (MP3)"
    changes = f"{kind} mixed down to mono, at {folder.rate} Hz, as FLAC of 16 bit"  # the licences ask for them
    thanks = [
        (f"{sound.id}.flac", sound.title, sound.uploader, sound.licence, page(sound), changes, stored[sound.id].sha256)
        for sound in there
    ]
    header = ["file_name", "title", "uploader", "licence", "page", "changes", "sha256"]
    write_table(folder.path / ATTRIBUTION, header, thanks)
    licences = defaultdict(list)
    for sound in there:
        licences[sound.licence].append(stored[sound.id].seconds)
    summary = [(licence, len(seconds), round(sum(seconds) / 3600, 3)) for licence, seconds in sorted(licences.items())]
    write_table(folder.path / LICENCES, ["licence", "files", "hours"], summary)
    for licence, count, hours in summary:
        print(f"{count:>8}  {hours:.2f} hours under {licence}")
    clips = []
    for sound in there:
        name, seconds = f"{sound.id}.flac", stored[sound.id].seconds
        facts = str(sound.id), sound.licence or None, sound.uploader or None
        clips.append(audio_clip(folder.path, name, "freesound", "train", [sound.caption], seconds, *facts))
    write_manifest(folder.path / MANIFEST, clips)
    print(f"wrote {folder.path / MANIFEST}; name the uploaders as {ATTRIBUTION} does wherever the audio goes")
    return 0


def page(sound: Chosen) -> str:
    """Its page on Freesound."""
    return f"{SITE}/people/{quote(sound.uploader, safe='')}/sounds/{sound.id}/"
