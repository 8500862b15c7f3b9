"""Ranked lists (2022 to 2024) and score tables (2025), as CSV.

`check_csv` finds every problem of either file. `write_csv` writes only files without problems.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.errors import KitError
from data_tools.files import writing
from submission.editions import EDITIONS, Edition
from submission.formats.problems import Problem, require_none
from submission.formats.score_matrix import Labels, ScoreMatrix
from submission.formats.truth import relevant_names, require_distinct
from submission.ordering import ranked_columns

TOO_LARGE = 2.0**128 - 2.0**103  # from here, float32 rounds to infinity
Row = tuple[int, list[str]]  # line number and cells


class Submission(NamedTuple):
    """Content of a CSV.

    Attributes:
        rows: Line number and cells, which begin with the query.
    """

    header: list[str]
    rows: list[Row]
    problems: list[Problem]


def write_csv(matrix: ScoreMatrix, path: Path, edition: Edition) -> None:
    """Write the CSV that an edition requires.

    Raises KitError for a matrix that a CSV cannot represent.
    """
    with writing(path) as file:
        file.write(csv_of(matrix, edition))


def write_best(labels: Labels, best: np.ndarray, path: Path, edition: Edition) -> None:
    """Write a ranked CSV.

    Args:
        best: (Q, ranking_length) columns of each query's best clips, best first.
    """
    with writing(path) as file:
        file.write(_ranked_csv(labels, best, edition))


def csv_of(matrix: ScoreMatrix, edition: Edition) -> bytes:
    """Return the CSV that an edition requires.

    Its bytes are those of pandas' `to_csv(index=False)`.
    """
    names = matrix.file_names
    if edition.output == "matrix":
        scores = (row.astype(str).tolist() for row in matrix.values)
        return _checked_csv(matrix, edition, [edition.query_column, *names], scores)
    length = edition.for_pool(len(names)).ranking_length
    if len(names) < length:
        raise KitError(f"a row of edition {edition.name} lists {length} clips; rank a larger pool")
    return _ranked_csv(matrix, ranked_columns(matrix.values, names, length), edition)


def _ranked_csv(labels: Labels, best: np.ndarray, edition: Edition) -> bytes:
    header = edition.for_pool(len(labels.file_names)).columns
    return _checked_csv(labels, edition, header, np.array(labels.file_names, object)[best].tolist())


def _checked_csv(labels: Labels, edition: Edition, header: list[str], cells: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([query, *row] for query, row in zip(labels.query_texts, cells, strict=True))
    data = text.getvalue().encode()
    if problems := check_csv(data, edition, labels).problems:
        raise KitError(f"the CSV would have a problem: {problems[0]}")
    return data


def check_csv(data: bytes, edition: Edition, truth: Labels | None = None) -> Submission:
    """Check a CSV by an edition and a truth.

    Stricter than the official 2022 script, which skips empty lines, uses the last row of a repeated query, and counts
    a repeated file twice.
    """
    if truth:
        require_distinct(truth)
    try:
        reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
        rows = [(reader.line_num, cells) for cells in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        return Submission([], [], [Problem(None, "no CSV in UTF-8 with commas and double quotes", str(error))])
    header = rows.pop(0)[1] if rows else []
    if not _fits(header, edition):
        wanted = f"{edition.query_column},FILE,..." if edition.output == "matrix" else ",".join(edition.columns)
        kind = f"the header must be {wanted}, without row numbers of pandas and byte order mark"
        if others := [other.name for other in EDITIONS.values() if _fits(header, other)]:
            kind = f"this is a file of edition {' or '.join(others)}; give --edition {others[-1]}"
        return Submission(header, [], [Problem(1, kind, f"{','.join(header):.60}")])
    width, pool = len(header), frozenset(truth.file_names if truth else ())
    wrong = [(line, len(cells)) for line, cells in rows if len(cells) != width]
    problems = [] if rows else [Problem(1, "no row follows the header")]
    problems += [Problem(line, f"a row needs {width} cells", f"found {count}") for line, count in wrong]
    rows = [(line, cells) for line, cells in rows if len(cells) == width]
    if edition.output == "matrix":
        problems += [Problem(1, "no column for the file", name) for name in sorted(pool.difference(header[1:]))]
        problems += [*_name_problems(1, header[1:], pool), *_score_problems(rows)]
    else:
        problems += [problem for line, cells in rows for problem in _name_problems(line, cells[1:], pool)]
    return Submission(header, rows, [*problems, *_query_problems(rows, truth)])


def read_csv(path: Path, edition: Edition, truth: Labels) -> ScoreMatrix:
    """Read a CSV as a score matrix, whose ids are texts and names.

    In a ranked CSV, the clips of a row score as many points as ranks follow, and all others 0. Scores that float32
    would make equal are replaced by their ranks.

    Raises KitError for a file with problems.
    """
    header, rows, problems = check_csv(path.read_bytes(), edition, truth)
    require_none(path, problems)
    queries, cells = [row[0] for _, row in rows], [row[1:] for _, row in rows]
    if edition.output == "matrix":
        names, depth = header[1:], None
        exact = np.array(cells, float)
        values = exact.astype(np.float32)
        if len(np.unique(values)) < len(np.unique(exact)):  # as of probabilities near 0 or 1: keep their order
            values = np.unique(exact, return_inverse=True)[1].reshape(exact.shape).astype(np.float32)
    else:
        names, depth = truth.file_names, len(header) - 1
        column_of = {name: column for column, name in enumerate(names)}
        values = np.zeros((len(rows), len(names)), np.float32)
        columns = np.array([[column_of[name] for name in row] for row in cells])
        np.put_along_axis(values, columns, np.arange(depth, 0, -1)[None], axis=1)
    relevant = relevant_names(truth)
    return ScoreMatrix(
        queries, queries, names, names, [relevant[query] for query in queries], values=values, depth=depth
    )


def editions_of(path: Path) -> list[Edition]:
    """Return the editions whose header a CSV has."""
    header = check_csv(path.read_bytes().partition(b"\n")[0], EDITIONS["2022"]).header
    return [edition for edition in EDITIONS.values() if _fits(header, edition)]


def _fits(header: list[str], edition: Edition) -> bool:
    if edition.output == "matrix":
        return len(header) > 1 and header[0] == edition.query_column
    return header == edition.for_pool(len(header) - 1).columns


def _query_problems(rows: list[Row], truth: Labels | None) -> Iterator[Problem]:
    """Yield empty, repeated, unknown and missing queries."""
    known, first = dict.fromkeys(truth.query_texts if truth else ()), dict[str, int]()
    for line, (query, *_) in rows:
        if not query.strip():
            yield Problem(line, "the query is empty")
        elif first.setdefault(query, line) != line:
            yield Problem(line, "the query is repeated", query)
        elif truth and query not in known:
            yield Problem(line, "unknown query", query, known)
    yield from (Problem(None, "no row for the query", query) for query in known if query not in first)


def _score_problems(rows: list[Row]) -> Iterator[Problem]:
    for line, (_, *cells) in rows:
        for cell in cells:
            if not _is_finite(cell):
                yield Problem(line, "a score is not a finite number", cell)


def _is_finite(cell: str) -> bool:
    """Return whether a cell is a number that float32 can represent."""
    try:
        return abs(float(cell)) < TOO_LARGE
    except ValueError:
        return False


def _name_problems(line: int, names: list[str], pool: frozenset[str]) -> Iterator[Problem]:
    """Yield empty, repeated and, if a pool is known, unknown names."""
    if not all(map(str.strip, names)):
        yield Problem(line, "a file name is empty")
    if len(set(names)) < len(names):
        listed = Counter(names).items()
        yield from (Problem(line, "a file is listed twice", name) for name, times in listed if times > 1)
    if pool and not pool.issuperset(names):
        yield from (Problem(line, "unknown file name", name, pool) for name in names if name not in pool)
