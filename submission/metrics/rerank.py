"""Re-rank by a judge.

Re-rank the best clips of each query by the scores of a judge, mixed with the first system's. Q queries, C clips.

A judge compares a query and a clip more closely than a score matrix can: a language model, another network, a person.
It sees only the best clips of each query.
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

WEIGHTS = tuple(round(0.05 * number, 2) for number in range(21))  # of the judge, from none to nothing else

Judged = Mapping[int, tuple[Ints, Values]]


def judged_rows(matrix: ScoreMatrix, pairs: Iterable[Pair]) -> Judged:
    """Return the judged columns of each query, best first, and their scores, by the query's row.

    Pairs without a score are left out. Raises SubmissionError for a pair whose query or clip the matrix does not have.
    """
    rows = {query: row for row, query in enumerate(matrix.query_ids)}
    columns = {clip: column for column, clip in enumerate(matrix.clip_ids)}
    found: dict[int, tuple[list[int], list[float]]] = {}
    for pair in pairs:
        for kind, name, known in (("query", pair.query, rows), ("clip", pair.clip, columns)):
            if name not in known:
                raise SubmissionError(f"the judged {kind} {name!r} is not in the score matrix; judge its own pairs")
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
    """Yield blocks of rows (n, C) of the matrix, with another order of each query's judged clips.

    weight: From 0, the unchanged matrix, to 1, the judge alone; both scores are standardised over the judged clips of
    each query. Equal mixtures keep their order. The judged clips of a query exchange their scores, so that clips that
    are not judged keep their ranks. Where equal scores would have another order, they are lowered by their last bits.
    """
    names = name_positions(matrix.file_names)
    for block in row_blocks(matrix.values):
        values = np.array(matrix.values[block])
        for row in range(block.start, block.start + len(values)):
            if row in judged:
                values[row - block.start] = _exchanged(values[row - block.start], *judged[row], weight, names)
        yield values


def _exchanged(values: Scores, columns: Ints, judge: Values, weight: float, names: Ints) -> Scores:
    """Return a query's scores (C,), exchanged among the judged clips so that the mixture of both orders them.

    columns: Of the judged clips, best first. names: (C,) positions of the clips in the order of file names.
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
    """Return a matrix in memory with the order of reranked_blocks."""
    return replace(matrix, values=np.concatenate(list(reranked_blocks(matrix, judged, weight))))


def values_of(matrix: ScoreMatrix, edition: Edition) -> Values:
    """Return the edition's AP@k of every query (Q,). Raises SubmissionError if relevance is not known."""
    ranks = ranks_in_matrix(matrix)
    return average_precision(ranks.ranks, ranks.n_relevant, edition.map_k)


def search_weight(matrix: ScoreMatrix, judged: Judged, edition: Edition) -> tuple[float, Sequence[Values]]:
    """Search for the weight with the highest mAP@k on a validation matrix; of equal ones the smallest.

    Returns: The weight; values (Q,) of the metric without the judge, and with this weight.
    """
    found = {weight: values_of(reranked(matrix, judged, weight), edition) for weight in WEIGHTS}
    best = max(WEIGHTS, key=lambda weight: round(float(found[weight].mean()), 12))
    return best, (found[0.0], found[best])
