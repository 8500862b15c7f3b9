"""Hubness of a ranking.

How unevenly the clips of a score matrix are found: some are among the best of many queries, others of none.
"""

from typing import NamedTuple

import numpy as np

from submission.blocks import row_blocks
from submission.formats.score_matrix import ScoreMatrix
from submission.ordering import ClipOrder

DEPTH = 10  # clips of a query


class Hubness(NamedTuple):
    """Hubness of a ranking.

    skewness: Of the number of queries that have a clip among their first DEPTH; 0 for a symmetric distribution, and for
    equal numbers. never: Share of clips that no query has among its first DEPTH, in [0, 1].
    Source: Radovanovic et al., "Hubs in Space" (2010), section 3: the skewness of N_k, here N_10.
    """

    skewness: float
    never: float


def hubness_of(matrix: ScoreMatrix) -> Hubness | None:
    """Return the hubness of a score matrix; None with at most DEPTH clips, which all queries find."""
    if len(matrix.clip_ids) <= DEPTH:
        return None
    counts = np.zeros(len(matrix.clip_ids), np.int64)
    order = ClipOrder(matrix.file_names)
    for rows in row_blocks(matrix.values):
        counts += np.bincount(order.best(matrix.values[rows], DEPTH).ravel(), minlength=len(counts))
    spread = counts.std()
    skewness = float(((counts - counts.mean()) ** 3).mean() / spread**3) if spread else 0.0
    return Hubness(skewness, float((counts == 0).mean()))
