"""SQLite as the store and the folder use it: whole transactions, and errors that name the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_tools.errors import DataError


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. database: in autocommit mode."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk has ended it already
            database.execute("ROLLBACK")
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises DataError, which names path, in place of SQLite's errors: no room, no permission, a damaged file."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a damaged schema is quoted
        hint = "see that it is whole, that it and its folder may be written, and that the disk has room"
        raise DataError(f"{path}: SQLite cannot use it ({error}); {hint}") from None
