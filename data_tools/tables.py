"""Read CSV tables strictly.

CSV tables: reads them strictly, reports file and line of each fault, and writes them.
"""

import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from data_tools.errors import DataError
from data_tools.files import read_text, write_text

Quoting = Literal["csv", "none"]
_QUOTINGS: dict[Quoting, Any] = {"csv": csv.QUOTE_MINIMAL, "none": csv.QUOTE_NONE}
MAX_DIGITS = 9  # of a column's number
MAX_SHOWN = 300  # characters in a list of names
MAX_ROWS = 10  # faulty rows named in a message

log = logging.getLogger(__name__)


def read_table(
    path: Path,
    columns: Iterable[str],
    fallback_encoding: str | None = None,
    delimiter: str = ",",
    quoting: Quoting = "csv",
    hint: str = "",
) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table with a header: (number of the first line, dict from column to text, unchanged).

    Args:
        columns: Required columns; other columns are read too.
        quoting: "csv" is RFC 4180. "none" treats quotes as text.
        hint: Advice at the end of the message about broken quotes.

    If an unclosed quote at the start of a cell has joined several lines into one row, each line is read as a row, with
    quotes as text, and a warning names them. Raises DataError for missing or doubled columns, no rows, broken quotes,
    blank lines and rows of another length. The message names the first MAX_ROWS blank lines and rows of another length,
    and counts all.
    """
    records = _read_records(path, read_text(path, fallback_encoding), delimiter, quoting, hint)
    _, header, lines = next(records)
    if len(lines) > 1:
        raise DataError(
            f"{path}, line 1: a quote opens a column's name and closes on line {len(lines)}; write all column "
            "names on one line"
        )
    _check_header(path, header, columns)
    rows: list[tuple[int, list[str]]] = []
    swallowing = []
    for line, values, lines in records:
        if not holds_rows(lines, values, delimiter, len(header)):
            rows.append((line, values))
        elif swallowed := rows_joined_by_quote(lines, delimiter, len(header)):
            swallowing.append(line)
            rows += enumerate(swallowed, line)
        else:
            raise DataError(
                f"{path}, line {line}: a quoted cell extends to line {line + len(lines) - 1}, over lines that "
                f"begin or end like rows; {_quoting_cure(hint)}, or write the cell on one line"
            )
    _require_complete_rows(path, header, rows, delimiter)
    if not rows:
        raise DataError(f"{path}: has a header but no rows; add rows")
    if swallowing:
        message = "%s, line %s: unclosed quotes (%d); each line was read as a row, with its quotes as text"
        log.warning(message, path, joined_names(map(str, swallowing)), len(swallowing))
    return [(line, dict(zip(header, values, strict=True))) for line, values in rows]


def _read_records(
    path: Path, text: str, delimiter: str, quoting: Quoting, hint: str
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number of the first line, values, lines as text) for every record of a CSV table, the header first."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=_QUOTINGS[quoting])
    while (start := reader.line_num) < len(lines):
        try:
            values = next(reader)
        except csv.Error as error:
            raise DataError(f"{path}, line {start + 1}: not a CSV table ({error}); {_quoting_cure(hint)}") from None
        yield start + 1, values, lines[start : reader.line_num]


def _quoting_cure(hint: str) -> str:
    """Return the advice for the message about a wrong quote in a table, followed by `hint`."""
    return f'if a quote is text, write it twice within a quoted cell ("""Stop"" he says"){hint}'


def rows_joined_by_quote(lines: Sequence[str], delimiter: str, width: int) -> list[list[str]]:
    r"""Return the rows that an unclosed quote has joined into one record, or [].

    Args:
        lines: All lines of one record. width: Number of the table's columns.
    Returns: the values of each line, quotes as text; [] if a line does not have the table's form or the record has one
    line. Also [] if a doubled quote shows that a program quoted the cell.

    >>> rows_joined_by_quote(['a.wav,"Stop\n', 'b.wav,A dog\n', 'c.wav,go"\n'], ",", 2)
    [['a.wav', '"Stop'], ['b.wav', 'A dog'], ['c.wav', 'go"']]
    """
    if len(lines) < 2 or width < 2 or any('""' in line for line in lines):
        return []
    rows = [_plain_values(line, delimiter) for line in lines]
    return rows if all(_is_row(row, width) for row in rows) else []


