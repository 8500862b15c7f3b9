"""The store of a crawl: one SQLite file with the sounds, what is left to walk, and the requests that count.

Every answer is written whole, together with the progress it made, in one transaction: a kill at any moment loses at
most the answers under way. Sounds are keyed by id, so that one that is read twice is there once.
"""

import dataclasses
import json
import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound import quota
from data_tools.freesound.database import naming, transaction
from data_tools.freesound.sounds import PREVIEWS, Page, Sound, format_time
from data_tools.freesound.windows import PageListing, Progress, Window, advance

_MAGIC = b"SQLite format 3\0"
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
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, page INTEGER NOT NULL, expected INTEGER, read_from INTEGER,
    attempt INTEGER NOT NULL, splits INTEGER NOT NULL, compared INTEGER NOT NULL
);
CREATE TABLE nulls (after_ms INTEGER NOT NULL, page INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE INDEX nulls_after ON nulls (after_ms);
CREATE TABLE uneven (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, count INTEGER);
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


def _may_be_store(path: Path) -> bool:
    """Whether a file begins as SQLite's do, is empty or not there."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) in (b"", _MAGIC)


class Store:
    """An open store. database: in autocommit mode; transactions are begun by hand."""

    def __init__(self, path: Path, create: bool = False, read_only: bool = False) -> None:
        """Raises DataError for a file that is missing or empty (unless create), is no store of this format, or cannot
        be opened. A file that is no store stays as it is."""
        self.path = path
        if path.is_dir() or not create:
            require_file(path, f"make it with python -m data_tools crawl {path}")
        if not _may_be_store(path):
            hint = "name one that python -m data_tools crawl made"
            raise DataError(f"{path}: is no store of Freesound sounds, or damaged at its beginning; {hint}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path), ExitStack() as unfinished:
            self.database = sqlite3.connect(path, isolation_level=None, timeout=60)
            unfinished.callback(self.database.close)
            self._claim_format(create)
            for pragma in ["query_only = ON"] if read_only else ["journal_mode = WAL", "synchronous = NORMAL"]:
                self.database.execute(f"PRAGMA {pragma}")
            unfinished.pop_all()

    def close(self) -> None:
        self.database.close()

    def _claim_format(self, create: bool) -> None:
        if create and not self._tables():
            with self.transaction():
                if not self._tables():  # another process may have been first
                    for statement in (_SCHEMA + quota.SCHEMA).split(";"):
                        self.database.execute(statement)
                    self.set_fact("format", str(FORMAT))
        if "facts" not in self._tables() or self.fact("format") != str(FORMAT):
            raise DataError(f"{self.path}: not a store of Freesound sounds of format {FORMAT}; name another file")

    def _tables(self) -> set[str]:
        return {name for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def transaction(self) -> AbstractContextManager[None]:
        return transaction(self.database)

    def fact(self, name: str) -> str | None:
        row = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str) -> None:
        self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # windows

    def add_window(self, window: Window) -> None:
        self.database.execute(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", dataclasses.astuple(window)
        )

    def open_windows(self, limit: int) -> list[Window]:
        """Windows that are left, earliest first."""
        return [Window(*row) for row in self.database.execute("SELECT * FROM windows ORDER BY first LIMIT ?", (limit,))]

    def keep_progress(self, window: Window, progress: Progress, count: int | None = None) -> None:
        """What is left of a window takes its place. In a transaction of the caller's."""
        self.database.execute("DELETE FROM windows WHERE first = ?", (window.first,))
        for part in progress.windows:
            self.add_window(part)
        if progress.uneven:
            self.database.execute("INSERT OR REPLACE INTO uneven VALUES (?, ?, ?)", (window.first, window.last, count))

    def save(self, window: Window, page: Page) -> Progress:
        """Keep an answer to a window, and what is left of the window.

        Raises DataError for sounds outside of the window: the walk would lose its way.
        """
        once = {sound.id: sound for sound in page.sounds if sound}  # an item that comes twice stands in another's place
        created = [sound.created // 1000 for sound in once.values()]
        # A second of grace, in case the search rounds where it is taken to cut.
        if created and not window.first - 1 <= min(created) <= max(created) <= window.last + 1:
            raise DataError(
                f"{self.path}: the API gave a sound of {format_time(min(created) * 1000)} for a search from "
                f"{format_time(window.first * 1000)} to {format_time(window.last * 1000)}; this answer was not kept"
            )
        reached = min(max(max(created), window.first), window.last) if created else None
        passed = sum(second < reached for second in created) if reached is not None else 0
        nulls = page.sounds.count(None)
        with self.transaction():
            answer = PageListing(page.count, len(once) + nulls, reached, passed + nulls)
            progress = advance(window, answer, self._known(window))
            self._upsert(sound for sound in page.sounds if sound)
            self._list_nulls(window, page.sounds, window.last if progress.complete or reached is None else reached)
            if progress.complete and not nulls:
                self._mark_gone(window, [sound.id for sound in page.sounds if sound])
            if window.page == 1 and progress != Progress():  # it is read anew
                self.database.execute("DELETE FROM uneven WHERE first BETWEEN ? AND ?", (window.first, window.last))
            self.keep_progress(window, progress, page.count)
            return progress

    def _known(self, window: Window) -> int:
        query = (
            "SELECT (SELECT COUNT(*) FROM sounds WHERE created BETWEEN ? AND ? AND NOT gone) + "
            "(SELECT COUNT(*) FROM nulls WHERE after_ms BETWEEN ? AND ?)"
        )
        known: int = self.database.execute(query, 2 * _milliseconds(window.first, window.last)).fetchone()[0]
        return known

    def _upsert(self, sounds: Iterable[Sound]) -> None:
        site = self.fact("site") or ""
        marks = ", ".join(f":{column}" for column in COLUMNS)
        updates = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
        self.database.executemany(
            f"INSERT INTO sounds ({', '.join(COLUMNS)}) VALUES ({marks}) "
            f"ON CONFLICT (id) DO UPDATE SET {updates}, gone = 0",
            (_row(sound, site) for sound in sounds),
        )

    def _list_nulls(self, window: Window, sounds: Iterable[Sound | None], reached: int) -> None:
        """In place of those listed before for what the page covers: up to the second it reached."""
        query = "DELETE FROM nulls WHERE after_ms BETWEEN ? AND ? AND page >= ?"
        self.database.execute(query, (*_milliseconds(window.first, reached), window.page))
        after = window.first * 1000
        for position, sound in enumerate(sounds, 1):
            if sound:
                after = sound.created
            else:
                self.database.execute("INSERT INTO nulls VALUES (?, ?, ?)", (after, window.page, position))

    def _mark_gone(self, window: Window, there: list[int]) -> None:
        query = (
            "UPDATE sounds SET gone = 1 WHERE created BETWEEN ? AND ? AND id NOT IN (SELECT value FROM json_each(?))"
        )
        self.database.execute(query, (*_milliseconds(window.first, window.last), json.dumps(there)))

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

    def uneven(self) -> list[tuple[int, int, int | None]]:
        """Windows given up: first and last second, and the count the API gave."""
        return self.database.execute("SELECT * FROM uneven ORDER BY first").fetchall()


def _row(sound: Sound, site: str) -> dict[str, object]:
    """Values of COLUMNS by name."""
    previews = {name.replace("-", "_"): sound.previews.get(name, "").removeprefix(site) or None for name in PREVIEWS}
    return {**vars(sound), "tags": " ".join(sound.tags), **previews}


def _milliseconds(first: int, last: int) -> tuple[int, int]:
    """The first and the last millisecond of a span of seconds."""
    return first * 1000, last * 1000 + 999
