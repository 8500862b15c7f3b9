"""Ranked CSVs, the file a participant hands in: one row per query, its text and then file names, best first."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from submission.editions import Edition
from submission.errors import SubmissionError
from submission.files import replacing
from submission.metrics import ranked_columns
from submission.scores import ScoreMatrix
from submission.table import Problem, Row, format_table, parse_table
from submission.truth import Truth, matrix_truth

# Longer texts are cut in messages.
SHOWN_CHARACTERS = 70


@dataclass(frozen=True)
class RankedList:
    """The answer to one query. line: where it starts in its file. file_names: (ranking length,), best first."""

    line: int
    query: str
    file_names: list[str]


def write_ranked_csv(matrix: ScoreMatrix, path: Path, edition: Edition) -> None:
    """Write the best clips of every query as a ranked CSV of an edition.

    Order: score descending, then file name ascending by code point. Texts and file names are written byte for byte,
    in UTF-8 with RFC 4180 quoting and \\n line ends. The file appears whole or not at all.
    Raises SubmissionError for a pool smaller than the ranking length, for clips that share a file name, for queries
    that share a text, and for any text or name that would make a file check_ranked_csv reports; OSError when writing
    fails.
    """
    truth = matrix_truth(matrix)
    length = edition.ranking_length
    if len(matrix.file_names) < length:
        raise SubmissionError(
            f"the pool has {len(matrix.file_names)} clips and a row of edition {edition.year} lists {length}; "
            "rank a larger pool"
        )
    columns = ranked_columns(matrix.values, matrix.file_names, length).tolist()
    rows = [
        [text, *(matrix.file_names[column] for column in best)]
        for text, best in zip(matrix.query_texts, columns, strict=True)
    ]
    data = format_table([edition.columns, *rows])
    _, problems = check_ranked_csv(data, edition, truth)
    _refuse(f"{path} would not pass its check", problems)
    with replacing(path) as file:
        file.write(data)


def read_ranked_csv(path: Path, edition: Edition, truth: Truth | None = None) -> list[RankedList]:
    """The ranked lists of a file in which check_ranked_csv finds no problem; SubmissionError for any other."""
    ranked, problems = check_ranked_csv(path.read_bytes(), edition, truth)
    _refuse(str(path), problems)
    return ranked


def check_ranked_csv(
    data: bytes, edition: Edition, truth: Truth | None = None
) -> tuple[list[RankedList], list[Problem]]:
    """Everything wrong with the bytes of a ranked CSV, in the order of its lines, and the lists that have their length.

    Always: UTF-8 without byte order mark, sound quoting, the edition's header, its number of columns in every row, at
    least one row, no query twice, no empty cell, no file twice in a row. With a truth also: no file name and no query
    it does not have, byte for byte, and a row for every query it has (reported last: no one line is to blame).
    Stricter than the official 2022 script, which skips empty lines, lets a repeated query's last row win, counts a
    repeated file twice, and fails on a missing query.
    """
    rows, problems = parse_table(data)
    if not rows:  # not a text file at all: its first line says as much as all the others
        return [], problems[:1]
    if rows[0].line == 1:
        problems += _header_problems(rows.pop(0), edition)
    if not rows and not problems:
        problems.append(Problem(1, "no row follows the header"))
    ranked: list[RankedList] = []
    line_of_query: dict[str, int] = {}
    for line, cells in rows:
        sentences = list(_row_problems(cells, edition, truth))
        query = cells[0] if cells else ""
        if line_of_query.setdefault(query, line) != line and query:
            sentences.append(f"the query {_shown(query)} is repeated; it stands on line {line_of_query[query]} already")
        problems += [Problem(line, sentence) for sentence in sentences]
        if len(cells) == len(edition.columns):
            ranked.append(RankedList(line, query, cells[1:]))
    problems.sort(key=lambda problem: problem.line or 0)
    if truth:
        problems += [
            Problem(None, f"no row for the query {_shown(text)} ({query.where})")
            for text, query in truth.queries.items()
            if text not in line_of_query
        ]
    return ranked, problems


def _header_problems(header: Row, edition: Edition) -> Iterator[Problem]:
    expected = f"the header of edition {edition.year} is {edition.columns[0]},{edition.columns[1]},..."
    expected += f",{edition.columns[-1]}"
    if len(header.cells) != len(edition.columns):
        yield Problem(1, f"found {len(header.cells)} of {len(edition.columns)} columns; {expected}")
        return
    for number, (found, wanted) in enumerate(zip(header.cells, edition.columns, strict=True), start=1):
        if found != wanted:
            yield Problem(1, f"column {number} is {_shown(found)} instead of {wanted}; {expected}")
            return


def _row_problems(cells: list[str], edition: Edition, truth: Truth | None) -> Iterator[str]:
    if not cells:
        yield "an empty line; remove it"
        return
    query, *names = cells
    if not query.strip():
        yield f"{edition.columns[0]} is empty"
    elif truth and query not in truth.queries:
        yield f"unknown query {_shown(query)}{_instead(truth.similar_query(query))}"
    if len(cells) != len(edition.columns):
        yield f"found {len(cells)} of {len(edition.columns)} columns: one query and {edition.ranking_length} file names"
        return
    columns_of_name: dict[str, list[str]] = {}
    for column, name in zip(edition.columns[1:], names, strict=True):
        columns_of_name.setdefault(name, []).append(column)
    for name, columns in columns_of_name.items():
        where = " and ".join(columns)
        if not name.strip():
            yield f"{where} {'is' if len(columns) == 1 else 'are'} empty"
            continue
        if len(columns) > 1:
            yield f"the file {_shown(name)} is listed more than once, as {where}"
        if truth and name not in truth.file_names:
            yield f"unknown file name {_shown(name)} in {where}{_instead(truth.similar_file_name(name))}"


def _instead(similar: str | None) -> str:
    if similar is None:
        return ""
    return f"; there is {_shown(similar)}, and blanks, HTML entities and Unicode forms must agree byte for byte"


def _shown(text: str) -> str:
    """Text in quotes on one line, its blanks visible, cut when long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


def _refuse(what: str, problems: list[Problem]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more; `check` lists them all)" if len(problems) > 1 else ""
        raise SubmissionError(f"{what}: {problems[0]}{more}")
