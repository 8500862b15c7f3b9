"""Verb compare: test two systems.

Compare a system with the mean of other systems by a paired test over the same queries.
"""

import argparse

from data_tools.cli import add_json, counted
from submission.editions import format_metric
from submission.metrics.compare import compare
from submission.metrics.summary import format_interval
from submission.verbs.options import SYSTEM_HELP, add_truth_arguments, read_summaries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `compare` to its parser."""
    parser.add_argument("system", metavar="SYSTEM", help=SYSTEM_HELP)
    parser.add_argument("others", metavar="OTHER", nargs="+", help=f"{SYSTEM_HELP}; several systems are averaged")
    add_truth_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `compare`: compare a system with other systems by a paired test; return the exit status."""
    names = [arguments.system, *arguments.others]
    system, *others = read_summaries(names, arguments)
    differences = {metric: compare(system, others, metric) for metric in system.compared_metrics}
    if arguments.json:
        from data_tools.documents.strict import print_report
        from submission.verbs.json_output import compare_report, score_report

        reports = [score_report(name, each) for name, each in zip(names, (system, *others), strict=True)]
        print_report(compare_report(reports, differences[system.primary]))
        return 0
    for name, summary in zip(names, (system, *others), strict=True):
        print(f"{format_metric(summary.primary, summary.values[summary.primary])}  {name}")
        for note in summary.notes:
            print(f"        note: {note}")
    other = "the second" if len(others) == 1 else f"the mean of the other {len(others)} systems"
    for metric, difference in differences.items():
        interval = format_interval(difference.interval, metric, "+")
        print(f"{format_metric(metric, difference.mean, '+')}  {metric}, the first minus {other}; 95 % {interval}")
        print(
            f"p {difference.p:.4f}  paired randomisation test with {difference.n_groups} groups of queries that share "
            f"{system.sharing}"
        )
        better = counted(difference.better, "query")
        print(f"the first is better for {better}, equal for {difference.equal}, worse for {difference.worse}")
    return 0
