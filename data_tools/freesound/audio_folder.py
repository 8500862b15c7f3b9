"""Folder of fetched audio.

A folder of fetched audio: one <id>.flac per sound, and tables: the manifest, attributions, hours per licence.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from data_tools.documents.json_text import sha256_of
from data_tools.errors import DataError
from data_tools.files import remove_parts
from data_tools.freesound.access import SITE
from data_tools.freesound.selection import Chosen
from data_tools.freesound.store import Facts, connecting, converting_sqlite_errors, transaction
from data_tools.manifest import audio_clip, write_manifest
from data_tools.tables import write_table

DATABASE = "fetched.sqlite"
MANIFEST, ATTRIBUTION, LICENCES, LOST = "manifest.jsonl", "ATTRIBUTION.csv", "licences.csv", "lost.csv"
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value NOT NULL);
CREATE TABLE IF NOT EXISTS files (id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS lost (id INTEGER PRIMARY KEY, why TEXT NOT NULL);
"""

log = logging.getLogger(__name__)


class StoredFile(NamedTuple):
    """Record of a FLAC file in the folder: id of its sound, checksum, and length in seconds."""

    id: int
    sha256: str
    seconds: float


class Folder(Facts):
    """A folder of FLAC files with its database, fetched.sqlite.

    Attributes:
        rate: Sample rate of the files, Hz.
        files: Dict from sound id to its complete file, checked when the folder is opened.
        lost: Dict from sound id to the reason why the sound could not be fetched.

    Files are named by their ids alone, so that no title can lead to another path.
    """

    def __init__(self, path: Path, rate: int, originals: bool) -> None:
        """Open or create a folder of audio at `rate` Hz, made from original files (`originals`) or from previews.

        Raises DataError for a folder that was begun with another rate or kind of file, or whose database cannot be
        used.
        """
        self.path, self.rate, self.originals = path, rate, originals
        path.mkdir(parents=True, exist_ok=True)
        with connecting(path / DATABASE) as self.database:
            self.database.executescript(_SCHEMA)
            kind = "originals" if originals else "previews"
            for name, value in (("rate", rate), ("files", kind)):
                if (before := self.fact(name, value)) != value:
                    raise DataError(
                        f"{path}: the files in this folder were fetched with {name} {before}, not {value}; use "
                        f"{name} {before} again, or another folder"
                    )
            self.set_facts(rate=rate, files=kind)
            rows = [StoredFile(*row) for row in self.database.execute("SELECT * FROM files")]
            self.lost: dict[int, str] = dict(self.database.execute("SELECT * FROM lost"))
        self.files = {row.id: row for row in rows if self._is_intact(row)}
        remove_parts(path)

    def flac_path(self, sound_id: int) -> Path:
        """Return the path of a sound's FLAC file."""
        return self.path / f"{sound_id}.flac"

    def part_path(self, sound_id: int) -> Path:
        """Return the path for the unfinished download of a sound."""
        return self.path / f".{sound_id}.{os.getpid()}.part"

    def _is_intact(self, row: StoredFile) -> bool:
        """Return whether a recorded file is present and has its recorded checksum; warn if it is damaged."""
        path = self.flac_path(row.id)
        if not path.is_file():
            return False
        if sha256_of(path) != row.sha256:
            log.warning("%s is damaged: its checksum has changed; it will be fetched again", path)
            return False
        return True

    def add_file(self, stored: StoredFile) -> None:
        """Record a fetched file in the folder's database."""
        with converting_sqlite_errors(self.path / DATABASE), transaction(self.database):
            self.database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", stored)
            self.database.execute("DELETE FROM lost WHERE id = ?", (stored.id,))
        self.files[stored.id] = stored
        self.lost.pop(stored.id, None)

    def record_failure(self, sound_id: int, why: str) -> None:
        """Record the reason why a sound could not be fetched."""
        with converting_sqlite_errors(self.path / DATABASE):
            self.database.execute("INSERT OR REPLACE INTO lost VALUES (?, ?)", (sound_id, why))
        self.lost[sound_id] = why


def write_results(folder: Folder, sounds: Sequence[Chosen]) -> int:
    """Write the manifest and three tables of the chosen sounds, print the totals, and return the exit status.

    The status is 0, or 1 if no sound has been fetched; then only the table of failures is written.
    """
    stored = [sound for sound in sounds if sound.id in folder.files]
    lost = [(sound.id, folder.lost[sound.id]) for sound in sounds if sound.id in folder.lost]
    write_table(folder.path / LOST, ["freesound_id", "why"], lost)
    print(
        f"{len(stored):>8}  files are complete; {len(lost)} could not be fetched ({folder.path / LOST} has the reasons)"
    )
    if other := len(folder.files) - len(stored):
        print(f"{other:>8}  files of earlier runs stay in {folder.path} and are not in the manifest")
    if not stored:
        return 1
    _write_attribution(folder, stored)
    _write_licences(folder, stored)
    clips = []
    for sound in stored:
        path, facts = folder.flac_path(sound.id), (str(sound.id), sound.licence, sound.uploader)
        seconds = folder.files[sound.id].seconds
        clips.append(audio_clip(folder.path, path.name, "freesound", "train", [sound.caption], seconds, *facts))
    write_manifest(folder.path / MANIFEST, clips)
    print(f"wrote {folder.path / MANIFEST}; credit the uploaders as in {ATTRIBUTION} wherever you publish the audio")
    return 0


def _write_attribution(folder: Folder, sounds: Sequence[Chosen]) -> None:
    """Write the table that credits each sound: title, uploader, licence, page, changes, and checksum."""
    kind = "original file" if folder.originals else "preview (MP3)"
    changes = f"{kind} mixed down to mono, at {folder.rate} Hz, as FLAC of 16 bit"  # as the licences require
    rows = []
    for sound in sounds:
        page = f"{SITE}/people/{quote(sound.uploader, safe='')}/sounds/{sound.id}/"
        name, sha256 = folder.flac_path(sound.id).name, folder.files[sound.id].sha256
        rows.append((name, sound.title, sound.uploader, sound.licence, page, changes, sha256))
    header = ["file_name", "title", "uploader", "licence", "page", "changes", "sha256"]
    write_table(folder.path / ATTRIBUTION, header, rows)


def _write_licences(folder: Folder, sounds: Sequence[Chosen]) -> None:
    """Write the table of the number of files and hours per licence, and print it."""
    seconds = defaultdict(list)
    for sound in sounds:
        seconds[sound.licence].append(folder.files[sound.id].seconds)
    rows = [(licence, len(each), round(sum(each) / 3600, 3)) for licence, each in sorted(seconds.items())]
    write_table(folder.path / LICENCES, ["licence", "files", "hours"], rows)
    for licence, count, hours in rows:
        print(f"{count:>8}  {hours:.2f} hours under {licence}")
