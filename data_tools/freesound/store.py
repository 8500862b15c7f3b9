"""SQLite store of a crawl.

It has a row per sound, and the blocks of ids that were read.

Open it with any tool: `sqlite3 -csv freesound.sqlite "select id, description from sounds"`.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from data_tools.errors import KitError

DAY = 86_400.0  # seconds
PAGE_SIZE = 150  # ids in a block: the API's maximum of results
COLUMNS = ("id", "name", "description", "tags", "username", "license", "gen_ai_preference", "duration", "preview")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sounds ({", ".join(COLUMNS)}, PRIMARY KEY (id));
CREATE TABLE IF NOT EXISTS blocks (block INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS facts (name PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS requests (at);
"""

log = logging.getLogger(__name__)


@contextmanager
def open_store(path: Path, create: bool = False) -> Iterator["Store"]:
    """Open a store for a block.

    Args:
        path: SQLite file.
        create: Make a missing file.

    Raises:
        KitError: The file is missing, or is no store.
    """
    if not create and not (path.is_file() and path.stat().st_size):  # SQLite would make a store of an empty file
        raise KitError(f"{path}: no such store; make it with lbar data crawl {path}")
    try:
        with closing(sqlite3.connect(path, timeout=60)) as database:
            if create:
                database.execute("PRAGMA journal_mode = WAL")  # another process may read it
                database.executescript(_SCHEMA)
            yield Store(database)
    except sqlite3.Error as error:
        raise KitError(f"{path}: not a usable store ({error}); free disk space, or name another file") from None


class Store:
    """An open store. A change is one transaction: a kill loses at most the one under way."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Wrap an open database."""
        self.database = database

    def fact(self, name: str) -> Any:
        """Return a stored fact, such as the number of sounds on Freesound."""
        row = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    def set_fact(self, name: str, value: float | None) -> None:
        """Store a fact."""
        with self.database:
            self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def blocks_read(self) -> set[int]:
        """Return the blocks that were read."""
        return {row[0] for row in self.database.execute("SELECT block FROM blocks")}

    def save(self, found: Sequence[dict[str, Any]], block: int | None = None) -> None:
        """Store sounds that a search has found. block: The block that is now read."""
        with self.database:
            insert = f"INSERT OR REPLACE INTO sounds ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)})"
            self.database.executemany(insert, map(_row, found))
            if block is not None:
                self.database.execute("INSERT OR IGNORE INTO blocks (block) VALUES (?)", (block,))

    def take_request(self, limits: Iterable[tuple[int, float]]) -> None:
        """Wait until another request is allowed, and count it, so that restarts share the limits.

        limits: Number of requests in each span, and the span in seconds, at most a day; rising.
        """
        query = "SELECT at FROM requests WHERE at <= ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        for limit, span in limits:
            row = self.database.execute(query, (time.time(), limit - 1)).fetchone()
            if row and (wait := row[0] + span - time.time()) > 0:
                if wait > 120:
                    log.info("the daily limit is reached; continuing in %.1f h (you may stop the command)", wait / 3600)
                time.sleep(wait)
        with self.database:
            self.database.execute("DELETE FROM requests WHERE at < ?", (time.time() - DAY,))
            self.database.execute("INSERT INTO requests VALUES (?)", (time.time(),))

    def forget_blocks(self) -> None:
        """Note that all blocks are unread; the sounds stay."""
        with self.database:
            self.database.execute("DELETE FROM blocks")

    def sounds(self, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of all sounds, by rising id."""
        yield from self.database.execute(f"SELECT {columns} FROM sounds ORDER BY id")

    def __len__(self) -> int:
        """Return the number of sounds."""
        return int(self.database.execute("SELECT COUNT(*) FROM sounds").fetchone()[0])


def _row(sound: dict[str, Any]) -> dict[str, Any]:
    preview = (sound.get("previews") or {}).get("preview-hq-mp3")
    return {name: sound.get(name) for name in COLUMNS} | {"tags": json.dumps(sound.get("tags")), "preview": preview}
