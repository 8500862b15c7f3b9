"""Verb check: list faults of a file.

List every problem of a ranked CSV, a matrix CSV, a file of moments, or a package, one per line.
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
from submission.formats.moments_truth import MomentTruth, check_moment_truth, format_size, is_truth
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
    edition_in_facts,
    require_csv,
)

PACKAGE = "package"  # kind of the problems of a package
NOT_COMPARED = (
    "note: the queries and file names were not compared with a truth; add --truth, --scores, or --queries and --audio"
)
MOMENTS_NOT_COMPARED = "note: the queries were not compared with a truth; add --truth, or --queries for a blind list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `check` to its parser."""
    parser.add_argument("file", metavar="FILE", type=Path, help="submission or package (.zip) to check")
    parser.add_argument("--all", action="store_true", help=f"print all problems, not only {SHOWN_PROBLEMS} per kind")
    add_ranked(parser)
    add_reference_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `check`: list every problem of a submission file or a package; return the exit status."""
    path = arguments.file
    require_file(path)
    require_csv(path)
    shown = None if arguments.all or arguments.json else SHOWN_PROBLEMS
    edition: AnyEdition
    if is_moments(path):
        edition = moments_edition(arguments)
        result = _check_moments(path, edition, arguments)
    elif path.suffix.lower() == ".zip":
        edition = _package_edition(path, arguments)
        result = _check_package(path, edition, arguments, shown)
    else:
        truth = chosen_truth(arguments)
        edition = chosen_edition(arguments, _edition_of_scores(arguments), path)
        result = _check_csv(path, edition, truth, arguments.ranked)
    return _print_result(path, edition, result, arguments.json, shown)


def _print_result(path: Path, edition: AnyEdition, result: "_CheckResult", as_json: bool, shown: int | None) -> int:
    """Print a check's result; return 0, or raise SubmissionError for problems. shown: Limit per kind."""
    if as_json:
        _print_json(path, edition, result)
    elif result.problems:
        print(*_format_lines(result.problems, shown), sep="\n")
    if result.problems:
        raise SubmissionError(f"{path}: {result.verdict}")
    if not as_json:
        print(*(f"note: {line}" for line in _format_lines(result.notes, shown)), result.verdict, sep="\n")
        if result.hint:
            print(result.hint)
    return 0


class _CheckResult(NamedTuple):
    """Result of the check of a file or a package.

    Attributes:
        queries, columns: Numbers of queries and columns in the file; None if it could not be read.
        verdict: The result in words.
        compared: Whether the file was compared with a truth.
        notes: Oddities of the file that are no problems.
        hint: Note on the options for a comparison, if the file was not compared.
    """

    problems: Sequence[Problem]
    queries: int | None
    columns: int | None
    verdict: str
    compared: bool
    notes: Sequence[Problem] = ()
    hint: str = ""


def _format_lines(problems: Sequence[Problem], shown: int | None) -> Iterable[str]:
    """Format problems as lines of text: for a package all problems, for a single file at most `shown` of each kind."""
    if problems and problems[0].kind == PACKAGE:
        return [problem.sentence for problem in problems]
    return format_problems(problems, shown)


def _check_csv(path: Path, edition: Edition, truth: Truth | None, ranked: bool) -> _CheckResult:
    """Check a ranked or matrix CSV of an edition, and return the result."""
    queries = columns = 0
    if ranked or edition.output == "ranked":
        rows, problems = check_ranked_csv(path.read_bytes(), edition, truth)
        queries, columns, unit = len(rows), len(rows[0].file_names) if rows else 0, "file name"
    else:
        matrix, problems = check_matrix_csv(path.read_bytes(), edition, truth)
        unit = "score"
        if matrix:
            queries, columns = len(matrix.query_ids), len(matrix.clip_ids)
    if problems:
        verdict = (
            f"the file has {counted(len(problems), 'problem')}, listed above; a row has the number of its first line"
        )
        return _CheckResult(problems, queries or None, columns or None, verdict, truth is not None)
    verdict = f"ok: {counted(queries, 'query')} x {counted(columns, unit)}"
    return _CheckResult([], queries, columns, verdict, truth is not None, hint="" if truth else NOT_COMPARED)


