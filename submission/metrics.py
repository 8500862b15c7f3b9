"""Retrieval metrics from ranks, and ranks from scores. Q queries, C clips, R relevant clips of one query.

There is one order of clips for a query, used by every function of this room: score descending, then file name
ascending by code point (then column, where two clips of a matrix bear one name). The official 2022 code leaves equal
scores in arbitrary order; with a tie the metrics here may differ from it in either direction by that tie's size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from submission.errors import SubmissionError

Ranks = npt.NDArray[np.int64]
CONFIDENCE = 0.95
# Rows handled at once: bounds the memory of a (rows, C) copy, and changes no result.
BLOCK_ROWS = 1024


def average_precision(ranks: npt.ArrayLike, n_relevant: int, k: int = 10) -> float:
    """AP@k of one query.

    ranks: (R,) 1-based ranks of the relevant clips, strictly rising; those beyond k, or never found, may be left out.
    n_relevant: relevant clips in the pool, found or not; the divisor.
    Returns sum_i i / ranks[i] over ranks[i] <= k, divided by n_relevant; in [0, 1].
    Raises SubmissionError for ranks that do not rise or start below 1, and for n_relevant below 1 or below R.
    Source: DCASE 2022 eval_script.py (one relevant clip per query) and DCASE 2025 retrieval_module.py (several).
    Deviations: none for one relevant clip listed once. The 2022 script adds a clip again each time a row repeats it,
    so its AP can exceed 1; here such a row is refused when it is read.

    >>> average_precision([2], 1)
    0.5
    """
    return _average_precision(_rising(ranks, n_relevant), n_relevant, k)


def recall(ranks: npt.ArrayLike, n_relevant: int, k: int) -> float:
    """R@k of one query.

    ranks, n_relevant: as for average_precision.
    Returns the relevant clips among the first k, divided by n_relevant; in [0, 1].
    Raises SubmissionError as average_precision does.
    Source: DCASE 2022 eval_script.py (one relevant clip per query: 0 or 1). Deviations: none.

    >>> recall([1, 7], 2, 5)
    0.5
    """
    return _recall(_rising(ranks, n_relevant), n_relevant, k)


def relevant_ranks(
    values: npt.NDArray[np.floating], relevant: Sequence[Sequence[int]], names: Sequence[str]
) -> list[Ranks]:
    """Ranks of every query's relevant clips.

    values: (Q, C) scores, finite, higher is better. relevant: per query the columns of its relevant clips.
    names: (C,) file names, which order clips of equal score.
    Returns per query its R ranks, 1-based and rising: 1 + clips that score higher + clips of equal score that come
    first by name. A matrix of one constant therefore scores as the alphabet does, not as a perfect system.
    Raises SubmissionError for a score that is not finite, for lengths that disagree, and for a column that is out of
    range or named twice for one query.
    """
    require_finite(values)
    if len(relevant) != len(values) or len(names) != values.shape[1]:
        raise SubmissionError(
            f"scores of shape {values.shape} need {values.shape[0]} lists of relevant columns and {values.shape[1]} "
            f"file names; there are {len(relevant)} and {len(names)}"
        )
    position = np.empty(len(names), dtype=np.int64)
    position[_by_name(names)] = np.arange(len(names))
    counts = np.array([len(own) for own in relevant], dtype=np.int64)
    rows = np.repeat(np.arange(len(relevant)), counts)
    columns = np.array([column for own in relevant for column in own], dtype=np.int64)
    if np.any((columns < 0) | (columns >= len(names))):
        raise SubmissionError(f"a relevant column is outside 0 to {len(names) - 1}")
    ranks = np.empty(len(rows), dtype=np.int64)
    for block in _blocks(len(rows)):
        scores = values[rows[block]]
        own_column = columns[block, None]
        own_score = np.take_along_axis(scores, own_column, axis=1)
        ahead = (scores > own_score) | ((scores == own_score) & (position < position[own_column]))
        ranks[block] = 1 + np.count_nonzero(ahead, axis=1)
    per_query = [np.sort(own) for own in np.split(ranks, np.cumsum(counts))[:-1]]
    for query, own in enumerate(per_query):
        if np.any(own[1:] == own[:-1]):
            raise SubmissionError(f"row {query} of the scores names one relevant column twice")
    return per_query


def ranked_columns(values: npt.NDArray[np.floating], names: Sequence[str], k: int) -> npt.NDArray[np.int64]:
    """Columns of the k best clips of every query, best first, in this module's one order.

    values: (Q, C) scores, finite. names: (C,) file names. k: at most C.
    Returns (Q, k). Raises SubmissionError for a score that is not finite.
    """
    require_finite(values)
    by_name = _by_name(names)
    best = np.empty((len(values), k), dtype=np.int64)
    for block in _blocks(len(values)):
        # A stable sort of columns that stand in name order leaves equal scores in name order.
        best[block] = by_name[np.argsort(-values[block][:, by_name], axis=1, kind="stable")[:, :k]]
    return best


def require_finite(values: npt.NDArray[np.floating]) -> None:
    """Raises SubmissionError naming the first NaN or infinite score: it has no place in an order."""
    for block in _blocks(len(values)):
        finite = np.isfinite(values[block])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise SubmissionError(
                f"the score in row {block.start + row}, column {column} (from 0) is {values[block][row, column]}; "
                "every score must be a finite number"
            )


def jackknife_interval(per_query: npt.ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Confidence interval of a mean over queries.

    per_query: (Q,) one metric's value per query. confidence: in (0, 1).
    Returns mean -+ z * standard error, not clipped to [0, 1]; (nan, nan) for one query, which shows no spread.
    Raises SubmissionError for no query at all.
    Source: DCASE 2022 eval_script.py, which calls astropy's jackknife_stats with the mean: there the jackknife
    estimate is the mean, and its standard error is the standard deviation (Q - 1 degrees) over sqrt(Q).
    Deviations: none (rounding below 1e-12). As there, captions of one clip count as independent queries, though
    they are not: the interval is somewhat too narrow.

    >>> low, high = jackknife_interval([0.0, 1.0])
    >>> round(low, 4), round(high, 4)
    (-0.48, 1.48)
    """
    samples = np.asarray(per_query, dtype=np.float64)
    if samples.size == 0:
        raise SubmissionError("there is no query to take a mean over")
    if samples.size == 1:
        return (float("nan"), float("nan"))
    half_width = NormalDist().inv_cdf((1 + confidence) / 2) * samples.std(ddof=1) / np.sqrt(samples.size)
    return (float(samples.mean() - half_width), float(samples.mean() + half_width))


