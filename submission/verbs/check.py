"""Verb check: list faults of a file.

Every problem of a ranked CSV, a matrix CSV, moments or a package, one per line.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

from data_tools.cli import add_json, counted
from data_tools.documents.problems import Problem
from data_tools.files import require_file
from submission.editions import AnyEdition, Edition, MomentsEdition
from submission.errors import SubmissionError
from submission.formats.csv_table import SHOWN_PROBLEMS, format_problems
from submission.formats.matrix_csv import check_matrix_csv
from submission.formats.moments_jsonl import check_moments, is_scored
from submission.formats.moments_truth import MomentTruth, check_moment_truth, is_truth, size_of
from submission.formats.ranked_csv import check_ranked_csv
from submission.formats.score_matrix import read_scores
from submission.formats.truth import Truth
from submission.verbs.moments import is_moments, moment_reference, moments_edition, refuse_options
from submission.verbs.options import (
    add_ranked,
    add_reference_arguments,
    chosen_any_edition,
    chosen_edition,
    chosen_truth,
    edition_noted,
    require_csv,
)

PACKAGE = "package"  # kind of the problems of a package
NOT_COMPARED = "note: its texts and names were not compared; add --truth, --scores, or --queries and --audio"
MOMENTS_NOT_COMPARED = "note: its queries were not compared; add --truth, or --queries for a blind list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the edition's file, or a package (.zip)")
    parser.add_argument("--all", action="store_true", help=f"print all problems, not {SHOWN_PROBLEMS} of each kind")
    add_ranked(parser)
    add_reference_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file
    require_file(path)
    require_csv(path)
    shown = None if arguments.all or arguments.json else SHOWN_PROBLEMS
    edition: AnyEdition
    if is_moments(path):
        edition = moments_edition(arguments)
        found = _check_moments(path, edition, arguments)
    elif path.suffix.lower() == ".zip":
        edition = _package_edition(path, arguments)
        found = _check_package(path, edition, arguments, shown)
    else:
        truth = chosen_truth(arguments)
        edition = chosen_edition(arguments, _noted(arguments), path)
        found = _check_csv(path, edition, truth, arguments.ranked)
    return _report(path, edition, found, arguments.json, shown)


def _report(path: Path, edition: AnyEdition, found: "_Found", as_json: bool, shown: int | None) -> int:
    if as_json:
        _print_json(path, edition, found)
    elif found.problems:
        print(*_lines(found.problems, shown), sep="\n")
    if found.problems:
        raise SubmissionError(f"{path} {found.verdict}")
    if not as_json:
        print(*(f"note: {line}" for line in _lines(found.notes, shown)), found.verdict, sep="\n")
        if found.hint:
            print(found.hint)
    return 0


class _Found(NamedTuple):
    """Result of a check.

    Attributes:
        queries, columns: of the file; None if it could not be read.
        verdict: description of the result.
        compared: whether the file was compared with a truth.
        notes: oddities that are no problem.
        hint: options for a comparison, if the file was not compared.
    """

    problems: Sequence[Problem]
    queries: int | None
    columns: int | None
    verdict: str
    compared: bool
    notes: Sequence[Problem] = ()
    hint: str = ""


def _lines(problems: Sequence[Problem], shown: int | None) -> Iterable[str]:
    """Format problems; those of a package already name their file."""
    if problems and problems[0].kind == PACKAGE:
        return [problem.sentence for problem in problems]
    return format_problems(problems, shown)


def _check_csv(path: Path, edition: Edition, truth: Truth | None, ranked: bool) -> _Found:
    queries = columns = 0
    if ranked or edition.output == "ranked":
        rows, problems = check_ranked_csv(path.read_bytes(), edition, truth)
        queries, columns, what = len(rows), len(rows[0].file_names) if rows else 0, "name"
    else:
        matrix, problems = check_matrix_csv(path.read_bytes(), edition, truth)
        what = "score"
        if matrix:
            queries, columns = len(matrix.query_ids), len(matrix.clip_ids)
    if problems:
        verdict = f"has {counted(len(problems), 'problem')}, listed above with the line each row starts on"
        return _Found(problems, queries or None, columns or None, verdict, truth is not None)
    verdict = f"ok: {counted(queries, 'query')} x {counted(columns, what)}"
    return _Found([], queries, columns, verdict, truth is not None, hint="" if truth else NOT_COMPARED)


def _check_moments(path: Path, edition: MomentsEdition, arguments: argparse.Namespace) -> _Found:
    """Check a file of answers, or a truth."""
    refuse_options(arguments, scores=None, audio=None, ranked=False)
    data = path.read_bytes()
    if is_truth(data):
        queries, problems, notes = check_moment_truth(data, edition)
        windows = [query.windows or [] for query in queries.values()]
        size, compared = f"a truth of {size_of(MomentTruth(queries, path.name, notes))}", True
    else:
        truth = moment_reference(edition, arguments)
        answers, problems, notes = check_moments(data, edition, truth)
        windows = [answer.windows for answer in answers]
        total = counted(sum(map(len, windows)), "window")
        form = "with scores" if is_scored(answers) else "without scores"
        size, compared = f"{counted(len(answers), 'query')}, {total} {form}", truth is not None
    longest = max(map(len, windows), default=0)
    verdict = f"has {counted(len(problems), 'problem')}, listed above" if problems else f"ok: {size}"
    hint = "" if compared else MOMENTS_NOT_COMPARED
    return _Found(problems, len(windows) or None, longest or None, verdict, compared, notes, hint)


def _noted(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return the edition of the score matrix by its name, if one is given."""
    return {str(arguments.scores): edition_noted(read_scores(arguments.scores))} if arguments.scores else {}


