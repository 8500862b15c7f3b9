"""The verb compare: a paired test between a system and others over the same queries."""

import argparse

from data_tools.cli import add_json, counted
from submission.metrics.compare import compare
from submission.metrics.summary import format_interval
from submission.verbs.options import SCORED, add_truth_arguments, read_summaries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", metavar="SYSTEM", help=SCORED)
    parser.add_argument("others", metavar="OTHER", nargs="+", help=f"{SCORED}; of several, their mean")
    add_truth_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    names = [arguments.system, *arguments.others]
    system, *others = read_summaries(names, arguments)
    found = compare(system, others)
    if arguments.json:
        from data_tools.strict import print_report
        from submission.verbs.json_output import comparison_of, score_of

        reports = [score_of(name, each) for name, each in zip(names, (system, *others), strict=True)]
        print_report(comparison_of(reports, found))
        return 0
    for name, summary in zip(names, (system, *others), strict=True):
        print(f"{summary.values[summary.primary]:.4f}  {name}")
        for note in summary.notes:
            print(f"        note: {note}")
    other = "the second" if len(others) == 1 else f"the mean of the other {len(others)}"
    print(
        f"{found.mean:+.4f}  {system.primary}, the first minus {other}; 95 % {format_interval(found.interval, '+.4f')}"
    )
    print(f"p {found.p:.4f}  paired randomisation of {found.n_groups} groups of queries that share their clips")
    print(f"{counted(found.better, 'query')} better, {found.equal} equal, {found.worse} worse")
    return 0
