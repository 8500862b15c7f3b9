"""Ranked CSV (2022 to 2024).

Ranked CSVs, the submission format up to 2024: one row per query, its text and then file names, best first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.cli import counted
from data_tools.documents.problems import Fault, Problem, Problems, shown
from submission.arrays import Ints
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.columns import (
    EMPTY_LINE,
    TRAILING_COMMA,
    QueryColumn,
    edition_options,
    editions_with_header,
    format_editions,
    matrix_edition,
    raise_first_problem,
    rows_without_index,
    unknown_name_fault,
    without_trailing_comma,
    write_checked,
)
from submission.formats.csv_table import Row, format_table
from submission.formats.score_matrix import Labels, ScoreMatrix
from submission.formats.truth import Truth, matrix_truth
from submission.ordering import ranked_columns

# A number with a decimal point or an exponent: a score in place of a file name.
_SCORE = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=e))(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class RankedList:
    """File names ranked for one query, best first: a row of a ranked CSV. line: Line where the row starts."""

    line: int
    query: str
    file_names: list[str]


def write_ranked_csv(matrix: ScoreMatrix, path: Path, edition: Edition) -> None:
    r"""Write the best clips of every query as a ranked CSV of an edition.

    Order: descending score, then file name in code point order. Texts and file names are written byte for byte, in
    UTF-8 with RFC 4180 quoting and \n line ends. The file is written completely or not at all.
    Raises SubmissionError for a pool smaller than the ranking length, clips with the same file name, and queries with
    the same text. Also for any text or name that check_ranked_csv would report. Raises OSError when writing fails.
    """
    edition = edition.for_pool(len(matrix.file_names))
    length = edition.ranking_length
    if (n_clips := len(matrix.file_names)) < length:
        raise SubmissionError(
            f"the pool has {counted(n_clips, 'clip')}, but a row of edition {edition.name} lists {length} clips; rank "
            "a larger pool, or use edition custom"
        )
    write_best(matrix, ranked_columns(matrix.values, matrix.file_names, length), path, edition)


def write_best(labels: ScoreMatrix | Labels, columns: Ints, path: Path, edition: Edition) -> None:
    """Write a ranked CSV from the column numbers of each query's best clips.

    columns: (Q, ranking length), best clip first. labels: Queries and clips of the score matrix. Raises the same errors
    as write_ranked_csv.
    """
    names = ([labels.file_names[column] for column in best] for best in columns)
    _write_lists(zip(labels.query_texts, names, strict=True), path, edition, matrix_truth(labels))


def write_ranked_lists(ranked: list[RankedList], path: Path, edition: Edition) -> None:
    """Write ranked lists, such as those of another edition, as a ranked CSV of `edition`; longer lists are cut.

    The edition `custom` accepts shorter lists, such as those of a small pool, if all have the same length. Raises
    SubmissionError for a list that is too short, because its further names are unknown. Also for anything that
    check_ranked_csv would report. Raises OSError when writing fails.
    """
    edition = edition.for_pool(max(len(answer.file_names) for answer in ranked))
    length = edition.ranking_length
    for answer in ranked:
        if len(answer.file_names) < length:
            raise SubmissionError(
                f"line {answer.line} lists {counted(len(answer.file_names), 'file name')}, but a row of edition "
                f"{edition.name} needs {length}; write the file from the score matrix"
            )
    _write_lists(((answer.query, answer.file_names[:length]) for answer in ranked), path, edition, None)


def read_ranked_csv(path: Path, edition: Edition, truth: Truth | None = None) -> list[RankedList]:
    """Read the ranked lists of a CSV. Raises SubmissionError if check_ranked_csv finds a problem in it."""
    ranked, problems = check_ranked_csv(path.read_bytes(), edition, truth)
    raise_first_problem(str(path), problems)
    return ranked


def check_ranked_csv(
    data: bytes, edition: Edition, truth: Truth | None = None
) -> tuple[list[RankedList], list[Problem]]:
    """Check the bytes of a ranked CSV; return the lists of complete rows, and all problems in the order of lines.

    truth: The queries and file names that the file should have; None if unknown. Checks without it:

    - UTF-8 without byte order mark, and correct quoting;
    - the edition's header, the edition's number of columns in every row, and at least one row;
    - no repeated query, no empty cell, and no file twice in one row.

    With a truth, all file names and queries must be in the truth, byte for byte. Each query of the truth needs a row;
    missing rows are reported last.
    Row numbers in the first column, a comma at the end of lines, and a missing header are reported; the rest of the
    file is then checked as if they were corrected. For a score matrix, or a file with another separator, only this
    fault is reported.
    In the edition `custom`, lists contain the whole pool if it is small. Without a truth, the header determines the
    size of such a pool.
    This check is stricter than the official 2022 script. That script skips empty lines, uses only the last row of a
    repeated query, counts a repeated file twice, and fails on a missing query.
    """
    problems = Problems()
    ranked: list[RankedList] = []
    queries = QueryColumn(edition, truth)
    edition = edition.for_pool(len(truth.file_names) if truth else 0)
    n_rows = 0
    for row in problems.except_for(rows_without_index(data)):
        if row.line == 1:
            header = row.cells
            if truth is None and header == list(edition.columns[: len(header)]):
                edition = edition.for_pool(len(header) - 1)
            if header != list(edition.columns) and (other_edition := matrix_edition(header)):
                sentence = (
                    f"this is a CSV of all scores, but edition {edition.name} needs ranked lists of file names; add "
                    f"--edition {other_edition.name}, or convert the file to ranked lists with `convert`"
                )
                return [], [*problems, Problem(1, sentence, "the file is a score matrix")]
            problems.add(1, _header_faults(header, edition, truth))
            if not _is_data_row(header, edition, truth):
                continue
        n_rows += 1
        problems.add(row.line, _row_faults(row, edition, truth, queries))
        cells = without_trailing_comma(row.cells, len(edition.columns))
        if len(cells) == len(edition.columns):
            ranked.append(RankedList(row.line, cells[0], cells[1:]))
    if not n_rows and not problems:
        problems.append(Problem(1, "no row follows the header; add one row per query", "the file has no row"))
    return ranked, queries.add_missing(problems) if n_rows else problems


def _write_lists(lists: Iterable[tuple[str, list[str]]], path: Path, edition: Edition, truth: Truth | None) -> None:
    """Write (query, file names) rows as a ranked CSV. Raises SubmissionError if the result has a problem."""
    data = format_table([edition.columns, *([query, *names] for query, names in lists)])
    _, problems = check_ranked_csv(data, edition, truth)
    write_checked(path, data, problems)


def _is_data_row(cells: list[str], edition: Edition, truth: Truth | None) -> bool:
    """Return whether the first line of a ranked CSV is a ranked list, so that the header is missing."""
    known = bool(truth and cells and cells[0] in truth.queries)
    return known or (
        len(cells) == len(edition.columns) and all(cell.lower().endswith(AUDIO_SUFFIXES) for cell in cells[1:])
    )


def _header_faults(header: list[str], edition: Edition, truth: Truth | None) -> Iterator[Fault]:
    """Yield the faults of a ranked CSV's header: missing, of another edition, or with wrong columns."""
    columns = edition.columns
    expected = f"the header of edition {edition.name} is {columns[0]},{columns[1]},...,{columns[-1]}"
    wrong = [
        f"column {number} is {shown(found)} instead of {wanted}"
        for number, (found, wanted) in enumerate(zip(header, columns, strict=False), start=1)
        if found != wanted
    ]
    others = editions_with_header(header)
    if _is_data_row(header, edition, truth):
        yield f"the header is missing; {expected}", "header"
        return
    if wrong and others:
        yield f"this is the header of {format_editions(others)}: add {edition_options(others)}; {expected}", "header"
        return
    if without_trailing_comma(header, len(columns)) != header:
        yield TRAILING_COMMA
    elif len(header) != len(columns):
        yield f"found {len(header)} of {len(columns)} columns; {expected}", "header"
    if wrong:
        more = f" (and {len(wrong) - 1} more columns)" if len(wrong) > 1 else ""
        yield f"{wrong[0]}{more}; {expected}", "header"


