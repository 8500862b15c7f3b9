"""Verb convert: change the format of a CSV.

Convert a CSV of any edition to the CSV of another edition, or to a score matrix. Score matrices are converted by
`write`.

Ranked lists can be shortened and get another header, but they cannot be converted to scores.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_other
from submission.errors import SubmissionError
from submission.formats.columns import is_ranked
from submission.formats.edition_csv import read_header_editions, require_replaceable, write_csv
from submission.formats.matrix_csv import read_matrix_csv
from submission.formats.ranked_csv import read_ranked_csv, write_ranked_lists
from submission.formats.score_matrix import write_scores
from submission.verbs.options import (
    add_force,
    add_ranked,
    add_reference_arguments,
    chosen_edition,
    chosen_truth,
    require_csv,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `convert` to its parser."""
    source = "CSV to convert: a ranked or matrix CSV of any edition"
    parser.add_argument("file", metavar="FILE.csv", type=Path, help=source)
    out = "file to write: a .csv of --edition, or a score matrix (.npy)"
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help=out)
    add_ranked(parser)
    add_force(parser)
    add_reference_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `convert`: convert a CSV to another edition's format or to scores; return the exit status."""
    out = arguments.out
    require_other(out, [arguments.file, arguments.truth, arguments.scores, arguments.queries])
    truth = chosen_truth(arguments)
    require_csv(arguments.file)
    (source, *_), header = read_header_editions(arguments.file)
    target = source
    if out.suffix != ".npy":
        target = chosen_edition(arguments, {}, out)
        require_replaceable(out, target, arguments.force)
    if is_ranked(header):
        if out.suffix != ".csv" or not (arguments.ranked or target.output == "ranked"):
            wanted = f"edition {target.name}" if out.suffix == ".csv" else out
            raise SubmissionError(
                f"{arguments.file}: this ranked CSV has no scores, but {wanted} needs them; use the score matrix (.npy)"
            )
        ranked = read_ranked_csv(arguments.file, source, truth)
        write_ranked_lists(ranked, out, target)
        length = target.for_pool(len(ranked[0].file_names)).ranking_length
        print(f"wrote {out}: {counted(len(ranked), 'query')} x {counted(length, 'file name')}")
        return 0
    matrix = read_matrix_csv(arguments.file, source, truth)
    if out.suffix != ".npy":
        print(write_csv(matrix, out, target, arguments.ranked))
        return 0
    write_scores(out, replace(matrix, facts={"csv": arguments.file.name}))
    print(f"wrote {out}: {counted(matrix.values.shape[0], 'query')} x {counted(matrix.values.shape[1], 'score')}")
    return 0
