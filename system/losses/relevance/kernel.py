"""The compiled loops of CIDEr-D: scores of rows against all captions of a set, and counting float32 by their bits.

numba compiles them at their first use (seconds) and keeps the code in `__pycache__` here, or in the user's cache folder
where that cannot be written. They run without Python's lock."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

_DENSE_SHARE = 12  # a feature of more than 1 in 12 captions is kept as a full row, which is faster to add


def _compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # neither folder can be written: compiled anew in every process
        compiled = numba.njit(nogil=True)(loop)
    return compiled


class Postings(NamedTuple):
    """The references' weights by feature: M captions, S features that they have, numbered from 1.

    slot: (size,) a feature's number among those, 0 for none. begin: (S + 2,) of each one's places in
    column and weight. dense_row: (S + 1,) its row in dense (K, M), -1 for none.
    """

    slot: np.ndarray
    begin: np.ndarray
    column: np.ndarray
    weight: np.ndarray
    dense_row: np.ndarray
    dense: np.ndarray


@_compiled
def postings(
    captions: np.ndarray, start: np.ndarray, feature: np.ndarray, reference: np.ndarray, size: int, like: np.ndarray
) -> Any:
    """Postings of captions (M,) among the rows of Features, with weights of `like`'s type."""
    slot = np.zeros(size, np.int32)
    entries = slots = 0
    for caption in captions:
        for e in range(start[caption], start[caption + 1]):
            entries += 1
            if slot[feature[e]] == 0:
                slots += 1
                slot[feature[e]] = slots
    begin = np.zeros(slots + 2, np.int64)
    for caption in captions:
        for e in range(start[caption], start[caption + 1]):
            begin[slot[feature[e]] + 1] += 1
    dense_row = np.full(slots + 1, -1, np.int32)
    rows = 0
    for s in range(1, slots + 1):
        if begin[s + 1] * _DENSE_SHARE > len(captions):
            dense_row[s] = rows
            rows += 1
        begin[s + 1] += begin[s]
    column = np.empty(entries, np.int32)
    weight = np.empty(entries, like.dtype)
    dense = np.zeros((rows, len(captions)), like.dtype)
    filled = begin.copy()
    for m in range(len(captions)):
        for e in range(start[captions[m]], start[captions[m] + 1]):
            s = slot[feature[e]]
            column[filled[s]] = m
            weight[filled[s]] = reference[e]
            filled[s] += 1
            if dense_row[s] >= 0:
                dense[dense_row[s], m] = reference[e]
    return slot, begin, column, weight, dense_row, dense


@_compiled
def score(
    captions: np.ndarray,
    start: np.ndarray,
    feature: np.ndarray,
    candidate: np.ndarray,
    postings: Any,
    level: np.ndarray,
    penalty: np.ndarray,
    out: np.ndarray,
) -> None:
    """out (R, M): CIDEr-D of captions (R,) as candidates; level: (R,) each one's row in penalty (L, M)."""
    slot, begin, column, weight, dense_row, dense = postings
    for r in range(len(captions)):
        row = out[r]
        row[:] = 0
        for e in range(start[captions[r]], start[captions[r] + 1]):
            s = slot[feature[e]]
            if s == 0:
                continue
            value = out.dtype.type(candidate[e])
            if dense_row[s] >= 0:
                added = dense[dense_row[s]]
                for m in range(len(row)):
                    row[m] += value * added[m]
            else:
                for p in range(begin[s], begin[s + 1]):
                    row[column[p]] += value * weight[p]
        factor = penalty[level[r]]
        for m in range(len(row)):
            row[m] *= factor[m]


@_compiled
def count_high(bits: np.ndarray, shift: int, counts: np.ndarray) -> None:
    """Add to counts how many of bits (X,) have each value above the lowest `shift` of them."""
    for x in bits:
        counts[x >> shift] += 1


@_compiled
def count_low(bits: np.ndarray, shift: int, row: np.ndarray, counts: np.ndarray) -> None:
    """Add to counts (K, 2**shift) the values of the lowest `shift` bits, in the row that the others name (-1: none)."""
    mask = (1 << shift) - 1
    for x in bits:
        k = row[x >> shift]
        if k >= 0:
            counts[k, x & mask] += 1
