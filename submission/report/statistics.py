"""Numbers of the figures.

Compute the numbers that the report's figures show. Q: number of queries; C: number of clips in the pool.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from submission.arrays import Flags, Ints, Values
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.intervals import CONFIDENCE, Groups, Interval
from submission.ordering import Ranks

MAX_QUERIES = 5  # maximum number of queries per listening group
WORDS = (1, 5, 8, 11, 14, 17, 20)  # starts of bins of caption lengths; Clotho's captions have 8 to 20 words
SECONDS = (0, 5, 10, 15, 20, 25, 30)  # starts of bins of clip lengths; Clotho's clips have 15 to 30 s


class ScoreGaps(NamedTuple):
    """Scores of each query's best relevant clip, and of its hardest negative (the best clip that is not relevant).

    Attributes:
        positive: (Q,) score of the best relevant clip.
        negative: (Q,) score of the hardest negative; NaN if all clips are relevant.
        tied: (Q,) whether any clip that is not relevant has exactly the score of the best relevant clip.
    """

    positive: Values
    negative: Values
    tied: Flags

    @property
    def margin(self) -> Values:
        """Score of the best relevant clip minus that of the best other clip for each query, (Q,)."""
        return self.positive - self.negative


def score_gaps(matrix: ScoreMatrix) -> ScoreGaps:
    """Return the scores of the best relevant clip and of the hardest negative for every query.

    >>> values = np.array([[0.5, 0.25, 0.5]], dtype=np.float32)
    >>> found = score_gaps(ScoreMatrix(values, ["q"], ["q"], ["a", "b", "c"], ["a", "b", "c"], [["a", "b"]]))
    >>> float(found.positive[0]), float(found.negative[0]), bool(found.tied[0])
    (0.5, 0.5, True)
    """
    relevant = matrix.relevant_columns()
    positive, negative, tied = np.empty(len(matrix)), np.full(len(matrix), np.nan), np.zeros(len(matrix), bool)
    for row, columns in enumerate(relevant):
        positive[row] = matrix.values[row, columns].max()
        others = np.delete(matrix.values[row], columns)
        if others.size:
            negative[row] = others.max()
            tied[row] = (others == positive[row]).any()
    return ScoreGaps(positive, negative, tied)


def rank_bins(n_pool: int) -> list[tuple[int, int]]:
    """Return the bins of a histogram of ranks up to n_pool, each as (first rank, last rank).

    >>> rank_bins(30)
    [(1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 30)]
    """
    bins, last, decade = [], 0, 1
    while last < n_pool:
        for step in (1, 2, 5):
            if last < n_pool:
                bins.append((last + 1, min(step * decade, n_pool)))
                last = step * decade
        decade *= 10
    return bins


def count_ranks(first: Ranks, bins: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each bin the number of queries whose rank is in it. first: (Q,) ranks of the first relevant clips."""
    return [int(np.count_nonzero((first >= low) & (first <= high))) for low, high in bins]


def random_shares(bins: Sequence[tuple[int, int]], n_pool: int, n_relevant: Ints) -> list[float]:
    """Return for each bin the expected share of queries whose first relevant clip is in it, for clips in random order.

    Args:
        bins: First and last rank of each bin.
        n_pool: Number of clips in the pool, C.
        n_relevant: (Q,) number of relevant clips of each query, R.

    The probability that no relevant clip is among the first r clips is prod_i (C - r - i) / (C - i), i = 0 ... R - 1
    (hypergeometric).

    >>> random_shares([(1, 1), (2, 4)], 4, np.array([1]))
    [0.25, 0.75]
    """
    sizes, counts = np.unique(n_relevant, return_counts=True)

    def beyond(rank: int) -> float:
        """Return the probability that all relevant clips are beyond the rank `rank`, for clips in random order."""
        chances = [math.prod(max(0, n_pool - rank - i) / (n_pool - i) for i in range(size)) for size in sizes]
        return float(np.average(chances, weights=counts))

    return [beyond(low - 1) - beyond(high) for low, high in bins]


class Bar(NamedTuple):
    """Mean of a metric over a group of queries, its 95 % interval, and the number of queries (n)."""

    label: str
    mean: float
    interval: Interval
    n: int