def _check_moments(path: Path, edition: MomentsEdition, arguments: argparse.Namespace) -> _CheckResult:
    """Check a file of moments, with found windows or with true windows, and return the result."""
    refuse_options(arguments, scores=None, audio=None, ranked=False)
    data = path.read_bytes()
    if is_truth(data):
        queries, problems, notes = check_moment_truth(data, edition)
        windows = [query.windows or [] for query in queries.values()]
        size, compared = f"true windows for {format_size(MomentTruth(queries, path.name, notes))}", True
    else:
        truth = moment_reference(edition, arguments)
        answers, problems, notes = check_moments(data, edition, truth)
        windows = [answer.windows for answer in answers]
        total = counted(sum(map(len, windows)), "window")
        form = "with scores" if is_scored(answers) else "without scores"
        size, compared = f"{counted(len(answers), 'query')}, {total} {form}", truth is not None
    longest = max(map(len, windows), default=0)
    verdict = f"the file has {counted(len(problems), 'problem')}, listed above" if problems else f"ok: {size}"
    hint = "" if compared else MOMENTS_NOT_COMPARED
    return _CheckResult(problems, len(windows) or None, longest or None, verdict, compared, notes, hint)


def _edition_of_scores(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return a dict from the file of --scores to the edition in its metadata; {} without --scores."""
    return {str(arguments.scores): edition_in_facts(read_scores(arguments.scores))} if arguments.scores else {}


def _package_edition(path: Path, arguments: argparse.Namespace) -> AnyEdition:
    """Return the edition of a package: that of --edition, otherwise the only edition that allows all its files."""
    if arguments.ranked:
        raise SubmissionError("--ranked does not work with a package (.zip); leave it out")
    from submission.package.archive import fitting_editions

    if not is_zipfile(path):
        raise SubmissionError(f"{path} cannot be read as a zip archive; pack the runs again")
    editions = _edition_of_scores(arguments)
    fitting = [] if arguments.edition is not None or editions else fitting_editions(path)
    return fitting[0] if len(fitting) == 1 else chosen_any_edition(arguments, editions, path)


def _check_package(path: Path, edition: AnyEdition, arguments: argparse.Namespace, shown: int | None) -> _CheckResult:
    """Check a package by the rules of its edition; return the result. shown: Limit per kind; None: no limit."""
    from submission.package.archive import check_archive, output_notes

    truth: Truth | MomentTruth | None
    if isinstance(edition, MomentsEdition):
        truth, not_compared = moment_reference(edition, arguments), MOMENTS_NOT_COMPARED
    else:
        truth, not_compared = chosen_truth(arguments), NOT_COMPARED
    if problems := _package_problems(check_archive(path, edition, lambda _: truth, shown=shown)):
        verdict = "the package is not ready to be submitted; its problems are listed above"
        return _CheckResult(problems, None, None, verdict, truth is not None)
    notes = _package_problems(output_notes(path, edition, truth, shown))
    verdict, hint = f"ok: a package of edition {edition.name}", "" if truth else not_compared
    return _CheckResult([], None, None, verdict, truth is not None, notes, hint)


def _package_problems(sentences: Iterable[str]) -> list[Problem]:
    """Return messages about a package as Problems without a line number."""
    return [Problem(None, text, PACKAGE) for text in sentences]


def _print_json(path: Path, edition: AnyEdition, result: _CheckResult) -> None:
    """Print the result of a check as JSON."""
    from data_tools.documents.strict import print_report
    from submission.verbs.json_output import CheckReport, file_problems

    print_report(
        CheckReport(
            file=str(path),
            edition=edition.name,
            ok=not result.problems,
            queries=result.queries,
            columns=result.columns,
            compared=result.compared,
            problems=file_problems(result.problems),
            notes=file_problems(result.notes),
        )
    )
