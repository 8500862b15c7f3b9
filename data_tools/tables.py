"""CSV tables with a header."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import read_text, write_text

Row = tuple[int, dict[str, str]]  # number of the line, and text by column


def read_table(
    path: Path, columns: Iterable[str], fallback_encoding: str | None = None, delimiter: str = ","
) -> list[Row]:
    """Read the rows of a table; texts are unchanged.

    Args:
        path: CSV file, RFC 4180.
        columns: Columns that the table must have.
        fallback_encoding: Tried if the file is not UTF-8.
        delimiter: Separator of the cells.

    Returns:
        Number of the line, and text by column, of each row.

    Raises:
        DataError: A column is missing or doubled, a row is blank or has too many or too few cells, or a cell extends
            over several lines: an unclosed quote would otherwise swallow all rows up to the next one.
    """
    text = io.StringIO(read_text(path, fallback_encoding), newline="")
    rows: list[Row] = []
    header: list[str] = []
    line = 0
    try:
        for cells in (reader := csv.reader(text, delimiter=delimiter, strict=True)):
            line += 1
            where = f"{path}, line {line}"
            if reader.line_num > line:
                raise DataError(f"{where}: a cell extends to line {reader.line_num}; close its quote, or join them")
            if not cells:
                raise DataError(f"{where}: the line is blank; remove it")
            if line == 1:
                header, named = cells, ", ".join(cells)[:300]
                if missing := [name for name in columns if name not in header]:
                    raise DataError(f"{path}: no column {', '.join(missing)}; it has {named}")
                if len(set(header)) < len(header):
                    raise DataError(f"{path}: two columns have the same name ({named}); rename one")
            elif len(cells) != len(header):
                raise DataError(f"{where}: {len(cells)} cells for {len(header)} columns; quote cells with a delimiter")
            else:
                rows.append((line, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise DataError(f'{path}, line {line + 1}: not a CSV table ({error}); write a quote in a cell as ""') from None
    if not rows:
        raise DataError(f"{path}: has no rows")
    return rows


def caption_columns(path: Path, row: Mapping[str, str]) -> list[str]:
    """Return the columns caption_1 .. caption_n of a row, in order. Raises DataError for a gap, or none."""
    names = {name for name in row if re.fullmatch("caption_[0-9]+", name)}
    ordered = [f"caption_{number}" for number in range(1, len(names) + 1)]
    if not names or names != set(ordered):
        raise DataError(f"{path}: needs the columns caption_1, caption_2 .. without a gap; has {', '.join(row)[:300]}")
    return ordered


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table as Clotho's are: comma, LF, quotes only where needed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
