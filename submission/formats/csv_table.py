"""CSV as RFC 4180 has it, in UTF-8: read strictly with line numbers, and written byte for byte."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from data_tools.documents.problems import Problem, Problems
from data_tools.tables import holds_rows

# One cell is quoted, with its own quotes doubled, or holds no quote, comma or line break at all. csv alone is more
# lenient: it takes a"b as a cell.
_CELL = r'(?:"(?:[^"]|"")*+"|[^",\r\n]*+)'
_ROW = re.compile(rf"{_CELL}(?:,{_CELL})*+(?:\r?\n)?")
_QUOTED = re.compile(r'"(?:[^"]|"")*+"')
# A first line that no comma divides first: one word, perhaps quoted, and then another separator.
_OTHER_SEPARATOR = re.compile(rb'(?:\xef\xbb\xbf)?"?\w+"?([;\t|])')
_SEPARATORS = {b";": "semicolons", b"\t": "tabs", b"|": "vertical bars"}
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
# What the error handler "surrogateescape" makes of a byte that is not UTF-8; valid UTF-8 never decodes to these.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_QUOTING = "a cell with a comma, a quote or a line break stands in double quotes, its own quotes doubled"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What a file starts with that is no text at all.
_KINDS = {
    b"\x93NUMPY": "a NumPy file",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"%PDF-": "a PDF",
    b"{": "JSON, such as a manifest",
}
SHOWN_PROBLEMS = 20  # of one kind that are printed in full; of the others the lines


class Row(NamedTuple):
    """A readable row: its cells as written, and the line of the file (from 1) on which it starts."""

    line: int
    cells: list[str]


def parse_rows(data: bytes) -> Iterator[Row | Problem]:
    """The rows of a CSV file, one at a time; nothing is kept of those already given.

    Cells come out verbatim: blanks, entities and case are kept. Lines end with \\n or \\r\\n, the last one may lack it;
    a line break inside a quoted cell belongs to the cell. A row that cannot be read is a Problem instead, and
    reading goes on with the line after the one it starts on. A file that is none of this throughout (empty, UTF-16,
    with another separator or line end) is one Problem on line 1.
    """
    if fault := _fault_of_file(data):
        yield Problem(1, *fault)
        return
    file = io.BytesIO(data)
    number, width = 1, 0
    if data.startswith(_BYTE_ORDER_MARK):
        file.seek(len(_BYTE_ORDER_MARK))
        yield Problem(1, "the file starts with a byte order mark; save it as UTF-8 without one", "byte order mark")
    while line := file.readline():
        after = file.tell()
        lines = _whole_row(line, file)
        row = b"".join(lines).decode("utf-8", errors="surrogateescape")
        fault = _fault_of_row(row) if lines else (f"a quote on this line has no partner; {_QUOTING}", "broken quoting")
        if not fault:
            try:
                cells = next(csv.reader([row]))
                if width and holds_rows([line.decode() for line in lines], cells, ",", width):
                    goes_on = f"a quoted cell goes on to line {number + len(lines) - 1}, over lines that could be rows"
                    fault = f"{goes_on}; write a quote that is text twice, or the cell on one line", "broken quoting"
                else:
                    width = width or len(cells)
                    yield Row(number, cells)
            except csv.Error as error:  # a cell beyond csv.field_size_limit()
                fault = f"{error}; shorten the cell", "a cell too long"
        if fault:
            yield Problem(number, *fault)
            file.seek(after)
        number += 1 if fault else len(lines)


def parse_table(data: bytes) -> tuple[list[Row], list[Problem]]:
    """All that parse_rows gives, rows and problems apart."""
    problems = Problems()
    return list(problems.except_for(parse_rows(data))), problems


def format_table(rows: Iterable[Iterable[str]]) -> bytes:
    """Rows as the bytes of a CSV file: UTF-8, lines ending with \\n, quotes only round cells that need them.

    The bytes equal those of pandas' to_csv(index=False), which the challenge's baseline uses, but for a cell that
    holds a lone carriage return: pandas leaves it bare, and a reader then sees the end of a row.
    A code point that UTF-8 cannot hold is written as bytes that parse_table reports as not UTF-8.
    """
    text = "".join(",".join(_quoted(cell) for cell in row) + "\n" for row in rows)
    return text.encode("utf-8", errors="surrogatepass")


def format_problems(problems: Sequence[Problem], shown: int | None = SHOWN_PROBLEMS) -> Iterator[str]:
    """Problems as lines of text: the first `shown` of each kind in full (None: all), then a line a kind for its others.

    That line has the number of every line of the file that is concerned: `lines 26-5226: 5201 more of: ...`.
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
        where = f"lines {_spans(lines)}" if lines else "whole file"
        yield f"{where}: {len(folded)} more of: {kind} (`check --all` prints each)"


def _whole_row(line: bytes, file: io.BytesIO) -> list[bytes]:
    """The lines of the row that starts with `line`; none if it never ends. A whole row has an even number of quotes."""
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
    """(sentence, kind) of what makes every line of a file wrong in the same way."""
    if not data:
        return "the file is empty", "empty file"
    if kind := next((name for start, name in _KINDS.items() if data.startswith(start)), None):
        return f"{kind}, not a CSV; give or export the CSV itself", "another kind of file"
    first = data[: data.find(b"\n")] if b"\n" in data else data
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or first.count(b"\0") > len(first) // 3:
        return "not UTF-8 but UTF-16, as some programs save text; save the file in UTF-8", "not UTF-8"
    if b"\n" not in data and b"\r" in data.rstrip(b"\r"):
        return "lines end with a carriage return alone; save the file with \\n at the end of each", "line ends"
    if separator := _OTHER_SEPARATOR.match(first):
        name = _SEPARATORS[separator[1]]
        return f"columns are separated by {name}; separate them by commas, then check the file again", "separators"
    return None


def _fault_of_row(row: str) -> tuple[str, str] | None:
    if bad := _NOT_UTF8.search(row):
        byte = ord(bad[0]) - 0xDC00
        found = f"character {bad.start() + 1} is the byte 0x{byte:02X}, {chr(byte)!r} in Latin-1"
        return f"not UTF-8 ({found}); save the file in UTF-8", "not UTF-8"
    if "\0" in row:
        return "holds a NUL byte; remove it", "NUL byte"
    if _ROW.fullmatch(row):
        return None
    if "\r" in _QUOTED.sub("", row.removesuffix("\n").removesuffix("\r")):
        hint = "end lines with \\n, and quote a cell that holds one"
        return f"a carriage return stands outside quotes; {hint}", "line ends"
    return f"broken quoting; {_QUOTING}", "broken quoting"


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell


def _spans(lines: Sequence[int]) -> str:
    """Rising line numbers, runs of them as first-last: 3-5, 9."""
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
