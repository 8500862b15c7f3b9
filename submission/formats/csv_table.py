"""Strict CSV files.

CSV files in UTF-8 by RFC 4180: read strictly, with line numbers, and written byte for byte.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from data_tools.cli import counted
from data_tools.documents.problems import Problem, Problems

# A cell is quoted, with the quotes in it doubled, or has no quote, comma or line break. The csv module is more
# lenient: it takes a"b as a cell.
_CELL = r'(?:"(?:[^"]|"")*+"|[^",\r\n]*+)'
_ROW = re.compile(rf"{_CELL}(?:,{_CELL})*+(?:\r?\n)?")
_QUOTED = re.compile(r'"(?:[^"]|"")*+"')
# A first line that starts with one word, perhaps quoted, and then a separator other than a comma.
_OTHER_SEPARATOR = re.compile(rb'(?:\xef\xbb\xbf)?"?\w+"?([;\t|])')
_SEPARATORS = {b";": "semicolons", b"\t": "tabs", b"|": "vertical bars"}
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
# The error handler "surrogateescape" decodes a byte that is not UTF-8 to these; valid UTF-8 never decodes to them.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_QUOTING = "put a cell with a comma, a quote or a line break in double quotes, and double the quotes in it"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# First bytes of other kinds of files.
_FILE_SIGNATURES = {
    b"\x93NUMPY": "a NumPy file",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"%PDF-": "a PDF",
    b"{": "JSON, such as a manifest",
}
SHOWN_PROBLEMS = 20  # printed in full per kind; of further problems, only the line numbers are printed


class Row(NamedTuple):
    """A readable row: its cells as written, and the line of the file (from 1) where it starts."""

    line: int
    cells: list[str]


def parse_rows(data: bytes) -> Iterator[Row | Problem]:
    r"""Yield the rows of a CSV file one by one, and a Problem in place of each row that cannot be read.

    Cells are unchanged: blanks, entities and case stay. Lines end with \n or \r\n, which the last line may lack. A
    line break inside a quoted cell belongs to the cell. After a row that cannot be read, the next row begins at the
    line after its first line. A file that is wrong throughout (empty, UTF-16, another separator or line end) yields
    only one Problem, on line 1.
    """
    if fault := _fault_of_file(data):
        yield Problem(1, *fault)
        return
    file = io.BytesIO(data)
    number = 1
    if data.startswith(_BYTE_ORDER_MARK):
        file.seek(len(_BYTE_ORDER_MARK))
        yield Problem(
            1,
            "the file starts with a byte order mark; save it as UTF-8 without one",
            "the file starts with a byte order mark",
        )
    while line := file.readline():
        after = file.tell()
        lines = _whole_row(line, file)
        row = b"".join(lines).decode("utf-8", errors="surrogateescape")
        fault = (
            _fault_of_row(row)
            if lines
            else (f"a quote on this line is never closed; {_QUOTING}", "the quoting is broken")
        )
        if not fault:
            try:
                cells = next(csv.reader([row]))
                yield Row(number, cells)
            except csv.Error as error:  # a cell beyond csv.field_size_limit()
                fault = f"{error}; shorten the cell", "a cell is too long"
        if fault:
            yield Problem(number, *fault)
            file.seek(after)
        number += 1 if fault else len(lines)


def parse_table(data: bytes) -> tuple[list[Row], list[Problem]]:
    """Parse a CSV file like parse_rows; return its rows and its problems in two lists."""
    problems = Problems()
    return list(problems.except_for(parse_rows(data))), problems


def format_table(rows: Iterable[Iterable[str]]) -> bytes:
    r"""Return rows as the bytes of a CSV file: UTF-8, lines ending with \n, quotes only around cells that need them.

    The bytes equal those of pandas' to_csv(index=False), which the challenge's baseline uses. The only exception is a
    cell with a lone carriage return: pandas does not quote it, and readers then see the end of a row. A code point that
    UTF-8 cannot encode is written as bytes that parse_table reports as not UTF-8.
    """
    text = "".join(",".join(_quote_cell(cell) for cell in row) + "\n" for row in rows)
    return text.encode("utf-8", errors="surrogatepass")


def format_problems(problems: Sequence[Problem], shown: int | None = SHOWN_PROBLEMS) -> Iterator[str]:
    """Yield the problems as lines of text, at most `shown` problems of each kind (None: all problems).

    At the end, one line per kind counts the problems that were left out, with their line numbers: `lines 26-5226: 5201
    more problems of the kind: ...`.
    """
    times: Counter[str] = Counter()
    others: dict[str, list[Problem]] = {}
    for problem in problems:
        times[problem.kind] += 1
        if shown is None or times[problem.kind] <= shown:
            yield str(problem)
        else:
            others.setdefault(problem.kind, []).append(problem)
    for kind, folded in others.items():
        lines = sorted({problem.line for problem in folded if problem.line is not None})
        where = f"lines {_format_line_ranges(lines)}" if lines else "whole file"
        yield f"{where}: {counted(len(folded), 'more problem')} of the kind: {kind} (`check --all` prints each)"


def _whole_row(line: bytes, file: io.BytesIO) -> list[bytes]:
    """Return all lines of the CSV row that begins with `line`; its further lines are read from `file`.

    A complete row has an even number of quotes. Returns [] if the file ends before the row is complete.
    """
    lines = [line]
    is_open = line.count(b'"') % 2
    while is_open:
        line = file.readline()
        if not line:
            return []
        lines.append(line)
        is_open ^= line.count(b'"') % 2
    return lines


def _fault_of_file(data: bytes) -> tuple[str, str] | None:
    """Return (message, kind) of a fault of the whole file, such as another encoding or separator; None without one."""
    if not data:
        return "the file is empty", "the file is empty"
    if kind := next((name for start, name in _FILE_SIGNATURES.items() if data.startswith(start)), None):
        return f"the file is {kind}, not a CSV; give the CSV itself, or export one", "the file is not a CSV"
    first = data[: data.find(b"\n")] if b"\n" in data else data
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or first.count(b"\0") > len(first) // 3:
        return "the file is not UTF-8 but UTF-16, as some programs save text; save it in UTF-8", "the text is not UTF-8"
    if b"\n" not in data and b"\r" in data.rstrip(b"\r"):
        return (
            "lines end with a carriage return only; save the file with \\n at the end of each line",
            "line ends are wrong",
        )
    if separator := _OTHER_SEPARATOR.match(first):
        name = _SEPARATORS[separator[1]]
        return (
            f"columns are separated by {name}; separate them by commas, then check the file again",
            "columns are not separated by commas",
        )
    return None


def _fault_of_row(row: str) -> tuple[str, str] | None:
    """Return (message, kind) of a row's fault: not UTF-8, a NUL byte, or broken quoting; None for a correct row."""
    if invalid := _NOT_UTF8.search(row):
        byte = ord(invalid[0]) - 0xDC00
        return (
            f"the row is not UTF-8 (character {invalid.start() + 1} is the byte 0x{byte:02X}, {chr(byte)!r} in "
            "Latin-1); save the file in UTF-8",
            "the text is not UTF-8",
        )
    if "\0" in row:
        return "the row contains a NUL byte; remove it", "a row contains a NUL byte"
    if _ROW.fullmatch(row):
        return None
    if "\r" in _QUOTED.sub("", row.removesuffix("\n").removesuffix("\r")):
        text = "a carriage return is outside quotes; end lines with \\n, and quote cells with a carriage return"
        return text, "line ends are wrong"
    return f"the row's quoting is broken; {_QUOTING}", "the quoting is broken"


def _quote_cell(cell: str) -> str:
    """Put a CSV cell in quotes if it needs them."""
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell


def _format_line_ranges(lines: Sequence[int]) -> str:
    """Format increasing line numbers as text; consecutive numbers become a range, e.g. `3-5, 9`."""
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
