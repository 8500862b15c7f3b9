"""Scores of a set of captions among themselves: CIDEr-D by numba, or by scipy where numba is not installed."""

import logging
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from system.losses.relevance.scorer import SIGMA, NgramFeatures

log = logging.getLogger(__name__)


@cache
def kernel() -> ModuleType | None:
    """The compiled loops, or None without numba, said once."""
    try:
        from system.losses.relevance import kernel as compiled
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        log.warning("the package numba is not installed: CIDEr-D is computed by scipy, several times slower")
        return None
    return compiled


class Among:
    """CIDEr-D among M of some captions. members: (M,) their rows in features; dtype: float32 or float64."""

    def __init__(self, features: NgramFeatures, members: np.ndarray, dtype: Any = np.float32) -> None:
        self._features, self._members, self._dtype = features, members, dtype
        lengths = features.lengths[members]
        levels, self._level = np.unique(lengths, return_inverse=True)
        self._penalty = np.exp((levels[:, None] - lengths) ** 2 / (-2 * SIGMA**2)).astype(dtype)
        self._kernel = kernel()
        if self._kernel:
            empty = np.empty(0, dtype)
            f = features
            self._postings = self._kernel.postings(members, f.start, f.feature, f.reference, f.size, empty)
        else:
            self._candidates = _matrix(features, features.candidate, dtype)[members]
            self._references = _matrix(features, features.reference, dtype)[members].T.tocsr()

    def __len__(self) -> int:
        return len(self._members)

    def scores(self, first: int, last: int) -> np.ndarray:
        """(last - first, M): row = the members first .. last - 1 as candidates, column = every member as reference."""
        level = self._level[first:last]
        if self._kernel:
            f, out = self._features, np.empty((last - first, len(self)), self._dtype)
            members = self._members[first:last]
            self._kernel.score(members, f.start, f.feature, f.candidate, self._postings, level, self._penalty, out)
            return out
        products = (self._candidates[first:last] @ self._references).toarray()
        products *= self._penalty[level]
        return products


def _matrix(features: NgramFeatures, weights: np.ndarray, dtype: Any) -> Any:
    from scipy.sparse import csr_array

    shape = (len(features), features.size)
    return csr_array((weights.astype(dtype), features.feature, features.start), shape)
