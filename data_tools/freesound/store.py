"""The store of a crawl: one SQLite file with the sounds, what is left to walk, and the requests that count.

Every answer is written whole, together with the progress it made, in one transaction: a kill at any moment loses at
most the answers under way. Sounds are keyed by id, so that one that is read twice is there once.
"""

import dataclasses
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound import quota
from data_tools.freesound.database import naming, transaction
from data_tools.freesound.sounds import PREVIEWS, Page, Sound, format_time
from data_tools.freesound.windows import PageListing, Progress, Window, advance

MAX_OUTSIDE = 10  # sounds of an answer that may be outside of the window, whatever their share
_MAGIC = b"SQLite format 3\0"
FORMAT = 2

# Of a sound as the API names them; created in ms since 1970; tags joined by blanks (a tag has none); the address of a
# preview without the API's own site. A sound also has
# indexed: its time in the search's order, in ms: `created`, except for a sound that the search lists at another time;
# missing: the second of the first search that did not find it, else 0; gone: 1 if a search for its id, hours later, did
# not find it either.
COLUMNS = (
    *("id", "created", "name", "description", "tags", "username", "license", "gen_ai_preference", "duration"),
    *("type", "channels", "samplerate", "filesize", "md5", "category", "subcategory", "pack", "is_explicit"),
    *(preview.replace("-", "_") for preview in PREVIEWS),
)

CHANGING = ("license", "gen_ai_preference", "description")  # by the uploader; `crawl --refresh` reports them

_SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sounds (
    id INTEGER PRIMARY KEY, {", ".join(COLUMNS[1:])},
    indexed INTEGER NOT NULL DEFAULT 0, missing INTEGER NOT NULL DEFAULT 0, gone INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sounds_indexed ON sounds (indexed);
CREATE TABLE windows (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, page INTEGER NOT NULL, expected INTEGER, read_from INTEGER,
    attempt INTEGER NOT NULL, splits INTEGER NOT NULL, compared INTEGER NOT NULL
);
CREATE TABLE nulls (after_ms INTEGER NOT NULL, page INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE INDEX nulls_after ON nulls (after_ms);
CREATE TABLE uneven (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, count INTEGER);
"""


class Null(NamedTuple):
    """A sound that the API gave as null, or could not give, whenever it was asked for.

    Uploaded after after_ms or at it, and not after before_ms (None: no later sound is stored). page, position (from 1):
    where it was found in its window.
    """

    after_ms: int
    before_ms: int | None
    page: int
    position: int

    @property
    def between(self) -> str:
        """The bounds of its time of upload."""
        end = "now" if self.before_ms is None else format_time(self.before_ms)
        return f"between {format_time(self.after_ms)} and {end}"

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

        Raises DataError where most sounds are outside of the window: the walk would lose its way.
        """
        answer, indexed = self._listing(window, page)
        once = {sound.id: sound for sound in page.sounds if sound}
        reached, nulls = answer.reached, page.sounds.count(None)
        with self.transaction():
            progress = advance(window, answer, self.known(window))
            end = window.last if progress.complete or reached is None else reached
            unseen = self._unseen(window.first, end if progress.complete else end - 1, list(once))
            self.upsert(once.values(), indexed)
            self._list_nulls(window, page, indexed, end, min(unseen, nulls))
            if progress.complete and not nulls:
                self._mark_missing(window, list(once))
            if window.page == 1 and progress != Progress():  # it is read anew
                self.database.execute("DELETE FROM uneven WHERE first BETWEEN ? AND ?", (window.first, window.last))
            self.keep_progress(window, progress, page.count)
            return progress

    def renew(self, window: Window, page: Page, condition: str | None) -> tuple[Progress, Counter[str]]:
        """Store an answer to a window of one kind of sound; no sound is marked as missing.

        condition: of the stored sounds of that kind, for a window that is compared. Returns the rest of the window, and
        the number of stored sounds that have changed, by column of CHANGING.
        """
        answer, indexed = self._listing(window, page)
        sounds = [sound for sound in page.sounds if sound]
        query = f"SELECT id, {', '.join(CHANGING)} FROM sounds WHERE id IN (SELECT value FROM json_each(?))"
        with self.transaction():
            known = self.known(window, condition) if condition else 0
            before = {row[0]: row[1:] for row in self.database.execute(query, (json.dumps(list(indexed)),))}
            self.upsert(sounds, indexed)
        changes: Counter[str] = Counter()
        for sound in sounds:
            values = before.get(sound.id)
            pairs = zip(CHANGING, values or (), strict=False)
            changes.update(name for name, value in pairs if value != getattr(sound, name))
        return advance(window, answer, known), changes

    def _listing(self, window: Window, page: Page) -> tuple[PageListing, dict[int, int]]:
        """Return the summary of an answer, and its sounds' index times by id."""
        # By id, so that an item that comes twice counts once: it has replaced another.
        indexed = self._indexed(window, [sound for sound in page.sounds if sound])
        seconds = [indexed_ms // 1000 for indexed_ms in indexed.values()]
        reached = min(max(max(seconds), window.first), window.last) if seconds else None
        passed = sum(second < reached for second in seconds) if reached is not None else 0
        nulls = page.sounds.count(None)
        return PageListing(page.count, len(indexed) + nulls, reached, passed + nulls), indexed

    def _indexed(self, window: Window, sounds: list[Sound]) -> dict[int, int]:
        """Return each sound's index time in ms, by id.

        This is its time of upload. For a time outside of the window, it is the index time of the sound before it: the
        index then has another time than the database.
        """
        times: dict[int, int] = {}
        time_ms, outside = window.first * 1000, list[Sound]()
        for sound in sounds:
            # A second of grace, in case the search rounds where it is taken to cut.
            if window.first - 1 <= sound.created // 1000 <= window.last + 1:
                time_ms = sound.created
            else:
                outside.append(sound)
            times[sound.id] = time_ms
        if len(outside) > MAX_OUTSIDE and 2 * len(outside) > len(sounds):
            raise DataError(
                f"{self.path}: the API gave a sound of {format_time(outside[0].created)} for a search from "
                f"{format_time(window.first * 1000)} to {format_time(window.last * 1000)}; this answer was not kept"
            )
        return times

    def parts(self, window: Window, sounds: int) -> list[Window]:
        """The window in parts of so many stored sounds each, but for sounds of one second, which stay together."""
        query = "SELECT indexed FROM sounds WHERE indexed BETWEEN ? AND ? ORDER BY indexed"
        rows = self.database.execute(query, _milliseconds(window.first, window.last))
        begins = [window.first]
        for number, (indexed,) in enumerate(rows, 1):
            if number % sounds == 0 and indexed // 1000 > begins[-1]:
                begins.append(indexed // 1000)
        ends = [*(begin - 1 for begin in begins[1:]), window.last]
        return [Window(first, last, compared=True) for first, last in zip(begins, ends, strict=True)]

    def known(self, window: Window, condition: str | None = None) -> int:
        """Sounds of the window that are stored and not missing, or null; with a condition only stored ones that fulfil
        it."""
        count = "SELECT COUNT(*) FROM sounds WHERE indexed BETWEEN ? AND ? AND NOT missing"
        nulls = "SELECT COUNT(*) FROM nulls WHERE after_ms BETWEEN ? AND ?"
        span = _milliseconds(window.first, window.last)
        if condition:
            found: int = self.database.execute(f"{count} AND ({condition})", span).fetchone()[0]
            return found
        known: int = self.database.execute(f"SELECT ({count}) + ({nulls})", 2 * span).fetchone()[0]
        return known

    def upsert(self, sounds: Iterable[Sound], indexed: Mapping[int, int]) -> None:
        """Insert or replace sounds. indexed: their index times by id; a stored sound that it lacks keeps its own."""
        site = self.fact("site") or ""
        marks = ", ".join(f":{column}" for column in COLUMNS)
        updates = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
        self.database.executemany(
            f"INSERT INTO sounds ({', '.join(COLUMNS)}, indexed) VALUES ({marks}, coalesce(:indexed, :created)) "
            f"ON CONFLICT (id) DO UPDATE SET {updates}, indexed = coalesce(:indexed, indexed), missing = 0, gone = 0",
            (_row(sound, site) | {"indexed": indexed.get(sound.id)} for sound in sounds),
        )

    def _unseen(self, first: int, last: int, ids: list[int]) -> int:
        """Number of stored sounds between two seconds that are not among these."""
        query = (
            "SELECT COUNT(*) FROM sounds WHERE indexed BETWEEN ? AND ? AND NOT missing "
            "AND id NOT IN (SELECT value FROM json_each(?))"
        )
        found: int = self.database.execute(query, (*_milliseconds(first, last), json.dumps(ids))).fetchone()[0]
        return found

    def _list_nulls(self, window: Window, page: Page, indexed: Mapping[int, int], reached: int, stored: int) -> None:
        """List a page's nulls, in place of those listed before up to the second it reached.

        stored: number of nulls that are sounds stored by an earlier crawl; these count as sounds.
        """
        query = "DELETE FROM nulls WHERE after_ms BETWEEN ? AND ? AND page >= ?"
        self.database.execute(query, (*_milliseconds(window.first, reached), window.page))
        after = window.first * 1000
        for position, sound in enumerate(page.sounds, 1):
            if sound:
                after = indexed[sound.id]
            elif stored:
                stored -= 1
            else:
                self.database.execute("INSERT INTO nulls VALUES (?, ?, ?)", (after, window.page, position))

    def _mark_missing(self, window: Window, there: list[int]) -> None:
        query = (
            "UPDATE sounds SET missing = ? WHERE indexed BETWEEN ? AND ? AND NOT missing "
            "AND id NOT IN (SELECT value FROM json_each(?))"
        )
        span = _milliseconds(window.first, window.last)
        self.database.execute(query, (int(time.time()), *span, json.dumps(there)))

    def forget_missing(self, since: float) -> None:
        """Sounds that are missing since that second or later, and not gone, are not missing."""
        self.database.execute("UPDATE sounds SET missing = 0 WHERE missing >= ? AND NOT gone", (int(since),))

    def missing(self, before: float) -> list[int]:
        """Ids of sounds that are missing since that second or longer, and not known to be gone."""
        query = "SELECT id FROM sounds WHERE missing BETWEEN 1 AND ? AND NOT gone ORDER BY id"
        return [sound_id for (sound_id,) in self.database.execute(query, (int(before),))]

    def mark_gone(self, ids: Iterable[int]) -> None:
        self.database.executemany("UPDATE sounds SET gone = 1 WHERE id = ?", ((sound_id,) for sound_id in ids))

    # what is there

    def count(self, condition: str = "NOT missing") -> int:
        found: int = self.database.execute(f"SELECT COUNT(*) FROM sounds WHERE {condition}").fetchone()[0]
        return found

    def nulls(self) -> list[Null]:
        """In order of time."""
        rows = self.database.execute(
            "SELECT after_ms, (SELECT MIN(indexed) FROM sounds WHERE indexed > after_ms), page, position "
            "FROM nulls ORDER BY after_ms, page, position"
        )
        return [Null(*row) for row in rows]

    def forget_uneven(self, last: int) -> None:
        self.database.execute("DELETE FROM uneven WHERE last <= ?", (last,))

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
