"""CSV as RFC 4180 has it, in UTF-8: read strictly with line numbers, and written byte for byte."""

import csv
import re
from collections.abc import Iterable
from typing import NamedTuple

# One cell is quoted, with its own quotes doubled, or holds no quote, comma or line break at all. csv alone is more
# lenient: it takes a"b as a cell.
_CELL = r'(?:"(?:[^"]|"")*+"|[^",\r\n]*+)'
_ROW = re.compile(rf"{_CELL}(?:,{_CELL})*+(?:\r?\n)?")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
# What the error handler "surrogateescape" makes of a byte that is not UTF-8; valid UTF-8 never decodes to these.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_QUOTING = "a cell with a comma, a quote or a line break stands in double quotes, its own quotes doubled"
_BYTE_ORDER_MARK = "\ufeff"


class Row(NamedTuple):
    """A readable row: its cells as written, and the line of the file (from 1) on which it starts."""

    line: int
    cells: list[str]


class Problem(NamedTuple):
    """Something wrong with a file. line: where (from 1), or None when no one line is to blame."""

    line: int | None
    sentence: str

    def __str__(self) -> str:
        return f"{'whole file' if self.line is None else f'line {self.line}'}: {self.sentence}"


def parse_table(data: bytes) -> tuple[list[Row], list[Problem]]:
    """Split the bytes of a CSV file into rows.

    Cells come out verbatim: blanks, entities and case are kept. Lines end with \\n or \\r\\n, the last one may lack it;
    a line break inside a quoted cell belongs to the cell. A row that cannot be read is a Problem instead, and
    reading goes on with the line after the one it starts on.
    """
    if not data:
        return [], [Problem(1, "the file is empty")]
    text = data.decode("utf-8", errors="surrogateescape")
    rows: list[Row] = []
    problems: list[Problem] = []
    if text.startswith(_BYTE_ORDER_MARK):
        problems.append(Problem(1, "the file starts with a byte order mark; save it as UTF-8 without one"))
        text = text.removeprefix(_BYTE_ORDER_MARK)
    lines = _LINE.findall(text)
    start = 0
    while start < len(lines):
        end = _row_end(lines, start)
        row = "".join(lines[start:end])
        fault = _fault(row) if end else f"a quote on this line has no partner; {_QUOTING}"
        if not fault:
            try:
                rows.append(Row(start + 1, next(csv.reader([row]))))
            except csv.Error as error:  # a cell beyond csv.field_size_limit()
                fault = f"{error}; shorten the cell"
        if fault:
            problems.append(Problem(start + 1, fault))
        start = start + 1 if fault else end
    return rows, problems


def format_table(rows: Iterable[Iterable[str]]) -> bytes:
    """Rows as the bytes of a CSV file: UTF-8, lines ending with \\n, quotes only round cells that need them.

    The bytes equal those of pandas' to_csv(index=False), which the challenge's baseline uses, but for a cell that
    holds a lone carriage return: pandas leaves it bare, and a reader then sees the end of a row.
    A code point that UTF-8 cannot hold is written as bytes that parse_table reports as not UTF-8.
    """
    text = "".join(",".join(_quoted(cell) for cell in row) + "\n" for row in rows)
    return text.encode("utf-8", errors="surrogatepass")


def _row_end(lines: list[str], start: int) -> int:
    """Index after the row's last line; 0 if the row never ends. A whole row holds an even number of quotes."""
    if lines[start].count('"') % 2 == 0:
        return start + 1
    return next((end + 1 for end in range(start + 1, len(lines)) if lines[end].count('"') % 2), 0)


def _fault(row: str) -> str | None:
    if _NOT_UTF8.search(row):
        return "not UTF-8; save the file in UTF-8"
    if "\0" in row:
        return "holds a NUL byte; remove it"
    if not _ROW.fullmatch(row):
        return f"broken quoting; {_QUOTING}"
    return None


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell
