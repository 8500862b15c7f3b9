"""The store of a crawl: one SQLite file with the sounds, what is left to walk, and the requests that count.

Every answer is written whole, together with the progress it made, in one transaction: a kill at any moment loses at
most the answers under way. Sounds are keyed by id, so that one that is read twice is there once.
"""

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.freesound.sounds import PREVIEWS, Page, Sound
from data_tools.freesound.windows import Answer, Progress, Window, advance

FORMAT = 1

# Of a sound as the API names them; created in ms since 1970; tags joined by blanks (a tag has none); the address of a
# preview without the API's own site.
COLUMNS = (
    *("id", "created", "name", "description", "tags", "username", "license", "gen_ai_preference", "duration"),
    *("type", "channels", "samplerate", "filesize", "md5", "category"),
    *(preview.replace("-", "_") for preview in PREVIEWS),
)

_SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sounds (id INTEGER PRIMARY KEY, {", ".join(COLUMNS[1:])}, gone INTEGER NOT NULL DEFAULT 0);
CREATE INDEX sounds_created ON sounds (created);
CREATE TABLE windows (
    first_ms INTEGER PRIMARY KEY, last_ms INTEGER NOT NULL, page INTEGER NOT NULL, expected INTEGER,
    read_from_ms INTEGER, attempt INTEGER NOT NULL, compared INTEGER NOT NULL
);
CREATE TABLE nulls (after_ms INTEGER NOT NULL, page INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE INDEX nulls_after ON nulls (after_ms);
CREATE TABLE uneven (first_ms INTEGER PRIMARY KEY, last_ms INTEGER NOT NULL, count INTEGER NOT NULL);
"""


class Null(NamedTuple):
    """An item the API gave as null whenever it was asked for: uploaded after after_ms or at it, and not after before_ms
    (None: no later sound is stored); where it was found: page of its window, position from 1."""

    after_ms: int
    before_ms: int | None
    page: int
    position: int

    @property
    def where(self) -> str:
        return f"item {self.position} of page {self.page}"


class Store:
    """An open store. database: in autocommit mode; transactions are begun by hand."""

    def __init__(self, path: Path, create: bool = False) -> None:
        """Raises DataError for a file that is missing (unless create), or is no store of this format."""
        self.path = path
        if not create and not path.is_file():
            raise DataError(f"{path}: no such store; make it with python -m data_tools crawl {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(path, isolation_level=None, timeout=60)
        try:
            self.database.execute("PRAGMA journal_mode = WAL")
            self.database.execute("PRAGMA synchronous = NORMAL")
            self._claim_format()
        except sqlite3.DatabaseError as error:
            self.database.close()
            raise DataError(f"{path}: not a store of Freesound sounds ({error}); name another file") from None

    def close(self) -> None:
        self.database.close()

    def _claim_format(self) -> None:
        with self.transaction():
            tables = {name for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                for statement in _SCHEMA.split(";"):
                    self.database.execute(statement)
                self.set_fact("format", str(FORMAT))
            elif "facts" not in tables or self.fact("format") != str(FORMAT):
                raise DataError(f"{self.path}: not a store of Freesound sounds of format {FORMAT}; name another file")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")

    def fact(self, name: str) -> str | None:
        row = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # windows

    def add_window(self, window: Window) -> None:
        self.database.execute(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?, ?, ?)", dataclasses.astuple(window)
        )

    def open_windows(self, limit: int) -> list[Window]:
        """Windows that are left, earliest first."""
        return [
            Window(*row) for row in self.database.execute("SELECT * FROM windows ORDER BY first_ms LIMIT ?", (limit,))
        ]

    def replace_window(self, window: Window, parts: Iterable[Window]) -> None:
        """In a transaction of the caller's."""
        self.database.execute("DELETE FROM windows WHERE first_ms = ?", (window.first_ms,))
        for part in parts:
            self.add_window(part)

    def save(self, window: Window, page: Page) -> Progress:
        """Keep an answer to a window, and what is left of the window."""
        created = [sound.created for sound in page.sounds if sound]
        reached = max(created, default=None)
        passed = sum(time < reached for time in created) if reached is not None else 0
        nulls = page.sounds.count(None)
        with self.transaction():
            known = self._known(window) if window.compared else 0
            progress = advance(window, Answer(page.count, len(page.sounds), reached, passed + nulls), known)
            if window.page == 1 and progress != Progress():  # it is read anew
                self._clear(window)
            self._upsert(sound for sound in page.sounds if sound)
            self._list_nulls(window, page.sounds)
            if progress.complete and not nulls:
                self._mark_gone(window, [sound.id for sound in page.sounds if sound])
            if progress.uneven:
                values = (window.first_ms, window.last_ms, page.count)
                self.database.execute("INSERT OR REPLACE INTO uneven VALUES (?, ?, ?)", values)
            self.replace_window(window, progress.windows)
            return progress

    def _known(self, window: Window) -> int:
        span = (window.first_ms, window.last_ms)
        query = "SELECT COUNT(*) FROM sounds WHERE created BETWEEN ? AND ? AND NOT gone"
        sounds: int = self.database.execute(query, span).fetchone()[0]
        nulls: int = self.database.execute(
            "SELECT COUNT(*) FROM nulls WHERE after_ms BETWEEN ? AND ?", span
        ).fetchone()[0]
        return sounds + nulls

    def _clear(self, window: Window) -> None:
        """Forget what was wrong with a window that is read anew."""
        span = (window.first_ms, window.last_ms)
        self.database.execute("DELETE FROM nulls WHERE after_ms BETWEEN ? AND ?", span)
        self.database.execute("DELETE FROM uneven WHERE first_ms BETWEEN ? AND ?", span)

    def _upsert(self, sounds: Iterable[Sound]) -> None:
        site = self.fact("site") or ""
        marks = ", ".join("?" * len(COLUMNS))
        updates = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
        self.database.executemany(
            f"INSERT INTO sounds ({', '.join(COLUMNS)}) VALUES ({marks}) "
            f"ON CONFLICT (id) DO UPDATE SET {updates}, gone = 0",
            (_row(sound, site) for sound in sounds),
        )

    def _list_nulls(self, window: Window, sounds: Iterable[Sound | None]) -> None:
        after = window.first_ms
        for position, sound in enumerate(sounds, 1):
            if sound:
                after = sound.created
            else:
                self.database.execute("INSERT INTO nulls VALUES (?, ?, ?)", (after, window.page, position))

    def _mark_gone(self, window: Window, there: list[int]) -> None:
        self.database.execute(
            "UPDATE sounds SET gone = 1 WHERE created BETWEEN ? AND ? AND id NOT IN (SELECT value FROM json_each(?))",
            (window.first_ms, window.last_ms, json.dumps(there)),
        )

    # what is there

    def count(self, condition: str = "NOT gone") -> int:
        found: int = self.database.execute(f"SELECT COUNT(*) FROM sounds WHERE {condition}").fetchone()[0]
        return found

    def nulls(self) -> list[Null]:
        """In order of time."""
        rows = self.database.execute(
            "SELECT after_ms, (SELECT MIN(created) FROM sounds WHERE created > after_ms), page, position "
            "FROM nulls ORDER BY after_ms, page, position"
        )
        return [Null(*row) for row in rows]

    def uneven(self) -> list[tuple[int, int, int]]:
        """Windows given up: first and last millisecond, and the count the API told."""
        return self.database.execute("SELECT * FROM uneven ORDER BY first_ms").fetchall()


def _row(sound: Sound, site: str) -> tuple[object, ...]:
    category = (
        sound.category if sound.category is None or isinstance(sound.category, str) else json.dumps(sound.category)
    )
    return (
        *(sound.id, sound.created, sound.name, sound.description, " ".join(sound.tags), sound.username, sound.license),
        *(sound.gen_ai_preference, sound.duration, sound.type, sound.channels, sound.samplerate, sound.filesize),
        *(sound.md5, category),
        *(sound.previews.get(preview, "").removeprefix(site) or None for preview in PREVIEWS),
    )


def is_store(path: Path) -> bool:
    """Whether a file is an SQLite database, by its first bytes."""
    if not path.is_file() or os.path.getsize(path) < 16:
        return False
    with open(path, "rb") as file:
        return file.read(16) == b"SQLite format 3\0"
