"""The verb study: a recipe over seeds and changed settings, and its table."""

import argparse
import logging
from pathlib import Path

from data_tools.files import remove_parts, write_text
from data_tools.locks import lock_of
from system.experiments.study import load_study, run_study

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="a study (.study.yaml)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting in every cell"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")


def run(arguments: argparse.Namespace) -> int:
    study, cells = load_study(arguments.study, arguments.set)
    for line in dict.fromkeys(line for loaded in cells.values() for line in loaded.renamed):
        log.warning("%s", line)
    table = run_study(study, cells, arguments.runs)
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
