"""The options that say what a file is held against: captions, a score matrix, or a blind set."""

import argparse
from pathlib import Path

from submission.errors import SubmissionError
from submission.formats.score_matrix import read_scores
from submission.formats.truth import Truth, matrix_truth, read_blind_truth, read_clotho_truth


def add_arguments(parser: argparse.ArgumentParser) -> None:
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--truth", metavar="CAPTIONS.csv", type=Path, help="captions file in Clotho's format")
    against.add_argument("--scores", metavar="SCORES.npy", type=Path, help="score matrix with the queries and clips")
    against.add_argument("--queries", metavar="QUERIES.csv", type=Path, help="a blind set's queries, column caption")
    parser.add_argument("--audio", metavar="FOLDER", type=Path, help="with --queries: the blind set's audio files")


def chosen_truth(arguments: argparse.Namespace) -> Truth | None:
    """What the options name, or None for none of them. Raises SubmissionError for half of a blind set."""
    if (arguments.queries is None) != (arguments.audio is None):
        raise SubmissionError("a blind set is --queries FILE.csv and --audio FOLDER together; give both")
    if arguments.queries:
        return read_blind_truth(arguments.queries, arguments.audio)
    if arguments.scores:
        return matrix_truth(read_scores(arguments.scores))
    return read_clotho_truth(arguments.truth) if arguments.truth else None
