"""The verb write: an edition's file from a score matrix."""

import argparse
from pathlib import Path

from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.formats.matrix_csv import write_matrix_csv
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix, read_scores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scores", metavar="SCORES.npy", type=Path, help="score matrix; its .json stands beside it")
    parser.add_argument("--out", metavar="FILE.csv", type=Path, required=True, help="the edition's file to write")
    add_ranked(parser)


def add_ranked(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranked", action="store_true", help="a ranked CSV even where the edition asks for all scores")


def run(arguments: argparse.Namespace) -> int:
    edition = get_edition(arguments.edition)
    print(write_csv(read_scores(arguments.scores), arguments.out, edition, arguments.ranked))
    return 0


def write_csv(matrix: ScoreMatrix, path: Path, edition: Edition, ranked: bool = False) -> str:
    """Write what the edition asks for, or ranked lists at any rate. Returns what was written, in words."""
    if path.suffix != ".csv":
        raise SubmissionError(f"{path}: what is handed in is a CSV; give a name ending in .csv")
    n_queries, n_clips = matrix.values.shape
    if ranked or edition.output == "ranked":
        write_ranked_csv(matrix, path, edition)
        return f"wrote {path}: {n_queries} queries x {edition.ranking_length} names"
    write_matrix_csv(matrix, path, edition)
    return f"wrote {path}: {n_queries} queries x {n_clips} scores"