def mean_bars(values: Values, keys: Sequence[object], labels: Mapping[object, str], groups: Groups) -> list[Bar]:
    """Return a bar for each key in `labels`: the mean of a metric over the queries with this key, and its interval.

    Args:
        values: (Q,) value of a metric for each query, in [0, 1].
        keys: (Q,) key of each query, such as a bin of lengths.
        labels: Dict from key to the label of its bar, in the order of the bars. Keys without a query get no bar.
        groups: (Q,) group of each query; values of one group depend on each other, so that the interval gets wider.
    """
    bars = []
    for key, label in labels.items():
        mask = np.array([one == key for one in keys])
        if mask.any():
            interval = share_interval(values[mask], groups[mask])
            bars.append(Bar(label, float(values[mask].mean()), interval, int(mask.sum())))
    return bars


def share_interval(values: Values, groups: Groups) -> Interval:
    """Return Wilson's 95 % interval of the mean of `values` in [0, 1], where values of one group depend on each other.

    The interval is within [0, 1], and wide for few groups. The number of trials is the number of groups or, if these
    differ in size, Kish's effective number of groups, (sum of sizes)^2 / sum of sizes^2.
    Source: Wilson 1927; Kish 1965, section 8.2. Deviations: all values of a group count as one trial, and values may be
    other numbers than 0 or 1. Both can only make the interval wider than the exact interval. The bootstrap is not used
    here, because its interval has no width if all values are equal.

    >>> low, high = share_interval(np.ones(4), np.arange(4))
    >>> round(low, 3), high
    (0.51, 1.0)
    """
    sizes = np.unique(groups, return_counts=True)[1]
    n = float(sizes.sum() ** 2 / (sizes**2).sum())
    z2 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2
    mean = float(values.mean())
    centre, half = mean + z2 / (2 * n), math.sqrt(z2 * (mean * (1 - mean) / n + z2 / (4 * n * n)))
    return max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))


def bin_number(value: float, starts: Sequence[float]) -> int | None:
    """Return the index of the bin that contains `value`; None for NaN. starts: First value of each bin."""
    return None if math.isnan(value) else int(np.searchsorted(starts, value, side="right")) - 1


def bin_labels(starts: Sequence[int], whole: bool) -> dict[object, str]:
    """Return a dict from the index of each bin to its label, e.g. `1–4`. whole: Whether values are whole numbers.

    starts: First value of each bin. If values are not whole numbers, the label of a bin ends with the first value of
    the next bin, e.g. `0–5`.
    """
    ends = [f"{low}–{high - whole}" for low, high in pairwise(starts)]
    return dict(enumerate([*ends, f"{starts[-1]}+"]))


def edge_labels(edges: Values) -> list[str]:
    """Return a label such as `0.100 to 0.200` for each bin between `edges`; close edges get more decimals.

    >>> edge_labels(np.array([0.1, 0.10002, 0.10004]))
    ['0.100000 to 0.100020', '0.100020 to 0.100040']
    """
    steps = np.diff(edges)
    smallest = float(steps[steps > 0].min(initial=1.0))
    decimals = min(17, max(3, math.ceil(-math.log10(smallest)) + 1))
    return [f"{low:.{decimals}f} to {high:.{decimals}f}" for low, high in pairwise(edges)]


def choose_queries(first: Ranks, margin: Values) -> dict[str, list[int]]:
    """Return the rows of the `best`, `median` and `worst` queries, by rank and score margin of the relevant clip.

    first: (Q,) rank of each query's first relevant clip. margin: (Q,) highest score of a relevant clip minus the
    highest score of any other clip; NaN if all clips are relevant.
    Queries are sorted by rank, then by descending margin (NaN first), then by row; the list `worst` begins with the
    worst query. Each list has a third of all queries, at most 5. No query is in two lists.
    """
    margin = np.where(np.isnan(margin), np.inf, margin)
    order = sorted(range(len(first)), key=lambda row: (first[row], -margin[row], row))
    size = min(MAX_QUERIES, max(1, len(order) // 3))
    best, rest = order[:size], order[size:]
    worst, rest = rest[-size:][::-1], rest[:-size]
    start = (len(rest) - size) // 2 if len(rest) > size else 0
    return {"best": best, "median": rest[start : start + size], "worst": worst}
