"""The order of clips.

Clips are sorted by falling score; equal scores by file name, in code point order.

All functions in `submission` use this order. The order of ties in the official 2022 code is arbitrary, that of 2025 is
the order of the pool. With equal scores, metrics may therefore differ from the official ones; a constant matrix scores
as chance does. Q: queries, C: clips, R: maximum number of relevant clips of a query.
"""

from collections.abc import Iterable, Sequence, Sized

import numpy as np

from data_tools.errors import KitError

NEVER = np.iinfo(np.int64).max  # rank of a clip that is not found, and padding of rows of ranks


def relevant_ranks(values: np.ndarray, relevant: Sequence[Sequence[int]], names: Sequence[str]) -> np.ndarray:
    """Return the ranks of each query's relevant clips.

    Args:
        values: (Q, C) finite scores.
        relevant: (Q,) columns of the relevant clips of each query.
        names: (C,) file names, which order equal scores.

    Returns: (Q, R) ranks from 1, increasing; shorter rows end with NEVER.
    """
    position = np.argsort(_by_name(names))
    ranks = np.full((len(values), max(map(len, relevant))), NEVER)
    for number in range(ranks.shape[1]):  # the first relevant clip of each query, then the second
        rows = [row for row, columns in enumerate(relevant) if len(columns) > number]
        own = [relevant[row][number] for row in rows]
        scores, score = values[rows], values[rows, own][:, None]
        ahead = (scores > score) | ((scores == score) & (position < position[own][:, None]))
        ranks[rows, number] = 1 + np.count_nonzero(ahead, axis=1)
    return np.sort(ranks, axis=1)


def ranked_columns(values: np.ndarray, names: Sequence[str], k: int) -> np.ndarray:
    """Return the columns of each query's best clips, (Q, k)."""
    return ClipOrder(names).best(values, k)


class ClipOrder:
    """Sorts the clips of one pool for many queries.

    The names are sorted only once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Sort the file names of the pool, (C,)."""
        self._by_name = _by_name(names)

    def best(self, values: np.ndarray, k: int) -> np.ndarray:
        """Return the columns of each query's best clips, (Q, k).

        Args:
            values: (Q, C) finite scores.
            k: Number of clips.
        """
        order = np.argsort(-values[:, self._by_name], axis=1, kind="stable")
        return self._by_name[order[:, :k]]


def _by_name(names: Sequence[str]) -> np.ndarray:
    """Return the columns in alphabetical order of their file names, (C,)."""
    return np.array(sorted(range(len(names)), key=names.__getitem__))


def require_finite(values: np.ndarray) -> None:
    """Raise KitError for a score that is NaN or infinite."""
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0]
        raise KitError(f"score in row {row}, column {column} (from 0): not a finite number")


def sizes(lists: Iterable[Sized]) -> np.ndarray:
    """Return the numbers of items in lists."""
    return np.array([len(each) for each in lists], int)
