"""The CSV that an edition requires.

Write the CSV that an edition requires from a score matrix, and find the editions of a CSV by its header.
"""

from pathlib import Path

from data_tools.cli import counted
from data_tools.documents.problems import Problem
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.columns import editions_with_header, format_editions
from submission.formats.csv_table import parse_rows
from submission.formats.matrix_csv import write_matrix_csv
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix


def write_csv(matrix: ScoreMatrix, path: Path, edition: Edition, ranked: bool = False) -> str:
    """Write a score matrix as the CSV of the edition, or a ranked CSV if `ranked`; return a message with the size."""
    if path.suffix != ".csv":
        raise SubmissionError(f"{path}: edition {edition.name} needs a CSV file; choose a name ending in .csv")
    n_queries, n_clips = matrix.values.shape
    if ranked or edition.output == "ranked":
        write_ranked_csv(matrix, path, edition)
        return (
            f"wrote {path}: {counted(n_queries, 'query')} x "
            f"{counted(edition.for_pool(n_clips).ranking_length, 'file name')}"
        )
    write_matrix_csv(matrix, path, edition)
    return f"wrote {path}: {counted(n_queries, 'query')} x {counted(n_clips, 'score')}"


def require_replaceable(path: Path, edition: Edition, force: bool) -> None:
    """Raises SubmissionError if `path` exists and is not a CSV of the edition. force: Accept any file."""
    if force or path.suffix != ".csv" or not path.is_file():
        return
    first = next(parse_rows(path.read_bytes()))
    editions = [] if isinstance(first, Problem) else editions_with_header(first.cells)
    if edition not in editions:
        kind = f"a CSV of {format_editions(editions)}" if editions else "not a CSV of any edition"
        raise SubmissionError(
            f"{path} already exists and is {kind}; choose another file, or add --force to overwrite it with a CSV of "
            f"edition {edition.name}"
        )


def read_header_editions(path: Path) -> tuple[list[Edition], list[str]]:
    """Read the header of a CSV; return the editions whose CSVs have this header, and the cells of the header.

    Editions with the same header (2023 and 2024) have the same format. Raises SubmissionError for an unknown header.
    """
    row_or_problem = next(parse_rows(path.read_bytes()))
    if isinstance(row_or_problem, Problem):
        raise SubmissionError(f"{path}: {row_or_problem}")
    if editions := editions_with_header(row_or_problem.cells):
        return editions, row_or_problem.cells
    raise SubmissionError(
        f"{path}: line 1 is not the header of any edition; `check {path} --edition YEAR` prints the required header"
    )
