"""Verb runs: table of all runs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_tools.cli import add_json
from data_tools.files import require_folder
from data_tools.settings import print_report
from submission.editions import format_metric
from system.runs.overview import Figure, RunOverview, overviews
from system.verbs.json_output import RunsReport

SORTED_BY: dict[str, Callable[[RunOverview], Any]] = {
    "name": lambda run: run.run,
    "validation": lambda run: -run.validation.value if run.validation else 0.0,
    "test": lambda run: -run.test.value if run.test else 0.0,
    "time": lambda run: -(run.seconds or 0.0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `runs` to its parser."""
    parser.add_argument(
        "runs", nargs="?", type=Path, default=Path("runs"), help="folder that contains all runs (default: runs)"
    )
    parser.add_argument(
        "--sort",
        choices=tuple(SORTED_BY),
        default="name",
        help=(
            "order of runs: by name; by validation or test, best first; by time, longest first (default: %(default)s)"
        ),
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `runs`: print a table of all runs. Returns: The exit status."""
    require_folder(arguments.runs, "name the folder that contains all runs")
    runs = sorted(overviews(arguments.runs), key=SORTED_BY[arguments.sort])
    if arguments.json:
        print_report(RunsReport(runs=runs))
        return 0
    if not runs:
        print(f"{arguments.runs}: no run yet; make a run with lbar run RECIPE")
    header = ("run", "state", "trained", "validation", "test", "training hours", "changes")
    rows = [header, *(_row(entry, arguments.runs) for entry in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows if runs else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(entry: RunOverview, runs: Path) -> tuple[str, ...]:
    """Return the texts of one row of the table of runs: the row of the run `entry`.

    The name of a run is its path relative to `runs`, the folder of all runs, such as STUDY/CELL_s1.
    """
    return (
        Path(entry.run).name if Path(entry.run) == runs else Path(entry.run).relative_to(runs).as_posix(),
        entry.state,
        f"{entry.stage} {entry.epoch}" if entry.stage else "-",
        _format_figure(entry.validation),
        _format_figure(entry.test),
        "-" if entry.seconds is None else f"{entry.seconds / 3600:.2f}",
        entry.problem or " ".join(entry.changes) or "-",
    )


def _format_figure(figure: Figure | None) -> str:
    """Format a metric of a run as name and value; "-" if the run does not have this metric."""
    return "-" if figure is None else f"{figure.metric} {format_metric(figure.metric, figure.value)}"
