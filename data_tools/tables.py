"""CSV tables with a header."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from data_tools.errors import KitError
from data_tools.files import read_text, write_text

DELIMITERS = ",;\t"
Row = tuple[int, dict[str, str]]  # number of the line, and text by column


def read_table(path: Path, columns: Iterable[str], fallback_encoding: str | None = None) -> list[Row]:
    """Read the rows of a table; texts are unchanged.

    Args:
        path: CSV file, RFC 4180; the header shows whether commas, semicolons or tabs separate the cells.
        columns: Columns that the table must have.
        fallback_encoding: Tried if the file is not UTF-8.

    Returns:
        Number of the line, and text by column, of each row.

    Raises:
        KitError: A column is missing or doubled, a line between rows is blank, a row has too many or too few cells, or
            a cell extends over several lines: an unclosed quote would otherwise swallow all rows up to the next one.
    """
    text = read_text(path, fallback_encoding)
    delimiter = max(DELIMITERS, key=text.splitlines()[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    try:
        header = reader.fieldnames or []
        named = ", ".join(header)[:300]
        if not header:
            raise KitError(f"{path}, line 1: blank; remove it")
        if missing := [name for name in columns if name not in header]:
            raise KitError(f"{path}: no column {', '.join(missing)}; it has {named}")
        if len(set(header)) < len(header):
            raise KitError(f"{path}: two columns have the same name ({named}); rename one")
        for line, row in enumerate(reader, 2):
            where = f"{path}, line {line}"
            if reader.line_num != line:
                raise KitError(f"{where}: blank, or a cell up to line {reader.line_num}; join them, or close its quote")
            if None in row or None in row.values():  # what the reader calls a cell too many or too few
                raise KitError(f"{where}: not {len(header)} cells; quote cells with a delimiter")
            rows.append((line, row))
    except csv.Error as error:
        where = f"{path}, line {len(rows) + 2}"
        raise KitError(f'{where}: not a CSV table ({error}); write a quote in a cell as ""') from None
    if not rows:
        raise KitError(f"{path}: has no rows")
    return rows


def caption_columns(path: Path, row: Mapping[str, str]) -> list[str]:
    """Return the columns caption_1 .. caption_n of a row, in order. Raises KitError for a gap, or none."""
    names = {name for name in row if re.fullmatch("caption_[0-9]+", name)}
    ordered = [f"caption_{number}" for number in range(1, len(names) + 1)]
    if not names or names != set(ordered):
        raise KitError(f"{path}: needs the columns caption_1, caption_2 .. without a gap; has {', '.join(row)[:300]}")
    return ordered


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table as Clotho's are: comma, LF, quotes only where needed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