def chance(n_clips: int, k: int = 10, n_relevant: float = 1) -> float:
    """Expected mAP@k of a random order.

    n_clips: clips in the pool, C. n_relevant: relevant clips per query, R (a mean over queries serves: the
    expectation is linear in R).
    Returns (H_k + (k - H_k) (R - 1) / (C - 1)) / C with H_k = 1 + 1/2 + ... + 1/k and k cut to C; H_k / C for R = 1.
    Raises SubmissionError unless 1 <= n_relevant <= n_clips.
    Source: ours, from the definition: rank p holds a relevant clip with probability R / C, and then (p - 1)(R - 1) /
    (C - 1) more stand above it on average.

    >>> chance(2, k=10)
    0.75
    """
    if not 1 <= n_relevant <= n_clips:
        raise SubmissionError(f"a pool of {n_clips} clips cannot hold {n_relevant} relevant ones")
    depth = min(k, n_clips)
    harmonic = sum(1 / rank for rank in range(1, depth + 1))
    further = (n_relevant - 1) / (n_clips - 1) if n_clips > 1 else 0.0
    return (harmonic + (depth - harmonic) * further) / n_clips


@dataclass(frozen=True)
class Summary:
    """Means over queries.

    values: metric as published ("R@1", ..., "mAP@10") -> mean in [0, 1], in the order of a results table.
    interval: 95 % jackknife interval of mAP@map_k. map_k: its k. n_queries: queries averaged.
    n_relevant: relevant clips per query, mean. n_clips: clips in the pool, if known.
    """

    values: dict[str, float]
    interval: tuple[float, float]
    map_k: int
    n_queries: int
    n_relevant: float
    n_clips: int | None = None

    def lines(self) -> list[str]:
        """The summary as text, one figure a line; clips and the chance level only where the pool's size is known."""
        metric = f"mAP@{self.map_k}"
        low, high = self.interval
        spread = f"{low:.4f} to {high:.4f}" if self.n_queries > 1 else "none, one query shows no spread"
        table = [("queries", str(self.n_queries))]
        table += [(name, f"{value:.4f}") for name, value in self.values.items()]
        table.append(("95 %", f"{spread} ({metric}, jackknife over queries)"))
        if self.n_clips is not None:
            table.insert(1, ("clips", str(self.n_clips)))
            level = chance(self.n_clips, self.map_k, self.n_relevant)
            table.append(("chance", f"{level:.4f} ({metric} of a random order)"))
        return [f"{name:8}{text}" for name, text in table]


def summarise(
    ranks: Sequence[npt.ArrayLike],
    n_relevant: Sequence[int],
    ks: Sequence[int] = (1, 5, 10),
    map_k: int = 10,
    n_clips: int | None = None,
) -> Summary:
    """Means over queries of R@k for every k of ks, and of mAP@map_k.

    ranks: per query, as average_precision takes them. n_relevant: (Q,) relevant clips per query.
    n_clips: clips in the pool, if known.
    Raises SubmissionError for no queries, for lengths that disagree, and as average_precision does.
    """
    if len(ranks) != len(n_relevant):
        raise SubmissionError(f"{len(ranks)} queries have ranks and {len(n_relevant)} a number of relevant clips")
    queries = [(_rising(own, total), total) for own, total in zip(ranks, n_relevant, strict=True)]
    precisions = np.array([_average_precision(own, total, map_k) for own, total in queries])
    interval = jackknife_interval(precisions)
    values = {f"R@{k}": float(np.mean([_recall(own, total, k) for own, total in queries])) for k in ks}
    values[f"mAP@{map_k}"] = float(precisions.mean())
    return Summary(values, interval, map_k, len(queries), float(np.mean(n_relevant)), n_clips)


def _average_precision(ranks: Ranks, n_relevant: int, k: int) -> float:
    precisions = [found / rank for found, rank in enumerate(ranks.tolist(), start=1) if rank <= k]
    return float(sum(precisions) / n_relevant)


def _recall(ranks: Ranks, n_relevant: int, k: int) -> float:
    return int(np.count_nonzero(ranks <= k)) / n_relevant


def _rising(ranks: npt.ArrayLike, n_relevant: int) -> Ranks:
    array = np.asarray(ranks)
    listed = array.tolist()
    if listed and (array.dtype.kind not in "iu" or listed[0] < 1 or any(np.diff(array) <= 0)):
        raise SubmissionError(f"ranks must be whole numbers from 1 that rise strictly; got {listed}")
    if n_relevant < max(1, len(listed)):
        raise SubmissionError(f"{len(listed)} ranks are given for {n_relevant} relevant clips")
    return array.astype(np.int64)


def _by_name(names: Sequence[str]) -> npt.NDArray[np.int64]:
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK_ROWS, length)) for start in range(0, length, BLOCK_ROWS))
