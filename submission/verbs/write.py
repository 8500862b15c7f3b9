"""Verb write: make an edition's file.

Write the file that an edition requires from a score matrix, a run, or a file of moments with scores.
"""

import argparse
from pathlib import Path

from submission.errors import SubmissionError
from submission.formats.edition_csv import require_replaceable, write_csv
from submission.verbs.moments import is_moments, write_moments_file
from submission.verbs.options import add_force, add_ranked, chosen_edition, open_system


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `write` to its parser."""
    what = "scores to submit: a score matrix (.npy), a finished run (RUN or RUN:ENTRY), or moments (.jsonl)"
    parser.add_argument("scores", metavar="SCORES.npy", help=what)
    out = "file to write: a .csv or, for moments, a .jsonl"
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help=out)
    add_ranked(parser)
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `write`: write the file that an edition requires, from scores or a run; return the exit status."""
    if is_moments(arguments.scores):
        print(write_moments_file(Path(arguments.scores), arguments.out, arguments))
        return 0
    system = open_system(arguments.scores)
    if system.matrix is None:
        raise SubmissionError(f"{system.name} is not a score matrix (.npy)")
    edition = chosen_edition(arguments, {system.name: system.edition})
    require_replaceable(arguments.out, edition, arguments.force)
    print(write_csv(system.matrix, arguments.out, edition, arguments.ranked))
    return 0
