"""Compiled loops of CIDEr-D.

They compute the scores of captions against all captions of a set, and count equal scores for exact percentiles.

numba compiles the loops at their first use, in seconds. It caches the code in this folder's `__pycache__`, or in the
user's cache folder if that cannot be written. The loops run without Python's global lock.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

_DENSE_SHARE = 12  # a feature of more than 1 in 12 captions is kept as a full row, which is faster to add


def compile_loop(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that compiles a loop with numba, and caches the code on disk if possible."""
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # neither folder can be written: compile in every process
        compiled = numba.njit(nogil=True)(loop)
    return compiled


class Postings(NamedTuple):
    """Table from n-gram feature to the reference captions that contain it, and its weights in these captions.

    A feature is an n-gram and a number k: it stands for the k-th occurrence of the n-gram in a caption. M reference
    captions contain S different features. These get the numbers 1 to S, called slots.
    slot: (size,) slot of each of the `size` features of NgramFeatures; 0 if no reference has the feature.
    column, weight: For each occurrence of a feature in a reference, the index of the reference, and the weight. Both
    are sorted by the feature's slot. begin: (S + 2,) index of each slot's first occurrence in column and weight.
    dense: (K, M) weights of the K most frequent features in all references, to compute these features faster.
    dense_row: (S + 1,) row of each slot in dense; -1: the feature is not in dense.
    """

    slot: np.ndarray
    begin: np.ndarray
    column: np.ndarray
    weight: np.ndarray
    dense_row: np.ndarray
    dense: np.ndarray


@compile_loop
def build_postings(
    captions: np.ndarray, start: np.ndarray, feature: np.ndarray, reference: np.ndarray, size: int, like: np.ndarray
) -> Any:
    """Return the arrays of Postings, a table from n-gram feature to the references that contain it.

    captions: (M,) index of each reference among all captions. start, feature, reference: Arrays of NgramFeatures, the
    features of all captions: the index of each caption's first feature, the number of each feature, and its weight if
    the caption is a reference. size: Number of features. like: An array; the weights get its dtype.
    """
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


@compile_loop
def score_captions(
    captions: np.ndarray,
    start: np.ndarray,
    feature: np.ndarray,
    candidate: np.ndarray,
    postings: Any,
    level: np.ndarray,
    penalty: np.ndarray,
    out: np.ndarray,
) -> None:
    """Compute CIDEr-D of candidates (`captions`) with references (`postings`), and write it to `out`, (R, M).

    captions: (R,) index of each candidate among all captions. start, feature, candidate: Arrays of NgramFeatures, the
    features of all captions: the index of each caption's first feature, the number of each feature, and its weight if
    the caption is a candidate. postings: Result of `build_postings`, for M references. penalty: (L, M) factors for the
    difference in length of a candidate and a reference; a row for each of the L different lengths of candidates.
    level: (R,) for each candidate, the index of its row in `penalty`.
    """
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


@compile_loop
def count_upper_bits(bits: np.ndarray, shift: int, counts: np.ndarray) -> None:
    """Count float32 numbers by their upper bits: all bits except the lowest `shift` bits.

    bits: (X,) float32 numbers, read as whole numbers. counts: (2**(32 - shift),) to which the results are added, with
    one value per value of the upper bits.
    """
    for x in bits:
        counts[x >> shift] += 1


@compile_loop
def join_items(block: np.ndarray, rows: np.ndarray, columns: np.ndarray, is_max: bool, out: np.ndarray) -> None:
    """Add scores (R, M) of captions to those of their items, `out` (B, B), or keep the highest."""
    for r in range(len(block)):
        scores, joined = block[r], out[rows[r]]
        if is_max:
            for m in range(len(columns)):
                joined[columns[m]] = max(joined[columns[m]], scores[m])
        else:
            for m in range(len(columns)):
                joined[columns[m]] += scores[m]