def _package_edition(path: Path, arguments: argparse.Namespace) -> AnyEdition:
    if arguments.ranked:
        raise SubmissionError("the format of a package is that of its edition; leave out --ranked")
    from submission.package.archive import fitting_editions

    if not is_zipfile(path):
        raise SubmissionError(f"{path}: cannot be read as a zip archive; pack it again")
    noted = _noted(arguments)
    fitting = [] if arguments.edition is not None or noted else fitting_editions(path)
    return fitting[0] if len(fitting) == 1 else chosen_any_edition(arguments, noted, path)


def _check_package(path: Path, edition: AnyEdition, arguments: argparse.Namespace, shown: int | None) -> _Found:
    from submission.package.archive import check_archive, output_notes

    truth: Truth | MomentTruth | None
    if isinstance(edition, MomentsEdition):
        truth, not_compared = moment_reference(edition, arguments), MOMENTS_NOT_COMPARED
    else:
        truth, not_compared = chosen_truth(arguments), NOT_COMPARED
    if problems := _of_package(check_archive(path, edition, lambda _: truth, shown=shown)):
        verdict = "is not ready to be submitted; its problems are listed above"
        return _Found(problems, None, None, verdict, truth is not None)
    notes = _of_package(output_notes(path, edition, truth, shown))
    verdict, hint = f"ok: a package of edition {edition.name}", "" if truth else not_compared
    return _Found([], None, None, verdict, truth is not None, notes, hint)


def _of_package(sentences: Iterable[str]) -> list[Problem]:
    return [Problem(None, text, PACKAGE) for text in sentences]


def _print_json(path: Path, edition: AnyEdition, found: _Found) -> None:
    from data_tools.documents.strict import print_report
    from submission.verbs.json_output import CheckReport, problems_of

    print_report(
        CheckReport(
            file=str(path),
            edition=edition.name,
            ok=not found.problems,
            queries=found.queries,
            columns=found.columns,
            compared=found.compared,
            problems=problems_of(found.problems),
            notes=problems_of(found.notes),
        )
    )
