"""The verb report: one page that shows what a run did, how well, where it fails, and lets one listen."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from submission.errors import SubmissionError
from submission.runs.finished import open_finished
from submission.verbs.options import chosen_edition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN[:ENTRY]", help="a finished run (and one of its ranked entries)")
    parser.add_argument(
        "--beside", nargs="+", metavar="RUN[:ENTRY]", default=[], help="others to compare with, query by query"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page to write (default RUN/report.html)")


def run(arguments: argparse.Namespace) -> int:
    from submission.report.page import write_report

    run, *others = (open_finished(text) for text in (arguments.run_folder, *arguments.beside))
    edition = chosen_edition(arguments, {arguments.run_folder: run.ranked.edition})
    out = arguments.out or run.folder / "report.html"
    if out.suffix != ".html":
        raise SubmissionError(f"{out}: the report is a page; give it a name that ends in .html")
    figures = write_report(out, run, others, edition)
    shown = f"{counted(len(figures), 'figure')} into {run.folder / 'figures'}"
    print(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB, and {shown}")
    return 0
