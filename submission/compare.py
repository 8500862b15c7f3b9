"""The verb compare: a paired test between two systems over the same queries."""

import argparse
from pathlib import Path

import numpy as np

from submission.editions import get_edition
from submission.errors import SubmissionError
from submission.intervals import Difference, paired_difference
from submission.score import add_truth_arguments, read_summary
from submission.summary import Summary


def compare(first: Summary, second: Summary) -> Difference:
    """The second system's primary metric minus the first's, query by query.

    Rows may stand in another order where every text is there once. Raises SubmissionError for other queries, pools or
    relevant clips.
    """
    order = _same_queries(first, second)
    if first.found.n_pool != second.found.n_pool or not np.array_equal(
        first.found.n_relevant, second.found.n_relevant[order]
    ):
        raise SubmissionError("the systems ranked other pools, or by other relevant clips; compare them over the same")
    return paired_difference(
        first.per_query[first.primary], second.per_query[second.primary][order], first.found.groups
    )


def _same_queries(first: Summary, second: Summary) -> list[int]:
    """Places of the first one's queries in the second one."""
    texts, others = first.found.texts, second.found.texts
    if texts == others:
        return list(range(len(texts)))
    place = {text: row for row, text in enumerate(others)}
    if len(place) < len(others) or set(texts) != set(others) or len(texts) != len(others):
        raise SubmissionError(
            f"the systems answer other queries ({len(texts)} and {len(others)}); compare them over the same ones"
        )
    return [place[text] for text in texts]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        parser.add_argument(name, metavar=name.upper(), type=Path, help="the edition's CSV, or a score matrix (.npy)")
    add_truth_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    edition = get_edition(arguments.edition)
    paths = (arguments.first, arguments.second)
    first, second = (read_summary(path, edition, arguments) for path in paths)
    found = compare(first, second)
    low, high = found.interval
    for path, summary in zip(paths, (first, second), strict=True):
        print(f"{summary.values[summary.primary]:.4f}  {path}")
    print(f"{found.mean:+.4f}  {first.primary}, the second minus the first; 95 % {low:+.4f} to {high:+.4f}")
    print(f"p {found.p:.4f}  paired randomisation of {found.n_groups} groups of queries that share their clips")
    print(f"{found.better} queries better, {found.equal} equal, {found.worse} worse")
    return 0
