"""Index of a shard.

The index has one JSON line per finished series. A million lines are read in seconds.

{"key": "9f86...", "first": 0, "rows": 70, "crc32": 1234}     first row in the file of frames, rows, checksum
"""

import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.errors import DataError
from data_tools.files import parse_json

BLOCK = 1 << 20  # bytes that are read at a time
ANY = np.iinfo(np.int64).max  # rows, to skip the check whether the frames exist

# The usual form of a line: keys are mostly hexadecimal. Any other line, complete or damaged, is read by a JSON parser.
_LINE = re.compile(
    r'^\{"key": "([ !#-\[\]-~]*)", "first": (0|[1-9][0-9]{0,17}), "rows": ([1-9][0-9]{0,17})'
    r', "crc32": (0|[1-9][0-9]{0,9})\}$',
    re.MULTILINE | re.ASCII,
)


class Item(NamedTuple):
    """Line of the index of a shard (a part of a bank), for one stored series of vectors.

    first: Index of the first row of the series in the file of frames. rows: Number of its rows. checksum: CRC-32 of the
    key and the frames.
    """

    key: str
    first: int
    rows: int
    checksum: int


class Table(NamedTuple):
    """Columns of many lines of the index of a shard."""

    keys: list[str]
    first: "array[int]"
    rows: "array[int]"
    checksums: "array[int]"

    @classmethod
    def of(cls, *items: Item) -> "Table":
        """Return a table with one row per index line (Item) that is passed."""
        keys, *numbers = zip(*items, strict=True) if items else ((), (), (), ())
        return cls(list(keys), *(array("q", column) for column in numbers))

    def end(self) -> int:
        """Return the number of rows that the file of frames must have to contain all series of the table."""
        ends = np.array(self.first, np.int64) + np.array(self.rows, np.int64)
        return int(ends.max(initial=0))


def line_of(item: Item) -> bytes:
    """Format the index line of a stored series, with its line break."""
    named = {"key": item.key, "first": item.first, "rows": item.rows, "crc32": item.checksum}
    return json.dumps(named).encode() + b"\n"


def item_of(line: bytes, stored: int = ANY) -> Item | None:
    """Parse an index line to an Item; None if it is invalid, or its series ends after the first `stored` rows."""
    try:
        found = parse_json(line, "")
        item = Item(found["key"], found["first"], found["rows"], found["crc32"])
    except (DataError, KeyError, TypeError, AttributeError):
        return None
    whole = isinstance(item.key, str) and all(type(number) is int for number in item[1:])
    fits = whole and 0 <= item.first < item.first + item.rows <= stored and 0 <= item.checksum < 1 << 32
    return item if fits else None


def table_of(lines: bytes, stored: int = ANY) -> Table | None:
    """Parse index lines quickly; None if a line has an unusual form, or a series ends after row `stored`.

    stored: Number of rows in the file of frames.
    The usual form is the exact text that this kit writes. After None, the caller must parse the lines one by one.
    """
    try:
        found = _LINE.findall(lines.decode("ascii"))
    except UnicodeDecodeError:
        return None
    if len(found) != lines.count(b"\n"):
        return None
    keys, first, rows, checksums = zip(*found, strict=True) if found else ((), (), (), ())
    table = Table(list(keys), *(array("q", map(int, column)) for column in (first, rows, checksums)))
    return table if table.end() <= stored else None


def blocks(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the complete lines of a file after byte `start`, in blocks of a few thousand lines.

    Nothing is yielded if the file is missing.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        rest = b""
        while block := file.read(BLOCK):
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole + end


def keys_of(path: Path) -> Iterator[str]:
    """Yield the keys of an index file, without checking that their frames exist."""
    for lines in blocks(path):
        table = table_of(lines)
        yield from table.keys if table else (item.key for line in lines.splitlines() if (item := item_of(line)))
