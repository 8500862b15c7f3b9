"""The verb report: one page that shows what a run did, how well, where it fails, and lets one listen."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from submission.errors import SubmissionError
from submission.report.elements import Drawing
from submission.runs.finished import has_moments, open_finished, open_finished_moments
from submission.verbs.options import chosen_edition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN[:ENTRY]", help="a finished run (and one of its ranked entries)")
    parser.add_argument(
        "--beside", nargs="+", metavar="RUN[:ENTRY]", default=[], help="others to compare with, query by query"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page to write (default RUN/report.html)")


def run(arguments: argparse.Namespace) -> int:
    from submission.report.page import figures_folder

    folder, figures, out = _write(arguments)
    shown = f"{counted(len(figures), 'figure')} into {figures_folder(out, folder)}"
    print(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB, and {shown}")
    return 0


def _write(arguments: argparse.Namespace) -> tuple[Path, list[Drawing], Path]:
    """The run's folder, the figures, the page."""
    from submission.report.page import write_moments_report, write_report

    names = (arguments.run_folder, *arguments.beside)
    if has_moments(arguments.run_folder):
        run, *others = (open_finished_moments(name) for name in names)
        out = _page(arguments, run.folder)
        return run.folder, write_moments_report(out, run, others), out
    ranked, *rivals = (open_finished(name) for name in names)
    edition = chosen_edition(arguments, {arguments.run_folder: ranked.ranked.edition})
    out = _page(arguments, ranked.folder)
    return ranked.folder, write_report(out, ranked, rivals, edition), out


def _page(arguments: argparse.Namespace, folder: Path) -> Path:
    out: Path = arguments.out or folder / "report.html"
    if out.suffix != ".html":
        raise SubmissionError(f"{out}: the report is a page; give it a name that ends in .html")
    return out