def holds_rows(lines: Sequence[str], values: Sequence[str], delimiter: str, width: int) -> bool:
    r"""Return whether a record seems to be several rows that a quote has joined: its lines begin or end like rows.

    The first value of the record is compared with the first value of each later line. If the first value is prose, the
    last value of the record is compared instead, with the last value of each line but the last. The record seems to
    be several rows if a line has enough values for a row, and the compared values have the same form. Forms are a file
    name with a certain suffix, a number, and a single word. In a table of one column, the result is True for every
    record of several lines.

    Args:
        lines, values: Lines and values of one record. width: Number of the table's columns.

    >>> holds_rows(['x.wav,"Stop, he says\n', 'y.wav,A dog, a cat\n', 'w.wav,go"\n'], ["x.wav", "..."], ",", 2)
    True
    >>> holds_rows(['x.wav,"A big crowd.\n', 'About 1,000 people"\n'], ["x.wav", "..."], ",", 2)
    False
    """
    if len(lines) < 2 or width < 2:
        return len(lines) > 1
    column, others = (0, lines[1:]) if _kind_of_cell(values[0]) else (-1, lines[:-1])
    form = _kind_of_cell(values[column])
    for line in others:
        cells = _plain_values(line, delimiter)
        is_long_enough = _is_row(cells, width) or (form[:1] == "." and len(cells) >= width)
        if form and _kind_of_cell(cells[column]) == form and is_long_enough:
            return True
    return False


def _kind_of_cell(cell: str) -> str:
    r"""Classify a cell: return the suffix of a file's name, or "number", or "word"; "" for prose.

    >>> [_kind_of_cell(cell) for cell in ("Dog barking.WAV", "12", "a_b-c", "A dog.", "Two\nlines.wav")]
    ['.wav', 'number', 'word', '', '']
    """
    if match := re.fullmatch(r"[^\n]*\S(\.[A-Za-z][A-Za-z0-9]{1,4})", cell):
        return match[1].lower()
    return "number" if cell.isdecimal() else "word" if re.fullmatch(r"[\w-]+", cell) else ""


def _plain_values(line: str, delimiter: str) -> list[str]:
    """Split a line at the delimiter, without regard to quotes."""
    return line.rstrip("\r\n").split(delimiter)


def _is_row(values: Sequence[str], width: int) -> bool:
    """Return whether a line's values can be a row: one per column, and none that begins with a blank, as in prose."""
    return len(values) == width and not any(value[:1].isspace() for value in values[1:])


def _check_header(path: Path, header: list[str], columns: Iterable[str]) -> None:
    """Raise DataError for a header that is blank, has two equal names, or lacks one of `columns`."""
    if not header:
        raise DataError(f"{path}, line 1: the line is blank; remove it")
    if missing := [name for name in columns if name not in header]:
        raise DataError(f"{path}: no column {', '.join(missing)}; the first line has {', '.join(header)}")
    if len(set(header)) < len(header):
        raise DataError(
            f"{path}, line 1: two columns have the same name (the columns are {', '.join(header)}); rename one of them"
        )


def _require_complete_rows(
    path: Path, header: list[str], rows: Iterable[tuple[int, list[str]]], delimiter: str
) -> None:
    """Raise DataError for blank lines and rows that do not fit the header, with one message line for each."""
    name = "a comma" if delimiter == "," else f"the delimiter {delimiter!r}"
    faults = []
    for line, values in rows:
        if len(values) == len(header):
            continue
        cure = f"quote values that contain {name}" if len(values) > len(header) else "complete the row"
        problem = (
            f"{len(values)} values for {len(header)} columns; {cure}" if values else "the line is blank; remove it"
        )
        faults.append(f"{path}, line {line}: {problem}")
    if faults:
        total = [f"{path}: {len(faults)} lines in all are blank or have too many or few values"]
        total = total if len(faults) > MAX_ROWS else []
        message = "\n".join(faults[:MAX_ROWS] + total)
        raise DataError(message)


def joined_names(names: Iterable[str]) -> str:
    """Join names with commas into one line of at most MAX_SHOWN characters.

    >>> joined_names(["a", "b"])
    'a, b'
    """
    text = ", ".join(names)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} .."


def caption_columns(path: Path, row: Mapping[str, str]) -> list[str]:
    """Return the names of the columns caption_1 .. caption_n among the columns of a row, in order.

    Raises DataError for a row without them, a missing number, and a number of more than MAX_DIGITS digits.
    """
    names = [name for name in row if re.fullmatch("caption_[1-9][0-9]*", name)]
    if long := [name for name in names if len(name) > len("caption_") + MAX_DIGITS]:
        raise DataError(
            f"{path}: the column {long[0][:40]}.. has a number of more than {MAX_DIGITS} digits; rename the column"
        )
    ordered = [f"caption_{number}" for number in range(1, len(names) + 1)]
    if not names or set(names) != set(ordered):
        raise DataError(f"{path}: needs the columns caption_1, caption_2 .. without a gap; found {joined_names(row)}")
    return ordered


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table in Clotho's format: comma, LF, quoted only if needed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
