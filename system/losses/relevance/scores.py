"""Scores of a set of captions among themselves by CIDEr-D."""

from typing import Any

import numpy as np

from system.losses.relevance.scorer import SIGMA, NgramFeatures


class Among:
    """CIDEr-D among M of some captions. members: (M,) their rows in features; dtype: float32 or float64."""

    def __init__(self, features: NgramFeatures, members: np.ndarray, dtype: Any = np.float32) -> None:
        self._features, self._members, self._dtype = features, members, dtype
        from system.losses.relevance import kernel  # numba: half a second, for those who use it

        self._kernel = kernel
        lengths = features.lengths[members]
        levels, self._level = np.unique(lengths, return_inverse=True)
        self._penalty = np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype)
        f = features
        self._postings = kernel.postings(members, f.start, f.feature, f.reference, f.size, np.empty(0, dtype))

    def __len__(self) -> int:
        return len(self._members)

    def scores(self, first: int, last: int) -> np.ndarray:
        """(last - first, M): row = the members first .. last - 1 as candidates, column = every member as reference."""
        f, out = self._features, np.empty((last - first, len(self)), self._dtype)
        members, level = self._members[first:last], self._level[first:last]
        self._kernel.score(members, f.start, f.feature, f.candidate, self._postings, level, self._penalty, out)
        return out
