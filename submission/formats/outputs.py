"""Check a file to submit, of any edition."""

from typing import NamedTuple

from data_tools.cli import counted
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.csv_files import check_csv
from submission.formats.moments import MomentTruth, check_moments
from submission.formats.problems import Problem, format_problems
from submission.formats.score_matrix import Labels

AnyTruth = Labels | MomentTruth
SCORED = "the windows have scores, which a submission has not; `write` removes them"


class Findings(NamedTuple):
    """What was found in a file or a package.

    Attributes:
        notes: Unusual content, which is scored anyway.
        size: Numbers of queries and answers.
    """

    problems: list[str]
    notes: list[str]
    size: str


def check_output(data: bytes, edition: Edition, truth: AnyTruth | None) -> Findings:
    """Check a file to submit, without a truth only by itself."""
    if edition.output == "windows":
        answers, problems, notes = check_moments(data, edition, truth if isinstance(truth, MomentTruth) else None)
        if answers and answers[0].is_scored:
            notes.append(Problem(None, SCORED))
        size = f"{counted(len(answers), 'query')}, {counted(sum(len(one.windows) for one in answers), 'window')}"
        return Findings([*format_problems(problems)], [*format_problems(notes)], size)
    found = check_csv(data, edition, truth if isinstance(truth, Labels) else None)
    unit = "score" if edition.output == "matrix" else "file name"
    size = f"{counted(len(found.rows), 'query')} x {counted(len(found.header) - 1, unit)}"
    return Findings([*format_problems(found.problems)], [], size)


def require_kind(edition: Edition, known: AnyTruth | None) -> None:
    """Raise SubmissionError if the truth is of clips and the edition of windows, or the other way round."""
    if known is not None and isinstance(known, MomentTruth) != (edition.output == "windows"):
        raise SubmissionError(f"edition {edition.name} needs another kind of --truth or --queries: see check --help")
