"""The verb convert: a CSV of any edition as another edition's CSV, or as a score matrix.

It starts from CSVs, as `write` does from score matrices. Lists stay lists: they can be shortened and put under
another header, but scores do not come out of them.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from submission.verbs import options as against
from submission.formats.columns import matrix_edition, ranked_editions
from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.files import require_other
from submission.formats.matrix_csv import read_matrix_csv
from submission.formats.ranked_csv import read_ranked_csv, write_ranked_lists
from submission.formats.score_matrix import write_scores
from submission.formats.csv_table import Problem, parse_rows
from submission.verbs.options import add_ranked
from submission.formats.edition_csv import write_csv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.csv", type=Path, help="ranked CSV or matrix CSV of any edition")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the --edition's .csv, or scores as .npy"
    )
    add_ranked(parser)
    against.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    target, out = get_edition(arguments.edition), arguments.out
    require_other(out, [arguments.file, arguments.truth, arguments.scores, arguments.queries])
    truth = against.chosen_truth(arguments)
    source, is_ranked = source_edition(arguments.file)
    if is_ranked:
        if out.suffix != ".csv" or not (arguments.ranked or target.output == "ranked"):
            wanted = f"edition {target.name} asks for" if out.suffix == ".csv" else f"{out} would need"
            raise SubmissionError(f"{arguments.file} holds ranked lists and {wanted} scores; make it from the scores")
        ranked = read_ranked_csv(arguments.file, source, truth)
        write_ranked_lists(ranked, out, target)
        print(f"wrote {out}: {len(ranked)} queries x {target.ranking_length} names")
        return 0
    matrix = read_matrix_csv(arguments.file, source, truth)
    if out.suffix != ".npy":
        print(write_csv(matrix, out, target, arguments.ranked))
        return 0
    write_scores(out, replace(matrix, facts={"csv": arguments.file.name}))
    print(f"wrote {out}: {matrix.values.shape[0]} queries x {matrix.values.shape[1]} scores")
    return 0


def source_edition(path: Path) -> tuple[Edition, bool]:
    """The edition whose CSV this is by its header, and whether it holds ranked lists.

    Editions with one header (2023 and 2024) have one format too; the first is named. Raises SubmissionError for the
    header of none.
    """
    first = next(parse_rows(path.read_bytes()))
    if isinstance(first, Problem):
        raise SubmissionError(f"{path}: {first}")
    for edition in ranked_editions(first.cells):
        return edition, True
    matrix = matrix_edition(first.cells)
    if matrix:
        return matrix, False
    raise SubmissionError(
        f"{path}: line 1 is no edition's header; `check {path} --edition YEAR` tells what a year's should be"
    )
