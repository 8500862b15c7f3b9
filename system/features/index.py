"""The index of a shard: a JSON line per finished series, read a million in seconds.

{"key": "9f86...", "first": 0, "rows": 70, "crc32": 1234}     first row in the file of frames, rows, checksum
"""

import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError

BLOCK = 1 << 20  # bytes that are read at a time
ANY = np.iinfo(np.int64).max  # rows, where nobody asks whether the frames are there

# A line as it is written: keys are mostly hexadecimal. Any other line, whole or damaged, is read by a JSON parser.
_LINE = re.compile(
    r'^\{"key": "([ !#-\[\]-~]*)", "first": (0|[1-9][0-9]{0,17}), "rows": ([1-9][0-9]{0,17})'
    r', "crc32": (0|[1-9][0-9]{0,9})\}$',
    re.MULTILINE | re.ASCII,
)


class Item(NamedTuple):
    """A line of the index: one series. checksum: CRC-32 of key and frames."""

    key: str
    first: int
    rows: int
    checksum: int


class Table(NamedTuple):
    """The same of many lines, a column each."""

    keys: list[str]
    first: "array[int]"
    rows: "array[int]"
    checksums: "array[int]"

    @classmethod
    def of(cls, *items: Item) -> "Table":
        keys, *numbers = zip(*items, strict=True) if items else ((), (), (), ())
        return cls(list(keys), *(array("q", column) for column in numbers))

    def end(self) -> int:
        """The row behind the last one that a line speaks of."""
        ends = np.array(self.first, np.int64) + np.array(self.rows, np.int64)
        return int(ends.max(initial=0))


def line_of(item: Item) -> bytes:
    """The line of a series, with its end."""
    named = {"key": item.key, "first": item.first, "rows": item.rows, "crc32": item.checksum}
    return json.dumps(named).encode() + b"\n"


def item_of(line: bytes, stored: int = ANY) -> Item | None:
    """What a line says; None for a line that is none, or speaks of more than the `stored` rows."""
    try:
        found = parse_json(line, "")
        item = Item(found["key"], found["first"], found["rows"], found["crc32"])
    except (DataError, KeyError, TypeError, AttributeError):
        return None
    whole = isinstance(item.key, str) and all(type(number) is int for number in item[1:])
    fits = whole and 0 <= item.first < item.first + item.rows <= stored and 0 <= item.checksum < 1 << 32
    return item if fits else None


def table_of(lines: bytes, stored: int = ANY) -> Table | None:
    """What many lines say, the last one with its end; None where one of them is not written as line_of writes it, or
    speaks of more than the `stored` rows: they are to be read one by one."""
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
    """The whole lines of a file from a byte on, some thousand at a time; nothing where there is no file."""
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
    """The keys that an index names, whether or not the frames are there."""
    for lines in blocks(path):
        table = table_of(lines)
        yield from table.keys if table else (item.key for line in lines.splitlines() if (item := item_of(line)))
