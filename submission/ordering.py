"""The order of clips, with ties.

Sort the clips of a query; all functions in `submission` use this order. Q: number of queries; C: number of clips; R:
number of relevant clips of a query.

Clips are sorted by descending score, then by file name in code point order, then by column. For clips with equal
scores, the order of the official 2022 code is arbitrary, and that of the 2025 code is the order of the pool. If scores
are equal, metrics here may therefore be higher or lower than the official ones. A matrix of equal scores has the
metrics of the alphabetical order, which is at chance level, not those of a perfect system.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from submission.arrays import Floats, Ints, sizes
from submission.blocks import block_slices, release_pages, row_blocks
from submission.errors import SubmissionError

Ranks = Ints
NEVER = np.iinfo(np.int64).max  # rank of a clip that is not found, and padding of rows of ranks


def relevant_ranks(values: Floats, relevant: Sequence[Sequence[int]], names: Sequence[str]) -> Ranks:
    """Return the ranks of every query's relevant clips. names: File names, which order clips of equal scores.

    Args:
        values: (Q, C) scores of Q queries and C clips, finite, higher is better.
        relevant: For each query, the columns of its relevant clips.
        names: (C,) file name of each column.
    Returns (Q, R) ranks from 1, increasing in each row. A rank is 1 + the number of clips with a higher score + the
    number of clips with the same score and an earlier name. R is the maximum number of relevant clips of a query;
    shorter rows end with NEVER, a very large number.
    Raises SubmissionError for a score that is not finite, for wrong numbers of lists or names, and for a column that is
    out of range or repeated for one query.
    """
    require_finite(values)
    if len(relevant) != len(values) or len(names) != values.shape[1]:
        raise SubmissionError(
            f"scores of shape {values.shape} need {values.shape[0]} lists of relevant columns and {values.shape[1]} "
            f"file names; got {len(relevant)} and {len(names)}"
        )
    counts = sizes(relevant)
    rows = np.repeat(np.arange(len(relevant)), counts)
    columns = np.fromiter(chain.from_iterable(relevant), dtype=np.int64, count=len(rows))
    _require_columns(columns, rows, len(names))
    position = name_positions(names)
    ranks = np.empty(len(rows), dtype=np.int64)
    for block in block_slices(len(rows), len(names)):
        scores = values[rows[block]]
        release_pages(values)
        relevant_column = columns[block, None]
        relevant_score = np.take_along_axis(scores, relevant_column, axis=1)
        ahead = (scores > relevant_score) | ((scores == relevant_score) & (position < position[relevant_column]))
        ranks[block] = 1 + np.count_nonzero(ahead, axis=1)
    return _padded_rows(ranks, counts)


def ranks_from_lists(lists: Sequence[Sequence[int]]) -> Ranks:
    """Convert lists of increasing ranks, one list per query, to an array (Q, R); shorter rows end with NEVER."""
    counts = sizes(lists)
    return _padded_rows(np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=counts.sum()), counts)


def concatenate_ranks(parts: Sequence[Ranks]) -> Ranks:
    """Concatenate arrays of ranks (Q, R) of several sets of queries; shorter rows are padded with NEVER."""
    widest = max((part.shape[1] for part in parts), default=0)
    filled = [np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=NEVER) for part in parts]
    return np.concatenate(filled) if filled else np.empty((0, 0), dtype=np.int64)


def ranked_columns(values: Floats, names: Sequence[str], k: int) -> Ints:
    """Return the columns of every query's k best clips, best first; equal scores are ordered by file name.

    values: (Q, C) finite scores of Q queries and C clips. names: (C,) file names. k: 1 to C.
    Returns (Q, k). Raises SubmissionError for a score that is not finite.
    """
    require_finite(values)
    order = ClipOrder(names)
    best = np.empty((len(values), k), dtype=np.int64)
    for block in row_blocks(values):
        best[block] = order.best(values[block], k)
    return best


class ClipOrder:
    """Sorts the clips of one pool for many queries: by score, then by file name. The names are sorted only once."""

    def __init__(self, names: Sequence[str]) -> None:
        """Sort the file names of the pool, once for all queries. names: (C,)."""
        self._name_order = _name_order(names)

    def best(self, values: Floats, k: int) -> Ints:
        """Return the columns of each query's k best clips, (Q, k), best first. values: (Q, C) finite scores, copied."""
        values = values[:, self._name_order]
        start = values.shape[1] - k
        # A partition finds the best k of a row in any order; in column order, a stable sort keeps the order of ties.
        best = np.sort(np.argpartition(values, start, axis=1)[:, start:], axis=1)
        scores = np.take_along_axis(values, best, axis=1)
        best = np.take_along_axis(best, np.argsort(-scores, axis=1, kind="stable"), axis=1)
        # If omitted clips have the k-th score too, the choice of the partition among them was arbitrary.
        split = np.count_nonzero(values >= scores.min(axis=1, keepdims=True), axis=1) > k
        best[split] = np.argsort(-values[split], axis=1, kind="stable")[:, :k]
        return self._name_order[best]


def name_positions(names: Sequence[str]) -> Ints:
    """Return the position of each file name in alphabetical order, (C,), from 0."""
    positions = np.empty(len(names), dtype=np.int64)
    positions[_name_order(names)] = np.arange(len(names))
    return positions


def require_finite(values: Floats, before: int = 0) -> None:
    """Raises SubmissionError for a score that is NaN or infinite. before: Number of matrix rows before `values`.

    values: Rows of a score matrix. The message names the position of the score.
    """
    for block in row_blocks(values):
        finite = np.isfinite(values[block])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise SubmissionError(
                f"the score in row {before + block.start + row}, column {column} (from 0) is "
                f"{values[block][row, column]}; every score must be a finite number"
            )


def _padded_rows(ranks: Ranks, counts: Ints) -> Ranks:
    """Return ranks as an array with a row per query, padded with NEVER, a very large number. counts: Their numbers.

    The given ranks are those of all queries, one query after the other.
    """
    filled = np.full((len(counts), counts.max(initial=0)), NEVER)
    filled[np.arange(filled.shape[1]) < counts[:, None]] = ranks
    filled.sort(axis=1)
    return filled


def _require_columns(columns: Ints, rows: Ints, n_clips: int) -> None:
    """Raise SubmissionError if a query's relevant column is outside the matrix, or is listed twice for the query."""
    if np.any((columns < 0) | (columns >= n_clips)):
        raise SubmissionError(f"the column of a relevant clip is outside 0 to {n_clips - 1}; correct it")
    cells, times = np.unique(rows * n_clips + columns, return_counts=True)
    if np.any(times > 1):
        row = cells[times > 1][0] // n_clips
        raise SubmissionError(f"row {row} of the scores lists the same relevant clip twice; list it once")


def _name_order(names: Sequence[str]) -> Ints:
    """Return the indices that sort the names alphabetically."""
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
