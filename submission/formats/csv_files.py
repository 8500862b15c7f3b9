"""CSV files of the challenge.

Ranked lists (2022 to 2024), and all scores (2025).

`check_csv` finds every problem of either file. `write_csv` writes only files without problems.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.files import writing
from submission.editions import EDITIONS, Edition
from submission.errors import SubmissionError
from submission.formats.problems import Problem, require_none
from submission.formats.score_matrix import Labels, ScoreMatrix
from submission.formats.truth import relevant_names, require_distinct
from submission.ordering import ranked_columns

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

    Raises SubmissionError for a matrix that a CSV cannot represent.
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
    if edition.output == "matrix":
        header = [edition.query_column, *matrix.file_names]
        return _checked_csv(matrix, edition, header, (scores.astype(str).tolist() for scores in matrix.values))
    length = edition.for_pool(len(matrix.file_names)).ranking_length
    if len(matrix.file_names) < length:
        raise SubmissionError(f"a row of edition {edition.name} lists {length} clips; rank a larger pool")
    return _ranked_csv(matrix, ranked_columns(matrix.values, matrix.file_names, length), edition)


def _ranked_csv(labels: Labels, best: np.ndarray, edition: Edition) -> bytes:
    header = edition.for_pool(len(labels.file_names)).columns
    return _checked_csv(labels, edition, header, np.array(labels.file_names, dtype=object)[best].tolist())


def _checked_csv(labels: Labels, edition: Edition, header: list[str], cells: Iterable[list[str]]) -> bytes:
    rows = ([query, *row] for query, row in zip(labels.query_texts, cells, strict=True))
    data = csv_bytes([header, *rows])
    if problems := check_csv(data, edition, labels).problems:
        raise SubmissionError(f"the CSV would have a problem: {problems[0]}")
    return data


def csv_bytes(rows: Iterable[Iterable[str]]) -> bytes:
    """Return a CSV with commas, LF, and quotes only where they are needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def check_csv(data: bytes, edition: Edition, truth: Labels | None = None) -> Submission:
    """Check a CSV by an edition and a truth.

    Stricter than the official 2022 script, which skips empty lines, uses the last row of a repeated query, and counts
    a repeated file twice.
    """
    if truth:
        require_distinct(truth)
    try:
        reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
        (_, header), *rows = [(reader.line_num, cells) for cells in reader] or [(1, [])]
    except (UnicodeDecodeError, csv.Error) as error:
        return Submission([], [], [Problem(None, "no CSV in UTF-8 with commas and double quotes", str(error))])
    if problem := _header_problem(header, edition):
        return Submission(header, [], [problem])
    if not rows:
        return Submission(header, [], [Problem(1, "no row follows the header")])
    width = len(header)
    wrong = [
        Problem(line, f"a row needs {width} cells", f"found {len(row)}") for line, row in rows if len(row) != width
    ]
    rows = [(line, cells) for line, cells in rows if len(cells) == width]
    pool = frozenset(truth.file_names if truth else ())
    if edition.output == "matrix":
        missing = sorted(set(pool).difference(header[1:]))
        problems = [Problem(1, "no column for the file", name) for name in missing]
        problems += [*_name_problems(1, header[1:], pool), *_score_problems(rows)]
    else:
        problems = [problem for line, cells in rows for problem in _name_problems(line, cells[1:], pool)]
    return Submission(header, rows, [*wrong, *problems, *_query_problems(rows, truth)])


def read_csv(path: Path, edition: Edition, truth: Labels) -> ScoreMatrix:
    """Read a CSV as a score matrix, whose ids are texts and names.

    In a ranked CSV, the clips of a row score as many points as ranks follow, and all others 0.

    Raises SubmissionError for a file with problems.
    """
    header, rows, problems = check_csv(path.read_bytes(), edition, truth)
    require_none(path, problems)
    queries = [cells[0] for _, cells in rows]
    relevant, is_ranked = relevant_names(truth), edition.output == "ranked"
    names = truth.file_names if is_ranked else header[1:]
    cells = [row[1:] for _, row in rows]
    if is_ranked:
        column_of = {name: column for column, name in enumerate(names)}
        columns = np.array([[column_of[name] for name in row] for row in cells])
        values = np.zeros((len(rows), len(names)), dtype=np.float32)
        np.put_along_axis(values, columns, np.arange(columns.shape[1], 0, -1)[None], axis=1)
    else:
        values = np.array(cells, dtype=np.float64).astype(np.float32)
    depth = len(header) - 1 if is_ranked else None
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


def _header_problem(header: list[str], edition: Edition) -> Problem | None:
    if _fits(header, edition):
        return None
    wanted = f"{edition.query_column},FILE,..." if edition.output == "matrix" else ",".join(edition.columns)
    others = "".join(f" (edition {other.name})" for other in EDITIONS.values() if _fits(header, other))
    kind = f"the header must be {wanted}, without row numbers of pandas and byte order mark"
    return Problem(1, kind, f"{','.join(header):.60}{others}")


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
        if not _are_finite(cells):
            wrong = next(cell for cell in cells if not _are_finite([cell]))
            yield Problem(line, "a score is not a finite number", wrong)


def _are_finite(cells: list[str]) -> bool:
    """Return whether all cells are numbers that float32 can represent."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(cells, dtype=np.float64).astype(np.float32)).all())
    except ValueError:
        return False


def _name_problems(line: int, names: list[str], pool: frozenset[str]) -> Iterator[Problem]:
    """Yield empty, repeated and, if a pool is known, unknown names."""
    if not all(name.strip() for name in names):
        yield Problem(line, "a file name is empty")
    yield from (Problem(line, "a file is listed twice", name) for name, times in Counter(names).items() if times > 1)
    if pool:
        yield from (Problem(line, "unknown file name", name, pool) for name in names if name not in pool)
