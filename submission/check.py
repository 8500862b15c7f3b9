"""The verb check: every problem of a ranked CSV or a matrix CSV, on a line of its own."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from submission import against
from submission.editions import Edition, get_edition
from submission.errors import SubmissionError
from submission.matrix_csv import check_matrix_csv
from submission.ranking import check_ranked_csv
from submission.table import Problem
from submission.write import add_ranked

# Problems of one kind that are told in full; of the others the lines.
SHOWN_PROBLEMS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the edition's file, or a package (.zip)")
    parser.add_argument("--all", action="store_true", help=f"tell every problem, not {SHOWN_PROBLEMS} of each kind")
    add_ranked(parser)
    against.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    edition = get_edition(arguments.edition)
    if arguments.file.suffix == ".zip":
        return _check_package(arguments.file, edition)
    truth = against.chosen_truth(arguments)
    data = arguments.file.read_bytes()
    if arguments.ranked or edition.output == "ranked":
        ranked, problems = check_ranked_csv(data, edition, truth)
        good = f"ok: {len(ranked)} queries x {edition.ranking_length} names"
    else:
        matrix, problems = check_matrix_csv(data, edition, truth)
        good = f"ok: {len(matrix.query_ids)} queries x {len(matrix.clip_ids)} scores" if matrix else ""
    for line in told(problems, len(problems) if arguments.all else SHOWN_PROBLEMS):
        print(line)
    if problems:
        number = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SubmissionError(f"{arguments.file} has {number}, listed above with the line each row starts on")
    print(good)
    return 0


def _check_package(path: Path, edition: Edition) -> int:
    from submission.package.archive import check_archive

    problems = list(check_archive(path, edition))
    for problem in problems:
        print(problem)
    if problems:
        number = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SubmissionError(f"{path} has {number}, listed above")
    print(f"ok: a package of edition {edition.name}")
    return 0


def told(problems: Sequence[Problem], shown: int) -> Iterator[str]:
    """Problems as lines of text: the first `shown` of each kind in full, then one line a kind for its others.

    That line has the number of every line of the file that is concerned: `lines 26-5226: 5201 more of: ...`.
    """
    times: Counter[str] = Counter()
    others: dict[str, list[Problem]] = {}
    for problem in problems:
        times[problem.kind] += 1
        if times[problem.kind] <= shown:
            yield str(problem)
        else:
            others.setdefault(problem.kind, []).append(problem)
    for kind, folded in others.items():
        lines = sorted({problem.line for problem in folded if problem.line is not None})
        where = f"lines {_spans(lines)}" if lines else "whole file"
        yield f"{where}: {len(folded)} more of: {kind} (--all tells each)"


def _spans(lines: Sequence[int]) -> str:
    """Rising line numbers, runs of them as first-last: 3-5, 9."""
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
