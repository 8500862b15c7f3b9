"""SQLite store of a crawl.

One file has the sounds, the time windows still to read, and the requests that count against the API's limits.

Every answer is written in one transaction together with its progress. A kill at any moment loses at most the answers
under way. Sounds are keyed by id, so that a sound that is read twice is stored once.
"""

import dataclasses
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound import quota
from data_tools.freesound.sounds import PREVIEWS, Page, Sound, format_time
from data_tools.freesound.windows import PageListing, Progress, Window, advance

MAX_OUTSIDE = 10  # sounds of an answer that may be outside the window, whatever their share
MAGIC = b"SQLite format 3\0"
FORMAT = 0x46530003  # SQLite's application_id: "FS", and the version of the tables

# Names are the API's. created: ms since 1970. tags: joined by blanks (no tag contains one). previews: addresses without
# the API's own site. Additional columns of a sound:
# indexed: its time in the search's order, in ms; equals `created`, unless the search lists the sound at another time.
# missing: second of the first search that did not find it, otherwise 0.
# gone: 1 if a search for its id, hours later, did not find it either.
COLUMNS = (
    *(name for name in Sound.model_fields if name != "previews"),
    *(preview.replace("-", "_") for preview in PREVIEWS),
)

CHANGING = ("license", "gen_ai_preference", "description")  # by the uploader; reported by `crawl --refresh`

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value NOT NULL);
CREATE TABLE IF NOT EXISTS sounds (
    id INTEGER PRIMARY KEY, {", ".join(COLUMNS[1:])},
    indexed INTEGER NOT NULL DEFAULT 0, missing INTEGER NOT NULL DEFAULT 0, gone INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS sounds_indexed ON sounds (indexed);
CREATE TABLE IF NOT EXISTS windows (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, page INTEGER NOT NULL, expected INTEGER, read_from INTEGER,
    attempt INTEGER NOT NULL, splits INTEGER NOT NULL, compared INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS nulls (after_ms INTEGER NOT NULL, page INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS nulls_after ON nulls (after_ms);
CREATE TABLE IF NOT EXISTS uneven (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, count INTEGER);
{quota.SCHEMA}
PRAGMA application_id = {FORMAT};
COMMIT;
"""
_WITHIN = "indexed BETWEEN ? AND ? AND NOT missing"
_LISTED = "(SELECT value FROM json_each(?))"


@contextmanager
def converting_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert SQLite's errors in a block (disk full, no permission, damaged file) to a DataError that names `path`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: from a damaged schema, which is quoted
        raise DataError(
            f"{path}: SQLite cannot use this file ({error}); check that it is intact, that it and its folder are "
            "writable, and that the disk has space"
        ) from None


@contextmanager
def connecting(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database in autocommit mode for an object under construction; close it if the construction fails.

    Raises DataError if SQLite cannot use the file.
    """
    with converting_sqlite_errors(path):
        database = sqlite3.connect(path, isolation_level=None, timeout=60)
        try:
            yield database
        except BaseException:
            database.close()
            raise


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run a block as one transaction of the database, which must be in autocommit mode."""
    with database:  # commits, or rolls back
        database.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def open_store(path: Path, create: bool = False, read_only: bool = False) -> Iterator["Store"]:
    """Open the database of sounds for a block. Raises DataError as Store does, and for SQLite's errors in the block."""
    with converting_sqlite_errors(path), closing(Store(path, create, read_only)) as store:
        yield store


class Null(NamedTuple):
    """A sound that the API always returned as null, or could never return.

    Attributes:
        after_ms: Earliest possible upload time, in milliseconds since 1970.
        before_ms: Latest possible upload time; None if no later sound is stored.
        page: Page in the results of its time window, from 1.
        position: Position on this page, from 1.
    """

    after_ms: int
    before_ms: int | None
    page: int
    position: int


class Facts:
    """A database with a table of facts, in autocommit mode; callers begin transactions."""

    database: sqlite3.Connection

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def fact(self, name: str, default: Any = None) -> Any:
        """Return a named value about the whole crawl, such as `until`, its last second; `default` if not stored."""
        row = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else default

    def set_facts(self, **facts: float | str) -> None:
        """Store named values about the whole crawl, each a number or a text; `fact` reads them."""
        self.database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())


class Store(Facts):
    """An open store."""

    def __init__(self, path: Path, create: bool = False, read_only: bool = False) -> None:
        """Open or create the database file of a crawl's sounds.

        Raises DataError for a file that is missing or empty (unless create), is not a store of this format, or cannot
        be opened. A file of another kind is not changed.
        """
        self.path = path
        if path.is_dir() or not create:
            require_file(path, f"make a store with lbar data crawl {path}")
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(MAGIC)) not in (b"", MAGIC):
                    raise DataError(
                        f"{path}: not a store of Freesound sounds, or damaged at its beginning; give one made by "
                        "lbar data crawl"
                    )
        path.parent.mkdir(parents=True, exist_ok=True)
        with connecting(path) as self.database:
            if create and not self.database.execute("SELECT 1 FROM sqlite_master").fetchone():
                self.database.executescript(_SCHEMA)
            if self.database.execute("PRAGMA application_id").fetchone() != (FORMAT,):
                version = FORMAT & 255
                raise DataError(f"{path}: not a store of Freesound sounds of format {version}; give another file")
            for pragma in ["query_only = ON"] if read_only else ["journal_mode = WAL", "synchronous = NORMAL"]:
                self.database.execute(f"PRAGMA {pragma}")

    # windows

    def add_window(self, window: Window) -> None:
        """Add a time window to read, or replace the one with the same start."""
        values = dataclasses.astuple(window)
        self.database.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def open_windows(self, limit: int) -> list[Window]:
        """Return the time windows still to read, earliest first, at most `limit`."""
        return [Window(*row) for row in self.database.execute("SELECT * FROM windows ORDER BY first LIMIT ?", (limit,))]

    def replace_window(self, window: Window, progress: Progress, count: int | None = None) -> None:
        """Replace a time window in the store by the parts of the window that remain to be read.

        The function does not commit. If the API's count of sounds in the window (`count`) never matched the sounds that
        the API listed (`progress.uneven`), the window and this count are recorded.
        progress: State of the window, with its remaining parts.
        """
        self.database.execute("DELETE FROM windows WHERE first = ?", (window.first,))
        for part in progress.windows:
            self.add_window(part)
        if progress.uneven:
            self.database.execute("INSERT OR REPLACE INTO uneven VALUES (?, ?, ?)", (window.first, window.last, count))

    def save_page(self, window: Window, page: Page) -> Progress:
        """Store a page of sounds from a time window, and the window's remaining parts; return the parts.

        Raises DataError if most sounds are outside the window: the crawl could not continue from them.
        """
        answer, indexed = self._summarise(window, page)
        nulls, ids = page.sounds.count(None), json.dumps(list(indexed))
        with transaction(self.database):
            progress = advance(window, answer, self.count_known(window))
            reached = window.last if progress.complete or answer.reached is None else answer.reached
            span = _milliseconds(window.first, reached if progress.complete else reached - 1)
            unseen = self.count(f"{_WITHIN} AND id NOT IN {_LISTED}", *span, ids)
            self.upsert(filter(None, page.sounds), indexed)
            self._record_nulls(window, page, indexed, reached, min(unseen, nulls))
            if progress.complete and not nulls:
                query = f"UPDATE sounds SET missing = ? WHERE {_WITHIN} AND id NOT IN {_LISTED}"
                self.database.execute(query, (int(time.time()), *span, ids))
            if window.page == 1 and progress != Progress():  # it is read again
                self.database.execute("DELETE FROM uneven WHERE first BETWEEN ? AND ?", (window.first, window.last))
            self.replace_window(window, progress, page.count)
        return progress

    def update_page(self, window: Window, page: Page, condition: str | None) -> tuple[Progress, Counter[str]]:
        """Update the stored sounds of a page; return its window's unread parts, and the number of changes per column.

        The page has sounds of one kind, such as one licence. No sound is marked as missing. The changes are counted for
        the columns that uploaders change: licence, AI preference and description.
        condition: SQL condition that selects the stored sounds of that kind. With it, parts of the window whose number
        of stored sounds equals the API's count need not be read. None: all parts must be read.
        """
        answer, indexed = self._summarise(window, page)
        sounds = [sound for sound in page.sounds if sound]
        query = f"SELECT id, {', '.join(CHANGING)} FROM sounds WHERE id IN {_LISTED}"
        with transaction(self.database):
            known = self.count_known(window, condition) if condition else 0
            before = {row[0]: row[1:] for row in self.database.execute(query, (json.dumps(list(indexed)),))}
            self.upsert(sounds, indexed)
        changes: Counter[str] = Counter()
        for sound in sounds:
            pairs = zip(CHANGING, before.get(sound.id, ()), strict=False)
            changes.update(name for name, value in pairs if value != getattr(sound, name))
        return advance(window, answer, known), changes

    def _summarise(self, window: Window, page: Page) -> tuple[PageListing, dict[int, int]]:
        """Return a summary of a search page, and a dict from the id of each sound on the page to its index time in ms.

        A sound that appears twice on the page counts once. The index time of a sound is its upload time. If this is
        outside the window, because Freesound's search index and database differ, the sound gets the index time of the
        sound before it on the page. Raises DataError if most sounds are outside the window.
        """
        sounds = [sound for sound in page.sounds if sound]
        times, outside, time_ms = dict[int, int](), list[Sound](), window.first * 1000
        for sound in sounds:
            # One second more, in case the search rounds times instead of cutting them.
            if window.first - 1 <= sound.created // 1000 <= window.last + 1:
                time_ms = sound.created
            else:
                outside.append(sound)
            times[sound.id] = time_ms
        if len(outside) > MAX_OUTSIDE and 2 * len(outside) > len(sounds):
            raise DataError(
                f"{self.path}: the API returned a sound uploaded at {format_time(outside[0].created)} for a search "
                f"from {format_time(window.first * 1000)} to {format_time(window.last * 1000)}; "
                "run the command again later"
            )
        seconds = [min(max(one // 1000, window.first), window.last) for one in times.values()]
        reached, nulls = max(seconds, default=None), len(page.sounds) - len(sounds)
        passed = sum(second != reached for second in seconds)
        return PageListing(page.count, len(times) + nulls, reached, passed + nulls), times

    def split_by_sounds(self, window: Window, sounds: int) -> list[Window]:
        """Split the time window into parts of `sounds` stored sounds each; sounds of one second stay together."""
        query = "SELECT indexed / 1000 FROM sounds WHERE indexed BETWEEN ? AND ? ORDER BY indexed"
        rows = self.database.execute(query, _milliseconds(window.first, window.last)).fetchall()
        begins = sorted({window.first, *(second for (second,) in rows[sounds - 1 :: sounds])})
        ends = [*(begin - 1 for begin in begins[1:]), window.last]
        return [Window(first, last, compared=True) for first, last in zip(begins, ends, strict=True)]

    def count_known(self, window: Window, condition: str | None = None) -> int:
        """Return the number of stored sounds in a time window or, with an SQL `condition`, of those that meet it.

        The number can be compared with the API's count. Sounds that the last search did not find are not counted.
        Without a condition, items that the API gave as null are counted too.
        """
        span = _milliseconds(window.first, window.last)
        if condition:
            return self.count(f"{_WITHIN} AND {condition}", *span)
        query = "SELECT COUNT(*) FROM nulls WHERE after_ms BETWEEN ? AND ?"
        return self.count(_WITHIN, *span) + int(self.database.execute(query, span).fetchone()[0])

    def upsert(self, sounds: Iterable[Sound], indexed: Mapping[int, int]) -> None:
        """Insert or replace sounds. indexed: Dict from id to index time, the upload time in the search index, in ms.

        The index time of a stored sound that is not in `indexed` stays unchanged.
        """
        site = self.fact("site", "")
        marks = ", ".join(f":{column}" for column in COLUMNS)
        updates = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
        self.database.executemany(
            f"INSERT INTO sounds ({', '.join(COLUMNS)}, indexed) VALUES ({marks}, coalesce(:indexed, :created)) "
            f"ON CONFLICT (id) DO UPDATE SET {updates}, indexed = coalesce(:indexed, indexed), missing = 0, gone = 0",
            (_column_values(sound, site) | {"indexed": indexed.get(sound.id)} for sound in sounds),
        )

    def _record_nulls(self, window: Window, page: Page, indexed: Mapping[int, int], reached: int, stored: int) -> None:
        """Record the null items of a search page: sounds without data that no earlier crawl has stored.

        Earlier records for this page or a later one are deleted first, if their upload times are between the start of
        the window and `reached`.

        Args:
            indexed: Dict from the id of each sound on the page to its index time in ms.
            reached: Last second of upload on the page.
            stored: Number of nulls on the page whose sounds an earlier crawl has stored. It is unknown which nulls
                these are, so the first ones on the page are not recorded.
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

    # sounds

    def count(self, condition: str = "NOT missing", *values: object) -> int:
        """Return the number of sounds that meet an SQL condition. values: Values for the question marks in it."""
        return int(self.database.execute(f"SELECT COUNT(*) FROM sounds WHERE {condition}", values).fetchone()[0])

    def forget_missing(self, since: float) -> None:
        """Remove the mark "missing" that sounds got at time `since` or later, except from sounds marked as gone."""
        self.database.execute("UPDATE sounds SET missing = 0 WHERE missing >= ? AND NOT gone", (int(since),))

    def missing_ids(self, before: float) -> list[int]:
        """Return the ids of sounds, not marked as gone, that searches stopped listing at time `before` or earlier."""
        query = "SELECT id FROM sounds WHERE missing BETWEEN 1 AND ? AND NOT gone ORDER BY id"
        return [sound_id for (sound_id,) in self.database.execute(query, (int(before),))]

    def mark_gone(self, ids: Iterable[int]) -> None:
        """Mark sounds as deleted from Freesound."""
        self.database.executemany("UPDATE sounds SET gone = 1 WHERE id = ?", ((sound_id,) for sound_id in ids))

    def nulls(self) -> list[Null]:
        """Return all items that the API returned as null, in order of time."""
        rows = self.database.execute(
            "SELECT after_ms, (SELECT MIN(indexed) FROM sounds WHERE indexed > after_ms), page, position "
            "FROM nulls ORDER BY after_ms, page, position"
        )
        return [Null(*row) for row in rows]

    def forget_uneven(self, last: int) -> None:
        """Remove the records of time windows whose counts differ from the API's, up to second `last`."""
        self.database.execute("DELETE FROM uneven WHERE last <= ?", (last,))

    def uneven_windows(self) -> list[tuple[int, int, int | None]]:
        """Return (first second, last second, API's count) of each window with fewer or more sounds than that count."""
        return self.database.execute("SELECT * FROM uneven ORDER BY first").fetchall()


def _column_values(sound: Sound, site: str) -> dict[str, object]:
    """Return a dict from each of COLUMNS to a sound's value in the database. site: Removed from preview addresses."""
    previews = {name.replace("-", "_"): sound.previews.get(name, "").removeprefix(site) or None for name in PREVIEWS}
    return {**vars(sound), "tags": " ".join(sound.tags), **previews}


def _milliseconds(first: int, last: int) -> tuple[int, int]:
    """Return the first and the last millisecond of a span of seconds."""
    return first * 1000, last * 1000 + 999
