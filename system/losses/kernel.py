"""Compiled loops of CIDEr-D, which run without Python's global lock.

numba compiles them at their first use, in seconds. It caches the code in this folder's `__pycache__`, or in the user's
cache folder if that cannot be written.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

# R candidates and M references, captions with several features each; B items


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop with numba, and cache the code."""
    try:
        return numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # neither folder can be written: compile in every process
        return numba.njit(nogil=True)(loop)


@compiled
def score_captions(candidates: Any, references: Any, penalty: np.ndarray, out: np.ndarray) -> None:
    """Write CIDEr-D of candidates and references to `out`, (R, M).

    Args:
        candidates: The parts of a sparse matrix by rows: first entry of each candidate, feature and weight of entries;
            then the row of each candidate in `penalty`.
        references: The parts of a sparse matrix by columns: first entry of each feature, reference and weight of
            entries; then, for frequent features, the row of all weights, or -1, and these rows, (K, M).
        penalty: Factors for different lengths, (L, M).
    """
    start, feature, value, level = candidates
    begin, column, weight, dense_row, dense = references
    for r in range(len(out)):
        row = out[r]
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
        factors = penalty[level[r]]
        for m in range(len(row)):
            row[m] *= factors[m]


@compiled
def count_upper_bits(bits: np.ndarray, shift: int, counts: np.ndarray) -> None:
    """Count float32 numbers by their upper bits.

    Args:
        bits: The numbers, read as whole numbers.
        shift: Number of lowest bits, which are ignored.
        counts: By the other bits, to which is added.
    """
    for x in bits:
        counts[x >> shift] += 1


@compiled
def add_to_items(scores: np.ndarray, rows: np.ndarray, columns: np.ndarray, sums: np.ndarray) -> None:
    """Add scores of captions to those of their items.

    Args:
        scores: (R, M) of candidates and references.
        rows, columns: Items of the candidates and of the references.
        sums: (B, B), to which is added.
    """
    for r in range(len(scores)):
        row, added = scores[r], sums[rows[r]]
        for m in range(len(columns)):
            added[columns[m]] += row[m]
