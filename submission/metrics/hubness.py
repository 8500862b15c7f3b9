"""Hubness of a ranking.

Measure how unevenly the clips of a score matrix are found. A hub is a clip that has a high rank for many queries,
although it is relevant to few of them.
"""

from typing import NamedTuple

import numpy as np

from submission.blocks import row_blocks
from submission.formats.score_matrix import ScoreMatrix
from submission.ordering import ClipOrder

DEPTH = 10  # best clips of each query that are counted


class Hubness(NamedTuple):
    """Hubness of a ranking.

    The count of a clip is the number of queries that have it among their first ten clips (DEPTH).

    Attributes:
        skewness: Skewness of the counts of all clips; 0 for symmetric or equal counts, high if a few clips have high
            counts.
        never: Share of clips with the count 0, in [0, 1].
    Source: Radovanovic et al., "Hubs in Space" (2010), section 3: the skewness of N_k, here N_10.
    """

    skewness: float
    never: float


def hubness_of(matrix: ScoreMatrix) -> Hubness | None:
    """Return the hubness of a score matrix, how unevenly queries find clips; None for at most DEPTH clips."""
    if len(matrix.clip_ids) <= DEPTH:
        return None
    counts = np.zeros(len(matrix.clip_ids), np.int64)
    order = ClipOrder(matrix.file_names)
    for rows in row_blocks(matrix.values):
        counts += np.bincount(order.best(matrix.values[rows], DEPTH).ravel(), minlength=len(counts))
    spread = counts.std()
    skewness = float(((counts - counts.mean()) ** 3).mean() / spread**3) if spread else 0.0
    return Hubness(skewness, float((counts == 0).mean()))