def _row_faults(row: Row, edition: Edition, truth: Truth | None, queries: QueryColumn) -> Iterator[Fault]:
    """Yield the faults of one row: in its query, its number of columns, and its file names."""
    if not row.cells:
        yield EMPTY_LINE
        return
    yield from queries.faults(row.line, row.cells[0])
    cells = without_trailing_comma(row.cells, len(edition.columns))
    if cells != row.cells:
        yield TRAILING_COMMA
    if len(cells) != len(edition.columns):
        needed = f"a row needs one query and {edition.ranking_length} file names"
        yield f"found {len(cells)} of {len(edition.columns)} columns: {needed}", "a row has missing or extra columns"
        return
    yield from _name_faults(cells[1:], edition, truth)


def _name_faults(names: list[str], edition: Edition, truth: Truth | None) -> Iterator[Fault]:
    """Yield the faults of one row's file names: scores instead of names, and empty, repeated or unknown names."""
    known: frozenset[str] = truth.file_names if truth else frozenset()
    if all(_SCORE.fullmatch(name) and name not in known for name in names):
        text = f"the row has scores in place of file names: {edition.columns[1]} is {shown(names[0])}; write file names"
        yield text, "a row has scores instead of file names"
        return
    columns_of_name: dict[str, list[str]] = {}
    for column, name in zip(edition.columns[1:], names, strict=True):
        columns_of_name.setdefault(name, []).append(column)
    for name, columns in columns_of_name.items():
        where = " and ".join(columns)
        if not name.strip():
            yield f"{where} {'is' if len(columns) == 1 else 'are'} empty; write a file name", "a file name is empty"
            continue
        if len(columns) > 1:
            text = f"the file {shown(name)} is listed more than once, as {where}; keep one of them"
            yield text, "a file is listed more than once"
        if truth and name not in known:
            yield unknown_name_fault(name, where, truth)
