"""Verb report: make a page of a run.

Write one HTML page with the settings of a run, its metrics, its failures, and clips to listen to.
"""

import argparse
from pathlib import Path

from data_tools.cli import counted
from submission.errors import SubmissionError
from submission.runs.finished import FinishedMoments, open_any_finished, open_finished, open_finished_moments
from submission.verbs.options import chosen_edition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `report` to its parser."""
    parser.add_argument("run_folder", metavar="RUN[:ENTRY]", help="finished run, or one of its ranked entries")
    parser.add_argument(
        "--beside", nargs="+", metavar="RUN[:ENTRY]", default=[], help="other runs to compare with, query by query"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the report to write (default RUN/report.html)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `report`: write a page on a finished run; return the exit status."""
    from submission.report.page import figures_folder, write_moments_report, write_report

    run = open_any_finished(arguments.run_folder)
    out: Path = arguments.out or run.folder / "report.html"
    if out.suffix != ".html":
        raise SubmissionError(f"{out}: the report is an HTML page; give a name that ends in .html")
    if isinstance(run, FinishedMoments):
        figures = write_moments_report(out, run, [open_finished_moments(name) for name in arguments.beside])
    else:
        others = [open_finished(name) for name in arguments.beside]
        edition = chosen_edition(arguments, {arguments.run_folder: run.ranked.edition})
        figures = write_report(out, run, others, edition)
    print(
        f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB, and {counted(len(figures), 'figure')} into "
        f"{figures_folder(out, run.folder)}"
    )
    return 0
