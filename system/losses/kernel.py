"""Compiled loops of CIDEr-D, which run without Python's global lock.

numba compiles them at their first use, in seconds. It caches the code in this folder's `__pycache__`, or in the user's
cache folder if that cannot be written.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

# N captions, each of which is a candidate and a reference; B items


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop with numba, and cache the code."""
    try:
        return numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # neither folder can be written: compile in every process
        return numba.njit(nogil=True)(loop)


@compiled
def _score(r: int, pairs: Any, row: np.ndarray) -> None:
    """Write CIDEr-D of a candidate and all references to `row`, (N,)."""
    start, feature, value, level, begin, column, weight, dense_row, dense, penalty = pairs
    row[:] = 0
    for e in range(start[r], start[r + 1]):
        f, factor = feature[e], value[e]
        if dense_row[f] >= 0:
            added = dense[dense_row[f]]
            for m in range(len(row)):
                row[m] += factor * added[m]
        else:
            for p in range(begin[f], begin[f + 1]):
                row[column[p]] += factor * weight[p]
    row *= penalty[level[r]]


@compiled
def sum_by_items(first: int, step: int, pairs: Any, starts: np.ndarray, sums: np.ndarray) -> None:
    """Sum the scores of two items' captions.

    Args:
        first, step: First item of candidates, and distance to the next one.
        pairs: The parts of a sparse matrix by rows: first entry of each candidate, feature and weight of entries; the
            row of each candidate in the last part. Then the parts of a sparse matrix by columns: first entry of each
            feature, reference and weight of entries; for frequent features, the row of all weights, or -1, and these
            rows, (K, N). The last part: factors for different lengths, (L, N).
        starts: (B + 1,) first caption of each item, and N.
        sums: (B, B) of candidates and references; every `step`-th row is written.
    """
    row, total = np.empty(starts[-1], sums.dtype), np.empty(starts[-1], sums.dtype)
    for i in range(first, len(sums), step):
        total[:] = 0
        for r in range(starts[i], starts[i + 1]):
            _score(r, pairs, row)
            total += row
        for j in range(len(sums)):
            sums[i, j] = total[starts[j] : starts[j + 1]].sum()


@compiled
def count_upper_bits(first: int, step: int, pairs: Any, shift: int, counts: np.ndarray) -> None:
    """Count scores, as float32, by their upper bits.

    Args:
        first, step: First candidate, and distance to the next one.
        pairs: See `sum_by_items`.
        shift: Number of lowest bits, which are ignored.
        counts: (threads, bins) by the other bits; it is added to row `first`.
    """
    row = np.empty(pairs[-1].shape[1], np.float32)
    for r in range(first, len(row), step):
        _score(r, pairs, row)
        for bits in row.view(np.uint32):
            counts[first, bits >> shift] += 1
