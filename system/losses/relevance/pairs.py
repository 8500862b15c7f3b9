"""Percentiles of CIDEr-D.

They are exact, over all ordered pairs of a corpus, and need a bounded amount of memory.

Non-negative float32 numbers have the same order as their bits, read as whole numbers. A first pass over all scores
counts their upper 17 bits. This determines the bin of every percentile. A second pass counts the lower 15 bits of the
scores in these bins. No score is stored.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from pydantic import FiniteFloat, NonNegativeInt

from data_tools.errors import KitError
from data_tools.settings import Strict
from system.losses.relevance.scorer import SIGMA, NgramFeatures

_LOW_BITS = 15
_BINS = 1 << 16  # of scores; the bins after them, of numbers with a sign, hold the pairs that are left out
_BLOCK_SCORES = 1 << 18  # 1 MiB of scores, which fit into a core's cache
_PART_ROWS = 512  # rows per part of a thread
_OCTAVES, _PER_OCTAVE = range(-10, 4), 8  # of the histogram: scores from 0.001 to 16

Result = TypeVar("Result")


class Histogram(Strict):
    """A histogram of the scores of pairs of captions.

    counts: (K,) numbers of pairs with edges[k] <= score < edges[k + 1]. edges: (K + 1,) 0, and then
    the powers 2^(k/8) for whole numbers k, from 2^-10 to 16, each rounded down by at most 0.4 %.
    """

    edges: list[FiniteFloat]
    counts: list[NonNegativeInt]


class Distribution(Strict):
    """CIDEr-D of all ordered pairs of a corpus.

    pairs: Number of pairs. zeros: Number of pairs with score 0 (or below 2^-133). mean: Mean score, in [0, 10].
    percentiles: The scores at the requested percents, exact in float32.
    """

    pairs: NonNegativeInt
    zeros: NonNegativeInt
    mean: FiniteFloat
    percentiles: list[FiniteFloat]
    histogram: Histogram


class CiderAmong:
    """CIDEr-D between any two of M captions. members: (M,) rows of the captions in `features`. dtype: Of the scores."""

    def __init__(self, features: NgramFeatures, members: np.ndarray, dtype: Any = np.float32) -> None:
        """Build the table of n-gram weights of the captions `members`, and the factors for different lengths."""
        self._features, self._members, self._dtype = features, members, dtype
        from system.losses.relevance import kernel  # imports numba, which takes half a second

        self._kernel = kernel
        lengths = features.lengths[members]
        levels, self._level = np.unique(lengths, return_inverse=True)
        self._penalty = np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype)
        f = features
        self._postings = kernel.build_postings(members, f.start, f.feature, f.reference, f.size, np.empty(0, dtype))

    def __len__(self) -> int:
        """Return the number of captions, M."""
        return len(self._members)

    def scores(self, first: int, last: int) -> np.ndarray:
        """Compute CIDEr-D of candidates `first` to `last` - 1 (rows) with all M captions as references (columns)."""
        f, out = self._features, np.empty((last - first, len(self)), self._dtype)
        members, level = self._members[first:last], self._level[first:last]
        self._kernel.score_captions(members, f.start, f.feature, f.candidate, self._postings, level, self._penalty, out)
        return out


def distribution(features: NgramFeatures, percents: Sequence[float], clip_of: np.ndarray | None = None) -> Distribution:
    """Compute the mean, the percentiles and a histogram of the CIDEr-D scores of pairs of captions.

    Scores are float32. The function needs a few MiB of memory per thread in addition to the features.

    Args:
        percents: The requested percentiles, each in [0, 100]. Percentile q of n scores is the score of rank
            floor(q (n - 1) / 100), counted from 0, without interpolation.
        clip_of: (N,) the clip of each caption; pairs of captions of the same clip are left out. None: all pairs count,
            even the pair of a caption with itself.
    Raises: KitError if all pairs are left out.
    """
    order = np.argsort(features.lengths, kind="stable")  # so that neighbours share a row of the length penalty
    scores = _Scores(CiderAmong(features, order), None if clip_of is None else clip_of[order])
    counts, total = np.zeros(2 * _BINS, np.int64), 0.0
    for part, part_total in scores.apply_to_parts(_count_by_upper_bits):
        counts += part
        total += part_total
    high = counts[:_BINS]
    pairs = int(high.sum())
    if not pairs:
        raise KitError(
            "the corpus has no two captions of different clips; use a corpus of more clips, or set pairs: all"
        )
    ranks = np.array([int(q * (pairs - 1) // 100) for q in percents])
    return Distribution(
        pairs=pairs,
        zeros=int(high[0]),
        mean=total / pairs,
        percentiles=_scores_at_ranks(scores, high, ranks),
        histogram=_merge_bins(high),
    )


class _Scores:
    """The CIDEr-D of all pairs of captions, computed again at every use, block by block to save memory."""

    def __init__(self, among: CiderAmong, clip_of: np.ndarray | None) -> None:
        """Store the scorer. clip_of: Clip of each caption, to leave out pairs of one clip; None: all pairs count."""
        self._among, self._clip_of = among, clip_of

    def apply_to_parts(self, of_blocks: Callable[[Iterator[np.ndarray]], Result]) -> Iterator[Result]:
        """Divide all scores into parts, apply `of_blocks` to each part in a thread, and yield the results in order.

        A part has the scores of _PART_ROWS candidates; the function gets an iterator of blocks of these scores.
        """
        starts = range(0, len(self._among), _PART_ROWS)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            yield from threads.map(lambda start: of_blocks(self._score_blocks(start)), starts)

    def _score_blocks(self, start: int) -> Iterator[np.ndarray]:
        """Yield the scores of the part that begins with candidate `start`, in blocks (R, M) of R candidates.

        Pairs that are left out have the score -0. This score adds nothing to sums. Its bits, read as a whole number,
        are larger than those of all other scores, so that these pairs are counted apart from all others.
        """
        stop = min(start + _PART_ROWS, len(self._among))
        rows = max(1, _BLOCK_SCORES // len(self._among))
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            block = self._among.scores(first, last)
            if self._clip_of is not None:
                np.copyto(block, -0.0, where=self._clip_of[first:last, None] == self._clip_of)
            yield block


def _count_by_upper_bits(blocks: Iterator[np.ndarray]) -> tuple[np.ndarray, float]:
    """Count scores by the value of their upper bits; return the counts, (2 x _BINS,), and the sum of the scores."""
    from system.losses.relevance import kernel

    counts, total = np.zeros(2 * _BINS, np.int64), 0.0
    for block in blocks:
        total += float(block.sum(1).sum(dtype=np.float64))
        bits = block.ravel().view(np.uint32)
        kernel.count_upper_bits(bits, _LOW_BITS, counts)
    return counts, total


def _count_by_lower_bits(blocks: Iterator[np.ndarray], row: np.ndarray) -> np.ndarray:
    """Count float32 scores by their lower 15 bits, in one row for each wanted value of their upper 17 bits: (K, 2^15).

    row: (2^17,) index of the row, 0 to K - 1, for each value of the upper bits; -1: scores with this value are not
    counted.
    """
    from system.losses.relevance import kernel

    counts = np.zeros((int(row.max()) + 1, 1 << _LOW_BITS), np.int64)
    for block in blocks:
        kernel.count_lower_bits(block.ravel().view(np.uint32), _LOW_BITS, row, counts)
    return counts


def _scores_at_ranks(scores: _Scores, high: np.ndarray, ranks: np.ndarray) -> list[float]:
    """Return the scores at the positions `ranks` (from 0) of the sorted list of all scores.

    high: (_BINS,) number of scores for each value of their upper bits.
    """
    up_to = high.cumsum()
    bins = np.searchsorted(up_to, ranks, side="right")
    wanted, row_of_rank = np.unique(bins, return_inverse=True)
    row = np.full(2 * _BINS, -1, np.int64)
    row[wanted] = np.arange(len(wanted))
    low = np.zeros((len(wanted), 1 << _LOW_BITS), np.int64)
    for part in scores.apply_to_parts(lambda blocks: _count_by_lower_bits(blocks, row)):
        low += part
    within = ranks - (up_to - high)[bins]
    lower = [np.searchsorted(low[k].cumsum(), rank, side="right") for k, rank in zip(row_of_rank, within, strict=True)]
    return list(map(float, (bins << _LOW_BITS | lower).astype(np.uint32).view(np.float32)))


def _merge_bins(high: np.ndarray) -> Histogram:
    """Convert the counts of scores by their upper bits (`high`) to a histogram with fewer bins."""
    octaves = np.arange(_OCTAVES.start * _PER_OCTAVE, _OCTAVES.stop * _PER_OCTAVE + 1) / _PER_OCTAVE
    first = np.append(np.uint32(0), np.exp2(octaves).astype(np.float32).view(np.uint32) >> _LOW_BITS)
    edges = (first << _LOW_BITS).view(np.float32)
    return Histogram(edges=edges.tolist(), counts=np.add.reduceat(high, first[:-1]).tolist())
