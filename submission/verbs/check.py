"""The verb check: every problem of a ranked CSV, a matrix CSV, moments or a package, on a line of its own."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.cli import add_json, counted
from data_tools.files import require_file
from submission.editions import Edition, MomentsEdition
from submission.errors import SubmissionError
from submission.formats.csv_table import SHOWN_PROBLEMS, Problem, format_problems
from submission.formats.matrix_csv import check_matrix_csv
from submission.formats.ranked_csv import check_ranked_csv
from submission.formats.score_matrix import read_scores
from submission.formats.truth import Truth
from submission.verbs.moments import check_moments_file, is_moments, moments_edition
from submission.verbs.options import (
    add_ranked,
    add_reference_arguments,
    chosen_edition,
    chosen_truth,
    edition_noted,
    require_csv,
)

PACKAGE = "package"  # kind of the problems of one
NOT_COMPARED = "note: its texts and names were held against nothing; add --truth, --scores, or --queries and --audio"
MOMENTS_NOT_COMPARED = "note: its queries were held against nothing; add --truth, or --queries for a blind list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the edition's file, or a package (.zip)")
    parser.add_argument("--all", action="store_true", help=f"print every problem, not {SHOWN_PROBLEMS} of each kind")
    add_ranked(parser)
    add_reference_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file
    require_file(path)
    require_csv(path)
    shown = None if arguments.all or arguments.json else SHOWN_PROBLEMS
    if is_moments(path):
        return _report(path, moments_edition(arguments), _check_moments(path, arguments), arguments.json, shown)
    truth = chosen_truth(arguments)
    noted = {str(arguments.scores): edition_noted(read_scores(arguments.scores))} if arguments.scores else {}
    edition = chosen_edition(arguments, noted, path)
    if path.suffix.lower() == ".zip":
        if arguments.ranked:
            raise SubmissionError("a package holds what its edition asks for; leave out --ranked")
        found = _check_package(path, edition, truth, shown)
    else:
        found = _check_csv(path, edition, truth, arguments.ranked)
    return _report(path, edition, found, arguments.json, shown)


def _report(path: Path, edition: Edition | MomentsEdition, found: "_Found", as_json: bool, shown: int | None) -> int:
    if as_json:
        _print_json(path, edition, found)
    elif found.problems:
        print(*found.lines(shown), sep="\n")
    if found.problems:
        raise SubmissionError(f"{path} {found.verdict}")
    if not as_json:
        print(*(f"note: {line}" for line in format_problems(found.notes, shown)), found.verdict, sep="\n")
        if found.hint:
            print(found.hint)
    return 0


class _Found(NamedTuple):
    """queries, columns: of the file, where it could be read. verdict: of it, in words. compared: with a truth.
    notes: what is odd, and no problem. hint: what it could be compared with, where it was not."""

    problems: Sequence[Problem]
    queries: int | None
    columns: int | None
    verdict: str
    compared: bool
    notes: Sequence[Problem] = ()
    hint: str = ""

    def lines(self, shown: int | None) -> Iterable[str]:
        """Of the problems; those of a package name their file themselves."""
        if self.problems[0].kind == PACKAGE:
            return [problem.sentence for problem in self.problems]
        return format_problems(self.problems, shown)


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


def _check_moments(path: Path, arguments: argparse.Namespace) -> _Found:
    checked = check_moments_file(path, moments_edition(arguments), arguments)
    verdict = f"ok: {checked.size}"
    if checked.problems:
        verdict = f"has {counted(len(checked.problems), 'problem')}, listed above"
    hint = "" if checked.compared else MOMENTS_NOT_COMPARED
    found = (checked.problems, checked.queries, checked.columns, verdict, checked.compared)
    return _Found(*found, checked.notes, hint)


def _check_package(path: Path, edition: Edition, truth: Truth | None, shown: int | None) -> _Found:
    from submission.package.archive import check_archive

    problems = [Problem(None, text, PACKAGE) for text in check_archive(path, edition, lambda label: truth, shown=shown)]
    bad, good = "is not fit to be handed in, for what is listed above", f"ok: a package of edition {edition.name}"
    return _Found(problems, None, None, bad if problems else good, truth is not None)


def _print_json(path: Path, edition: Edition | MomentsEdition, found: _Found) -> None:
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
