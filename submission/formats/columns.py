"""Common checks of both CSV formats.

Common checks of ranked CSVs and matrix CSVs: their header and their column of queries.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import mode

from data_tools.cli import counted
from data_tools.documents.problems import Fault, Problem, shown
from data_tools.files import writing
from submission.editions import EDITIONS, Edition
from submission.errors import SubmissionError
from submission.formats.csv_table import Row, parse_rows
from submission.formats.truth import Truth, suggestion

EMPTY_LINE: Fault = ("the line is empty; remove it", "a line is empty")
TRAILING_COMMA: Fault = ("a comma at the end of the line adds a column; remove it", "a line ends with a comma")
INDEX_COLUMN: Fault = (
    "the first column has row numbers, as pandas writes them without index=False; remove it",
    "the first column has row numbers",
)


OTHER_SET, DIFFERING, UNKNOWN_QUERY, UNKNOWN_NAME = (  # kinds of problems
    "the file belongs to another set",
    "queries differ slightly from known queries",
    "a query is unknown",
    "a file name is unknown",
)


class QueryColumn:
    """Queries of a file, row by row, compared with an edition and, if given, with a truth."""

    def __init__(self, edition: Edition, truth: Truth | None) -> None:
        """Prepare to read the queries of a file. truth: Queries that the file must have; None: any queries."""
        self._name = edition.query_column
        self._truth = truth
        self._line_of: dict[str, int] = {}

    def faults(self, line: int, query: str) -> Iterator[Fault]:
        """Yield the faults of the query in line number `line`: empty, not in the truth, or also in an earlier line."""
        if not query.strip():
            yield f"{self._name} is empty", "a query is empty"
            return
        if self._truth and query not in self._truth.queries:
            yield f"unknown query {shown(query)}{suggestion(self._truth.similar_queries, query)}", UNKNOWN_QUERY
        if self._line_of.setdefault(query, line) != line:
            first = self._line_of[query]
            yield f"the query {shown(query)} is repeated; it is already on line {first}", "a query is repeated"

    def add_missing(self, problems: list[Problem]) -> list[Problem]:
        """Return `problems`, plus one problem for every query of the truth that has no row in the file.

        If one cause explains the unknown queries, such as captions of another split, a single problem with this cause
        replaces the problems of the unknown queries.
        """
        if not self._truth:
            return problems
        known, line_of = self._truth.queries, self._line_of
        unknown = [query for query in line_of if query not in known]
        if len(unknown) > len(line_of) / 2 and (note := _note_on_differing(unknown, self._truth)):
            return [*_without_kinds(problems, UNKNOWN_QUERY), Problem(None, note, DIFFERING)]
        if unknown and len(unknown) == len(line_of):
            note = (
                "no query of this file is known: the file belongs to another split or data set; give the captions of "
                "that split or data set"
            )
            return [*_without_kinds(problems, UNKNOWN_QUERY, UNKNOWN_NAME), Problem(None, note, OTHER_SET)]
        missing = ((text, query) for text, query in known.items() if text not in line_of)
        return problems + [
            Problem(None, f"no row for the query {shown(text)} ({query.where})", "a query has no row")
            for text, query in missing
        ]


def _without_kinds(problems: list[Problem], *kinds: str) -> list[Problem]:
    """Return the problems whose kind is not in `kinds`."""
    return [problem for problem in problems if problem.kind not in kinds]


def _note_on_differing(unknown: list[str], truth: Truth) -> str:
    """Return a message if half of the unknown queries or more are similar to queries of the truth; "" otherwise."""
    similar = {query: pair for query in unknown if (pair := truth.similar_queries.to(query))}
    if len(similar) * 2 < len(unknown):
        return ""
    difference = mode(how for _, how in similar.values())
    query, known = next((query, known) for query, (known, how) in similar.items() if how == difference)
    return (
        f"{counted(len(similar), 'query')} of this file differ from known queries, most in {difference}: "
        f"{shown(query)} should be {shown(known)}; submit the queries as published, byte for byte"
    )


def unknown_name_fault(name: str, where: str, truth: Truth) -> Fault:
    """Return the message and the kind of fault for a file name that is not among the file names of the truth.

    truth: The queries and file names that the file should have.
    where: Column that contains the name, for the message.
    """
    return f"unknown file name {shown(name)} in {where}{suggestion(truth.similar_file_names, name)}", UNKNOWN_NAME


def without_trailing_comma(cells: list[str], width: int) -> list[str]:
    """Return the cells of a row without the empty last cell that a comma at the end of the line adds."""
    return cells[:-1] if len(cells) == width + 1 and not cells[-1] else cells


def rows_without_index(data: bytes) -> Iterator[Row | Problem]:
    """Yield the rows of CSV bytes, without the row numbers that pandas writes in the first column.

    Such row numbers are reported as a Problem. A Problem is also yielded in place of each row that cannot be read.
    """
    first_column = 0
    query_columns = {edition.query_column for edition in EDITIONS.values()}
    for row in parse_rows(data):
        if isinstance(row, Row):
            header = row.cells if row.line == 1 else []
            if header[:1] in ([""], ["Unnamed: 0"]) and query_columns.issuperset(header[1:2] or [""]):
                first_column = 1
                yield Problem(1, *INDEX_COLUMN)
            row = Row(row.line, row.cells[first_column:])
        yield row


def is_ranked(header: list[str]) -> bool:
    """Return whether the header is that of a ranked CSV: its second column is the first rank of some edition."""
    return len(header) > 1 and header[1] in {f"{edition.rank_prefix}1" for edition in EDITIONS.values()}


def matrix_edition(header: list[str]) -> Edition | None:
    """Return the edition whose matrix CSV has this header (query column, then file names); None without one."""
    if is_ranked(header):
        return None
    matrix = (edition for edition in EDITIONS.values() if edition.output == "matrix")
    return next((edition for edition in matrix if header[:1] == [edition.query_column]), None)


def editions_with_header(header: list[str]) -> list[Edition]:
    """Return the editions whose matrix CSV or ranked CSV has this header."""
    if matrix := matrix_edition(header):
        return [matrix]
    return [edition for edition in EDITIONS.values() if header == list(edition.for_pool(len(header) - 1).columns)]


def format_editions(editions: list[Edition]) -> str:
    """Format a list of editions, e.g. `edition 2023 and 2024`; `no edition` for an empty list."""
    return f"edition {' and '.join(edition.name for edition in editions)}" if editions else "no edition"


def edition_options(editions: list[Edition]) -> str:
    """Return the command-line options that choose one of the editions, e.g. `--edition 2023 or --edition 2024`."""
    return " or ".join(f"--edition {edition.name}" for edition in editions)


def write_checked(path: Path, data: bytes, problems: list[Problem]) -> None:
    """Write `data` to a file completely. Raises SubmissionError and writes nothing if `problems` is not empty."""
    raise_first_problem(f"{path} is not written, because it would not pass `check`", problems)
    with writing(path) as file:
        file.write(data)


def raise_first_problem(where: str, problems: list[Problem]) -> None:
    """Raise SubmissionError if a file (`where`) has problems: the message has the first problem and their number."""
    if problems:
        others = f" (and {len(problems) - 1} more problems; `check` lists all)" if len(problems) > 1 else ""
        raise SubmissionError(f"{where}: {problems[0]}{others}")
