"""SQLite store of a crawl: one row per sound, and which blocks of ids were read.

Open it with any tool: `sqlite3 -csv freesound.sqlite "select id, description from sounds where not gone"`.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from data_tools.errors import DataError

TEXTS = ("name", "description", "tags", "username", "license", "gen_ai_preference", "created", "preview")
COLUMNS = ("id", *TEXTS, "duration", "filesize", "is_explicit")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sounds (
    id INTEGER PRIMARY KEY, {", ".join(f"{name} TEXT" for name in TEXTS)},
    duration REAL, filesize INTEGER, is_explicit INTEGER,
    absent INTEGER NOT NULL DEFAULT 0,  -- not found by the last search for it
    gone INTEGER NOT NULL DEFAULT 0     -- absent while the index of the search was whole
);
CREATE TABLE IF NOT EXISTS blocks (block INTEGER PRIMARY KEY, settled INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS requests (at REAL NOT NULL);
"""


@contextmanager
def open_store(path: Path, create: bool = False, read_only: bool = False) -> Iterator["Store"]:
    """Open a store for a block.

    Args:
        path: SQLite file.
        create: Make a missing file.
        read_only: Change nothing, so that another process may write.

    Raises:
        DataError: The file is missing, or is no store.
    """
    if not path.is_file() and not create:
        raise DataError(f"{path}: no such store; make it with lbar data crawl {path}")
    try:
        mode = "?mode=ro" if read_only else ""
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}{mode}", timeout=60, uri=True)) as database:
            if not read_only:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
            database.execute("SELECT id, gone FROM sounds LIMIT 1")
            yield Store(database)
    except sqlite3.Error as error:
        raise DataError(f"{path}: not a usable store ({error}); free disk space, or name another file") from None


class Store:
    """An open store. Every block is written in one transaction: a kill loses at most the block under way.

    A block is provisional until the search index is known to be whole, see `settle`.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        """Wrap an open database."""
        self.database = database

    def fact(self, name: str, default: Any = None) -> Any:
        """Return a stored fact, such as the number of sounds on Freesound."""
        row = self.database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else default

    def set_fact(self, name: str, value: float | str) -> None:
        """Store a fact."""
        with self.database:
            self.database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def settled_blocks(self) -> set[int]:
        """Return the blocks that were read."""
        return {row[0] for row in self.database.execute("SELECT block FROM blocks WHERE settled")}

    def save(
        self,
        ids: Iterable[int],
        sounds: Sequence[dict[str, Any]],
        unread: Collection[int] = (),
        block: int | None = None,
    ) -> None:
        """Store what a search for ids has found.

        Args:
            ids: The ids of the search.
            sounds: The sounds that it found; the others are absent.
            unread: Ids that the server cannot describe: they stay as they are.
            block: Block that is now read, provisionally.
        """
        absent = [(number,) for number in ids if number not in unread]
        marks = ", ".join(f":{name}" for name in COLUMNS)
        with self.database:
            self.database.executemany("UPDATE sounds SET absent = 1 WHERE id = ?", absent)
            insert = f"INSERT OR REPLACE INTO sounds ({', '.join(COLUMNS)}) VALUES ({marks})"
            self.database.executemany(insert, map(_row, sounds))
            if block is not None:
                self.database.execute("INSERT OR REPLACE INTO blocks VALUES (?, 0)", (block,))

    def settle(self) -> None:
        """Count provisional blocks as read, and absent sounds as gone."""
        with self.database:
            self.database.execute("UPDATE blocks SET settled = 1")
            self.database.execute("UPDATE sounds SET gone = absent WHERE gone != absent")

    def forget_provisional(self) -> None:
        """Count provisional blocks as unread, and absent sounds as they were before."""
        with self.database:
            self.database.execute("DELETE FROM blocks WHERE NOT settled")
            self.database.execute("UPDATE sounds SET absent = gone WHERE gone != absent")

    def sounds(self, columns: str, condition: str = "1") -> Iterator[tuple[Any, ...]]:
        """Yield columns of the sounds that are still on Freesound, by rising id. condition: In SQL."""
        yield from self.database.execute(f"SELECT {columns} FROM sounds WHERE NOT gone AND {condition} ORDER BY id")

    def __len__(self) -> int:
        """Return the number of sounds that are still on Freesound."""
        return int(self.database.execute("SELECT COUNT(*) FROM sounds WHERE NOT gone").fetchone()[0])


def _row(sound: dict[str, Any]) -> dict[str, Any]:
    tags, previews = sound.get("tags"), sound.get("previews") or {}
    row = {name: sound.get(name) for name in COLUMNS}
    return {**row, "tags": json.dumps(tags), "preview": previews.get("preview-hq-mp3")}
