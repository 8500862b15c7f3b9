"""The verb compare: a paired test between a system and others over the same queries."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from submission.editions import get_edition
from submission.metrics.compare import compare
from submission.metrics.summary import format_interval
from submission.verbs.options import add_truth_arguments, read_summaries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of = "the edition's CSV, or a score matrix (.npy)"
    parser.add_argument("system", metavar="SYSTEM", type=Path, help=of)
    parser.add_argument("others", metavar="OTHER", nargs="+", type=Path, help=f"{of}; of several, their mean")
    add_truth_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    edition = get_edition(arguments.edition)
    paths = [arguments.system, *arguments.others]
    system, *others = read_summaries(paths, edition, arguments)
    found = compare(system, others)
    for path, summary in zip(paths, (system, *others), strict=True):
        print(f"{summary.values[summary.primary]:.4f}  {path}")
        for note in summary.notes:
            print(f"        note: {note}")
    other = "the second" if len(others) == 1 else f"the mean of the other {len(others)}"
    print(
        f"{found.mean:+.4f}  {system.primary}, the first minus {other}; 95 % {format_interval(found.interval, '+.4f')}"
    )
    print(f"p {found.p:.4f}  paired randomisation of {found.n_groups} groups of queries that share their clips")
    print(f"{counted(found.better, 'query')} better, {found.equal} equal, {found.worse} worse")
    return 0
