"""The verb score: figures of a ranked CSV, a matrix CSV, or a score matrix."""

import argparse
import logging
from pathlib import Path

from data_tools.cli import add_json, counted
from data_tools.files import require_other
from submission.files import writing
from submission.formats.csv_table import format_table
from submission.metrics.summary import Summary
from submission.verbs.options import SCORED, add_truth_arguments, read_summaries

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", metavar="SYSTEM", help=SCORED)
    add_truth_arguments(parser)
    add_json(parser)
    parser.add_argument("--per-query", metavar="FILE.csv", type=Path, help="write a line a query with its own figures")


def run(arguments: argparse.Namespace) -> int:
    if arguments.per_query:
        require_other(arguments.per_query, [Path(arguments.system), arguments.truth, arguments.annotations])
    (summary,) = read_summaries([arguments.system], arguments)
    if arguments.json:
        from data_tools.strict import print_report
        from submission.verbs.json_output import score_of

        print_report(score_of(arguments.system, summary))
    else:
        print("\n".join(summary.lines()))
    if arguments.per_query:
        with writing(arguments.per_query) as file:
            file.write(format_table(per_query_rows(summary)))
        log.info("wrote %s: %s", arguments.per_query, counted(len(summary.found.texts), "query"))
    return 0


def per_query_rows(summary: Summary) -> list[list[str]]:
    """A table of every query: its text, relevant ones, ranks of those that are found, and values."""
    found = summary.found
    depth = found.depth or found.n_pool
    header = ["query", "relevant", "ranks", *(name.removeprefix("m") for name in summary.per_query)]
    queries = zip(found.texts, found.n_relevant, found.ranks.tolist(), *summary.per_query.values(), strict=True)
    rows = [header]
    for text, total, ranks, *values in queries:
        known = " ".join(str(rank) for rank in ranks if rank <= depth)
        rows.append([text, str(total), known, *(f"{value:.6g}" for value in values)])
    return rows
