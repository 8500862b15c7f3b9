"""Re-rank by a judge.

Re-rank the best clips of each query by a mixture of their scores in a score matrix and the scores of a judge. Q: number
of queries; C: number of clips.

A judge is a language model, another network or a person, who compares a query and a clip more closely than the model of
the score matrix. The judge scores only the best clips of each query.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from submission.arrays import Ints, Scores, Values
from submission.blocks import row_blocks
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.top_pairs import Pair
from submission.metrics.retrieval import average_precision
from submission.metrics.scoring import ranks_in_matrix
from submission.ordering import name_positions

WEIGHTS = tuple(round(0.05 * number, 2) for number in range(21))  # of the judge: 0 ignores it, 1 uses only the judge

Judged = Mapping[int, tuple[Ints, Values]]


def judged_rows(matrix: ScoreMatrix, pairs: Iterable[Pair]) -> Judged:
    """Return for each judged query its judged clips and their scores by the judge.

    The result is a dict from the row of the query in the score matrix to two arrays. The first has the columns of the
    judged clips, sorted by their scores in the matrix, best first. The second has the judge's scores of these clips.
    Pairs without a score of the judge are left out. Raises SubmissionError for a pair whose query or clip is not in the
    score matrix.
    """
    rows = {query: row for row, query in enumerate(matrix.query_ids)}
    columns = {clip: column for column, clip in enumerate(matrix.clip_ids)}
    found: dict[int, tuple[list[int], list[float]]] = {}
    for pair in pairs:
        for kind, name, known in (("query", pair.query, rows), ("clip", pair.clip, columns)):
            if name not in known:
                raise SubmissionError(
                    f"the judged {kind} {name!r} is not in the score matrix; give judged pairs that were made from "
                    "this matrix"
                )
        if pair.judge is not None:
            listed = found.setdefault(rows[pair.query], ([], []))
            listed[0].append(columns[pair.clip])
            listed[1].append(pair.judge)
    names = name_positions(matrix.file_names)
    judged: dict[int, tuple[Ints, Values]] = {}
    for row, (clips, scores) in found.items():
        listed_clips = np.array(clips)
        best = np.lexsort((names[listed_clips], -matrix.values[row, listed_clips]))
        judged[row] = listed_clips[best], np.array(scores, dtype=np.float64)[best]
    return judged


def reranked_blocks(matrix: ScoreMatrix, judged: Judged, weight: float) -> Iterator[Scores]:
    """Yield the score matrix with judged clips re-ranked, in blocks (n, C) of n queries and C clips.

    The judged clips are sorted by a weighted mean of the matrix's and the judge's scores. Before, both are standardised
    over the judged clips of the query (mean 0, standard deviation 1). Clips with equal means stay in their order. The
    judged clips exchange their scores in the matrix, so that other clips keep their ranks. Clips with equal scores are
    ranked by file name. If this would change the new order, the score of the clip that belongs after the other is
    lowered by the smallest possible step.
    judged: Result of judged_rows. weight: Weight of the judge, from 0 (matrix unchanged) to 1 (only the judge).
    """
    names = name_positions(matrix.file_names)
    for block in row_blocks(matrix.values):
        values = np.array(matrix.values[block])
        for row in range(block.start, block.start + len(values)):
            if row in judged:
                values[row - block.start] = _exchanged(values[row - block.start], *judged[row], weight, names)
        yield values


def _exchanged(values: Scores, columns: Ints, judge: Values, weight: float, names: Ints) -> Scores:
    """Return a query's scores (C,) after reordering its judged clips by a mean of matrix score and judge's score.

    The new scores of the judged clips are their old ones in another order; all other scores stay. The mean is weighted;
    before it is taken, the scores of the matrix and those of the judge are standardised (mean 0, standard deviation 1).

    Args:
        columns: Columns of the judged clips, best clip first.
        judge: The judge's scores of these clips.
        weight: Weight of the judge.
        names: (C,) position of each clip in the order of file names, which decides between equal scores.
    """
    mixture = (1 - weight) * _standardised(values[columns]) + weight * _standardised(judge)
    wanted = columns[np.argsort(-mixture, kind="stable")]
    if np.array_equal(wanted, columns):
        return values
    found, slots = values.copy(), values[columns]
    found[wanted] = slots
    if np.count_nonzero(values[:, None] == slots) == len(slots):  # no score is equal to that of a judged clip
        return found
    order = np.lexsort((names, -values))
    order[np.isin(order, columns)] = wanted
    scores = found[order]
    for k in range(1, len(scores)):
        if scores[k] > scores[k - 1] or (scores[k] == scores[k - 1] and names[order[k]] < names[order[k - 1]]):
            scores[k] = np.nextafter(scores[k - 1], np.float32(-np.inf))
    found[order] = scores
    return found


def _standardised(values: Scores | Values) -> Values:
    """Scale values to mean 0 and standard deviation 1; zeros if all are equal."""
    found = values.astype(np.float64) - values.mean(dtype=np.float64)
    spread = float(found.std())
    return found / spread if spread > 0 else np.zeros_like(found)


def reranked(matrix: ScoreMatrix, judged: Judged, weight: float) -> ScoreMatrix:
    """Return the score matrix re-ranked by the judge, in memory; see reranked_blocks."""
    return replace(matrix, values=np.concatenate(list(reranked_blocks(matrix, judged, weight))))


def average_precisions(matrix: ScoreMatrix, edition: Edition) -> Values:
    """Return AP@k of every query, (Q,), for the edition's k. Raises SubmissionError for unknown relevant clips."""
    ranks = ranks_in_matrix(matrix)
    return average_precision(ranks.ranks, ranks.n_relevant, edition.map_k)


def search_weight(matrix: ScoreMatrix, judged: Judged, edition: Edition) -> tuple[float, Sequence[Values]]:
    """Find the best weight of a judge's scores in reranking; return it, and AP@k without and with the judge.

    The best weight has the highest mAP@k; of equally good weights, the smallest is returned. The AP@k are two arrays
    (Q,), one value per query.
    """
    found = {weight: average_precisions(reranked(matrix, judged, weight), edition) for weight in WEIGHTS}
    best = max(WEIGHTS, key=lambda weight: round(float(found[weight].mean()), 12))
    return best, (found[0.0], found[best])
