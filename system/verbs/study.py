"""Verb study: several seeds and settings.

Run a recipe with several seeds and settings, and write the table of results.
"""

import argparse
import logging
from pathlib import Path

from data_tools.files import lock_of, remove_parts, write_text
from system.compute.processes import is_first, processes
from system.experiments.study import load_study, run_study
from system.verbs.options import add_changes_argument, add_device_argument, add_runs_argument, add_track_argument

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `study` to its parser."""
    parser.add_argument("study", type=Path, help="file of the study to run (.study.yaml)")
    add_changes_argument(parser)
    add_runs_argument(parser)
    add_device_argument(parser)
    add_track_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `study`: run all cells (variants) of a study, and print its table. Returns: The exit status."""
    study, cells = load_study(arguments.study, arguments.set, arguments.runs)
    with processes(arguments.device):
        table = run_study(study, cells, arguments.runs, arguments.device, arguments.track)
        if not is_first():
            return 0
    text = table.markdown()
    if study.published:
        text += f"\nFigures of the paper: {study.published.source}\n"
    folder = arguments.runs / study.name
    with lock_of(folder / ".table"):
        remove_parts(folder)
        write_text(folder / "table.md", text)
        write_text(folder / "table.tex", table.latex())
        write_text(folder / "table.csv", table.csv())
    print(text, end="")
    return 0
