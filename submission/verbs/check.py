"""The verb check: every problem of a ranked CSV, a matrix CSV or a package, on a line of its own."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.formats.csv_table import SHOWN_PROBLEMS, format_problems
from submission.formats.matrix_csv import check_matrix_csv
from submission.formats.ranked_csv import check_ranked_csv
from submission.formats.truth import Truth
from submission.verbs.options import add_ranked, add_reference_arguments, chosen_truth, require_csv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the edition's file, or a package (.zip)")
    parser.add_argument("--all", action="store_true", help=f"print every problem, not {SHOWN_PROBLEMS} of each kind")
    add_ranked(parser)
    add_reference_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    edition, truth, path = get_edition(arguments.edition), chosen_truth(arguments), arguments.file
    shown = None if arguments.all else SHOWN_PROBLEMS
    if path.suffix.lower() == ".zip":
        if arguments.ranked:
            raise SubmissionError("a package holds what its edition asks for; leave out --ranked")
        return _check_package(path, edition, truth, shown)
    require_csv(path)
    data = path.read_bytes()
    if arguments.ranked or edition.output == "ranked":
        ranked, problems = check_ranked_csv(data, edition, truth)
        good = f"ok: {counted(len(ranked), 'query')} x {counted(len(ranked[0].file_names) if ranked else 0, 'name')}"
    else:
        matrix, problems = check_matrix_csv(data, edition, truth)
        good = (
            f"ok: {counted(len(matrix.query_ids), 'query')} x {counted(len(matrix.clip_ids), 'score')}"
            if matrix
            else ""
        )
    if problems:
        print(*format_problems(problems, shown), sep="\n")
        raise SubmissionError(
            f"{path} has {counted(len(problems), 'problem')}, listed above with the line each row starts on"
        )
    print(good)
    if truth is None:
        print("note: its texts and names were held against nothing; add --truth, --scores, or --queries and --audio")
    return 0


def _check_package(path: Path, edition: Edition, truth: Truth | None, shown: int | None) -> int:
    from submission.package.archive import check_archive

    if problems := list(check_archive(path, edition, lambda label: truth, shown=shown)):
        print(*problems, sep="\n")
        raise SubmissionError(f"{path} is not fit to be handed in, for what is listed above")
    print(f"ok: a package of edition {edition.name}")
    return 0
