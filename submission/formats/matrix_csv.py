"""CSV of all scores (2025).

Matrix CSVs, the format of submissions since 2025: one row per query, its text and a score for every clip of the pool.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_tools.documents.problems import Fault, Problem, Problems, shown
from submission.arrays import Scores
from submission.editions import Edition
from submission.formats.columns import (
    EMPTY_LINE,
    TRAILING_COMMA,
    QueryColumn,
    editions_with_header,
    format_editions,
    is_ranked,
    raise_first_problem,
    rows_without_index,
    unknown_name_fault,
    without_trailing_comma,
    write_checked,
)
from submission.formats.csv_table import format_table
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import Truth, matrix_truth

# Maximum number of columns named in one message about a row.
SHOWN_COLUMNS = 3
# Characters of a decimal number. Python's float() also accepts blanks, underscores, other digits, nan and inf.
_NUMBER_CHARACTERS = b"0123456789+-.eE"
# Half way from the largest float32 to the next power of two: from here on numbers are rounded to infinity.
_TOO_LARGE = 2.0**128 - 2.0**103
# From here on scores are written with an exponent: 1.5e+06.
_MIN_EXPONENT_FORM = 1e6


def write_matrix_csv(matrix: ScoreMatrix, path: Path, edition: Edition) -> None:
    r"""Write all scores as a matrix CSV: the header is the edition's query column and the file names.

    Rows and columns keep the order of the matrix. Texts and file names are written byte for byte, in UTF-8 with RFC
    4180 quoting and \n line ends. A score has as few digits as possible, but readers get the same float32, even if
    they read it as float64 first. The file is written completely or not at all.
    Source: DCASE 2025 baseline, d25_t6/predict.py. Deviations: none in the layout. Two queries with the same text are
    refused here; the baseline writes only the last of them.
    Raises SubmissionError for clips with the same file name, for queries with the same text, and for any text or name
    that check_matrix_csv would report; OSError when writing fails.
    """
    truth = matrix_truth(matrix)
    file = io.BytesIO()
    file.write(format_table([[edition.query_column, *matrix.file_names]]))
    for text, scores in zip(matrix.query_texts, matrix.values, strict=True):
        file.write(format_table([[text]]).removesuffix(b"\n"))
        file.write(("," + ",".join(_shortest_texts(scores)) + "\n").encode())
    _, problems = check_matrix_csv(file.getvalue(), edition, truth)
    write_checked(path, file.getvalue(), problems)


def read_matrix_csv(path: Path, edition: Edition, truth: Truth | None = None) -> ScoreMatrix:
    """Read the scores of a matrix CSV. Raises SubmissionError if check_matrix_csv finds a problem in it.

    Rows and columns keep the order of the file. Scores are rounded to float32: text with more digits changes by at most
    6e-8 of its size (7e-46 near 0).
    truth: The queries and file names that the file should have; ids and relevant clips are taken from it. None: the
    queries' texts and the file names are used as ids, and the relevant clips are unknown.
    """
    matrix, problems = check_matrix_csv(path.read_bytes(), edition, truth)
    raise_first_problem(str(path), problems)
    assert matrix is not None
    return matrix


def check_matrix_csv(
    data: bytes, edition: Edition, truth: Truth | None = None
) -> tuple[ScoreMatrix | None, list[Problem]]:
    """Check the bytes of a matrix CSV; return (score matrix, []), or (None, problems in line order) for a faulty file.

    truth: The queries and file names that the file should have; None if unknown. Checks without it:

    - UTF-8 without byte order mark, and correct quoting;
    - a header of the edition's query column and the file names, none of them empty or repeated;
    - at least one row, and no empty or repeated query;
    - a finite decimal number in the range of float32 in every column of every row.

    With a truth, the file must also have exactly the truth's file names and queries, byte for byte, in any order.
    Row numbers in the first column, a comma at the end of lines, and a missing header are reported; the rest of the
    file is then checked as if they were corrected. For a ranked CSV, or a file with another separator, only this fault
    is reported.
    """
    problems = Problems()
    queries = QueryColumn(edition, truth)
    texts: list[str] = []
    values = bytearray()
    names: list[str] | None = None
    for row in problems.except_for(rows_without_index(data)):
        if row.line == 1:
            header = row.cells
            if is_ranked(header):
                editions = format_editions(editions_with_header(header))
                sentence = (
                    f"this is a ranked CSV (with the header of {editions}); edition {edition.name} needs every "
                    "score; write the file from the score matrix, or add the --edition of this ranked CSV"
                )
                return None, [*problems, Problem(1, sentence, "the file is a ranked CSV")]
            problems.add(1, _header_faults(header, edition, truth))
            if not _is_data_row(header, edition):
                names = header[1:-1] if header[-1:] == [""] else header[1:]
                continue
        cells = row.cells
        if not cells:
            problems.append(Problem(row.line, *EMPTY_LINE))
            continue
        if names is None:  # no header: name the columns by their numbers
            names = [f"column {number}" for number in range(2, len(cells) + 1)]
        problems.add(row.line, queries.faults(row.line, cells[0]))
        texts.append(cells[0])
        scores = _parse_scores(cells[1:]) if len(cells) == len(names) + 1 else None
        if scores is None:
            problems.add(row.line, _score_faults(cells, names))
        else:
            values += scores.tobytes()
    if not texts and not problems:
        problems.append(Problem(1, "no row follows the header; add one row per query", "the file has no row"))
    all_problems = queries.add_missing(problems) if texts else problems
    if all_problems or names is None:
        return None, all_problems
    return _build_matrix(
        np.frombuffer(values, dtype=np.float32).reshape(len(texts), len(names)), texts, names, truth
    ), []


def _build_matrix(values: Scores, texts: list[str], names: list[str], truth: Truth | None) -> ScoreMatrix:
    """Build the score matrix from parsed scores, captions and file names; the truth has the ids and relevant clips."""
    if truth is None:
        return ScoreMatrix(values, list(texts), texts, list(names), names, [None] * len(texts))
    queries = [truth.queries[text] for text in texts]
    clip_ids = [truth.clip_ids.get(name, name) for name in names]
    relevant = [
        None if query.relevant is None else sorted(truth.clip_ids.get(name, name) for name in query.relevant)
        for query in queries
    ]
    query_ids = [text if query.id is None else query.id for text, query in zip(texts, queries, strict=True)]
    return ScoreMatrix(values, query_ids, texts, clip_ids, names, relevant)


def _shortest_texts(scores: Scores) -> list[str]:
    """Return each float32 score as the shortest text that CSV readers turn back into the same float32."""
    texts: list[str] = scores.astype("U").tolist()
    for column in np.flatnonzero(
        np.abs(scores) >= _MIN_EXPONENT_FORM
    ):  # releases of numpy switch to exponents at different values
        texts[column] = np.format_float_scientific(scores[column], trim="-", exp_digits=2)
    parsed = np.array(texts, dtype=np.float64).astype(np.float32)
    # These are the shortest for a direct reading. By way of float64, a text may be rounded twice; repr is then exact.
    for column in np.flatnonzero(parsed != scores):
        texts[column] = repr(float(scores[column]))
    return texts


def _parse_scores(cells: Sequence[str]) -> Scores | None:
    """Return the cells as float32; None if any cell is not a decimal number in the range of float32."""
    try:
        if "".join(cells).encode("ascii").translate(None, _NUMBER_CHARACTERS):
            return None
        values = np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        return None
    return values.astype(np.float32) if (np.abs(values) < _TOO_LARGE).all() else None


def _is_score(cell: str) -> bool:
    """Return whether a cell is a decimal number in the range of float32; for one cell, faster than _parse_scores."""
    try:
        return not cell.encode("ascii").translate(None, _NUMBER_CHARACTERS) and abs(float(cell)) < _TOO_LARGE
    except ValueError:
        return False


def _score_faults(cells: list[str], names: list[str]) -> Iterator[Fault]:
    """Yield the faults of the scores in one row: a wrong number of columns, or cells that are not finite numbers."""
    scores = without_trailing_comma(cells, len(names) + 1)[1:]
    if len(scores) + 1 != len(cells):
        yield TRAILING_COMMA
    if len(scores) != len(names):
        needed = f"a row needs one query and a score for each of {len(names)} files"
        yield f"found {len(scores) + 1} of {len(names) + 1} columns: {needed}", "a row has missing or extra columns"
        return
    if invalid := [(name, cell) for name, cell in zip(names, scores, strict=True) if not _is_score(cell)]:
        shown_cells = (
            (shown(cell) if cell.strip() else "nothing", shown(name)) for name, cell in invalid[:SHOWN_COLUMNS]
        )
        bad_values = ", ".join(f"{cell} for {name}" for cell, name in shown_cells)
        more = f" and {len(invalid) - SHOWN_COLUMNS} more" if len(invalid) > SHOWN_COLUMNS else ""
        yield f"scores must be finite float32 numbers; found {bad_values}{more}", "a score is not a finite number"


def _is_data_row(header: list[str], edition: Edition) -> bool:
    """Return whether the first line of a matrix CSV contains scores, so that the header is missing."""
    return len(header) > 1 and header[0] != edition.query_column and _parse_scores(header[1:]) is not None


def _header_faults(header: list[str], edition: Edition, truth: Truth | None) -> Iterator[Fault]:
    """Yield the faults of a matrix CSV's header: the query column, and empty, repeated or unknown file names."""
    if _is_data_row(header, edition):
        yield f"the header is missing; it must be {edition.query_column}, followed by every file name", "header"
        return
    if header[:1] != [edition.query_column]:
        found = shown(header[0]) if header else "missing"
        yield f"column 1 of the header is {found}; it must be {edition.query_column}, before the file names", "header"
    columns_of_name: dict[str, list[int]] = {}
    for column, name in enumerate(header[1:], start=2):
        columns_of_name.setdefault(name, []).append(column)
    if not columns_of_name:
        yield f"no file name follows {edition.query_column} in the header; add one column per file", "header"
        return
    known: frozenset[str] = truth.file_names if truth else frozenset()
    for name, columns in columns_of_name.items():
        where = " and ".join(map(str, columns))
        if not name.strip():
            if not name and columns == [len(header)]:
                yield TRAILING_COMMA
            else:
                verb = "is" if len(columns) == 1 else "are"
                yield f"column {where} of the header {verb} empty; write a file name", "a file name is empty"
            continue
        if len(columns) > 1:
            text = f"the file {shown(name)} has more than one column: {where}; keep one of them"
            yield text, "an audio file has several columns"
        if truth and name not in known:
            yield unknown_name_fault(name, f"column {where}", truth)
    for name in sorted(known - columns_of_name.keys()):
        yield f"no column for the file {shown(name)}; add one", "a file has no column"
