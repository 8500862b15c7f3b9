"""Verb score: print figures.

Print the metrics of a ranked CSV, a matrix CSV, a score matrix, a run, or a file of moments.
"""

import argparse
import logging
from pathlib import Path

from data_tools.cli import add_json, counted
from data_tools.files import require_other, writing
from submission.errors import SubmissionError
from submission.formats.csv_table import format_table
from submission.metrics.moments_summary import MomentSummary
from submission.verbs.options import SYSTEM_HELP, add_truth_arguments, read_summaries

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `score` to its parser."""
    parser.add_argument("system", metavar="SYSTEM", help=SYSTEM_HELP)
    add_truth_arguments(parser)
    add_json(parser)
    per_query = "also write the metrics of each query to this file"
    parser.add_argument("--per-query", metavar="FILE.csv", type=Path, help=per_query)
    by_length = "for moments: also print the metrics for six ranges of lengths of the true windows"
    parser.add_argument("--by-length", action="store_true", help=by_length)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `score`: print the metrics of a CSV, a score matrix or a run; return the exit status."""
    if arguments.per_query:
        require_other(arguments.per_query, [Path(arguments.system), arguments.truth, arguments.annotations])
    (summary,) = read_summaries([arguments.system], arguments)
    by_length: dict[str, float] = {}
    lines = summary.lines()
    if arguments.by_length:
        if not isinstance(summary, MomentSummary):
            raise SubmissionError(
                f"--by-length only works with moments, but {arguments.system} ranks clips; leave out --by-length"
            )
        by_length, lines = summary.figures_by_length(), summary.lines(by_length=True)
    if arguments.json:
        from data_tools.documents.strict import print_report
        from submission.verbs.json_output import score_report

        print_report(score_report(arguments.system, summary, by_length))
    else:
        print("\n".join(lines))
    if arguments.per_query:
        with writing(arguments.per_query) as file:
            file.write(format_table(summary.rows()))
        log.info("wrote %s: %s", arguments.per_query, counted(len(summary.queries.texts), "query"))
    return 0
