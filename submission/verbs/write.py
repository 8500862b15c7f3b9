"""The verb write: an edition's file from a score matrix."""

import argparse
from pathlib import Path

from submission.editions import get_edition
from submission.formats.edition_csv import write_csv
from submission.formats.score_matrix import read_scores
from submission.verbs.options import add_ranked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scores", metavar="SCORES.npy", type=Path, help="score matrix; its .json stands beside it")
    parser.add_argument("--out", metavar="FILE.csv", type=Path, required=True, help="the edition's file to write")
    add_ranked(parser)


def run(arguments: argparse.Namespace) -> int:
    edition = get_edition(arguments.edition)
    print(write_csv(read_scores(arguments.scores), arguments.out, edition, arguments.ranked))
    return 0
