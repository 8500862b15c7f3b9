"""Paired test between systems.

A paired test between a system and the mean of other systems over the same queries.
"""

from collections.abc import Sequence

import numpy as np

from submission.errors import SubmissionError
from submission.metrics.intervals import Difference, paired_difference
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.summary import Summary

Comparable = Summary | MomentSummary


def compare(system: Comparable, others: Sequence[Comparable], metric: str | None = None) -> Difference:
    """Return the difference in a metric between a system and the mean of other systems, with a paired test.

    metric: Name of the metric; None for the primary metric.
    The values of several other systems, such as seeds, are averaged for each query. The system is thus compared with
    their mean, not with the best of them. The queries of the systems may have different orders if every text occurs
    once. Raises SubmissionError for systems with different queries, pools, or numbers of relevant clips.
    """
    values_of_others = []
    for other in others:
        order = _row_order(system, other)
        if system.queries.n_pool != other.queries.n_pool or not np.array_equal(
            system.queries.n_relevant, other.queries.n_relevant[order]
        ):
            raise SubmissionError(
                "the systems have different pools or relevant clips; compare systems that rank the same clips"
            )
        values_of_others.append(other.per_query[metric or other.primary][order])
    return paired_difference(
        np.mean(values_of_others, axis=0), system.per_query[metric or system.primary], system.queries.groups
    )


def _row_order(system: Comparable, other: Comparable) -> list[int]:
    """Return, for each query of `system`, the number of its row in `other`.

    Raises SubmissionError unless both systems have the same queries.
    """
    texts, others = system.queries.texts, other.queries.texts
    if texts == others:
        return list(range(len(texts)))
    row_of = {text: row for row, text in enumerate(others)}
    if len(row_of) < len(others) or set(texts) != set(others) or len(texts) != len(others):
        raise SubmissionError(
            f"the systems have different queries ({len(texts)} and {len(others)}); compare systems for the same queries"
        )
    return [row_of[text] for text in texts]
