"""A paired test between a system and others over the same queries."""

from collections.abc import Sequence

import numpy as np

from submission.errors import SubmissionError
from submission.metrics.intervals import Difference, paired_difference
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.summary import Summary

Comparable = Summary | MomentSummary


def compare(system: Comparable, others: Sequence[Comparable], metric: str | None = None) -> Difference:
    """A system's metric minus the mean of the others', query by query. metric: None: the primary one.

    Of several others, such as seeds, each query's values are averaged: a system is held against the one to be expected,
    not the best. Rows may stand in another order where every text is there once. Raises SubmissionError for other
    queries, pools, or numbers of relevant clips.
    """
    theirs = []
    for other in others:
        order = _same_queries(system, other)
        if system.found.n_pool != other.found.n_pool or not np.array_equal(
            system.found.n_relevant, other.found.n_relevant[order]
        ):
            raise SubmissionError(
                "the systems ranked other pools, or by other relevant clips; compare them over the same"
            )
        theirs.append(other.per_query[metric or other.primary][order])
    return paired_difference(np.mean(theirs, axis=0), system.per_query[metric or system.primary], system.found.groups)


def _same_queries(system: Comparable, other: Comparable) -> list[int]:
    """Places of the system's queries in the other one."""
    texts, others = system.found.texts, other.found.texts
    if texts == others:
        return list(range(len(texts)))
    row_of = {text: row for row, text in enumerate(others)}
    if len(row_of) < len(others) or set(texts) != set(others) or len(texts) != len(others):
        raise SubmissionError(
            f"the systems answer other queries ({len(texts)} and {len(others)}); compare them over the same ones"
        )
    return [row_of[text] for text in texts]
