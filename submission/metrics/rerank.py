"""Re-rank the best clips of each query by a judge.

A judge compares a query and a clip more closely than the model of the score matrix: a language model, another network
or a person. It scores only the best clips of each query. Q: queries; C: clips.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from data_tools.errors import KitError
from submission.editions import Edition
from submission.formats.pairs import Pair
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.blend import standardised
from submission.metrics.summary import Summary, summarise_matrix

WEIGHTS = tuple(round(0.05 * number, 2) for number in range(21))  # of the judge: 0 ignores it, 1 uses only the judge
Judged = Mapping[int, Mapping[int, float]]  # the judge's scores by row and column, best clips of the matrix first


def judged_rows(matrix: ScoreMatrix, pairs: Iterable[Pair]) -> Judged:
    """Return the judged clips of each query.

    Raises KitError for a pair that is not in the matrix.
    """
    rows = {query: row for row, query in enumerate(matrix.query_ids)}
    columns = {clip: column for column, clip in enumerate(matrix.clip_ids)}
    found: dict[int, dict[int, float]] = {}
    for pair in pairs:
        if pair.query not in rows or pair.clip not in columns:
            raise KitError(f"query {pair.query!r} or clip {pair.clip!r} is not in the score matrix")
        if pair.judge is not None:
            found.setdefault(rows[pair.query], {})[columns[pair.clip]] = pair.judge
    names = matrix.file_names
    for row, judged in found.items():
        score = matrix.values[row].tolist()
        best_first = sorted(judged, key=lambda column: (-score[column], names[column]))
        found[row] = {column: judged[column] for column in best_first}
    return found


def reranked(matrix: ScoreMatrix, judged: Judged, weight: float) -> ScoreMatrix:
    """Return the matrix with judged clips re-ranked.

    They exchange their scores. Their new order is that of (1 - weight) x score + weight x judge, both standardised over
    them. Other clips keep their ranks, except that clips of equal scores are ordered by name.
    """
    values = np.array(matrix.values)
    for row, scores in judged.items():
        columns, judge = np.array(list(scores)), np.array(list(scores.values()))
        own = values[row, columns].astype(np.float64)
        mixture = (1 - weight) * standardised(own) + weight * standardised(judge)
        values[row, columns[np.argsort(-mixture, kind="stable")]] = own
    return replace(matrix, values=values)


def search_weight(matrix: ScoreMatrix, judged: Judged, edition: Edition) -> tuple[float, Summary, Summary]:
    """Return the best weight, and metrics without and with it.

    Of equally good weights, it is the smallest.
    """
    found = {weight: summarise_matrix(reranked(matrix, judged, weight), edition) for weight in WEIGHTS}
    best = max(WEIGHTS, key=lambda weight: round(found[weight].values[edition.metric], 12))
    return best, found[0.0], found[best]
