"""Result of a ranked entry, for result.json."""

import math

from submission.editions import Edition
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.summary import summarise_matrix
from submission.runs.record import RankedResult


def ranked_result(
    matrix: ScoreMatrix, edition: Edition, untrained: ScoreMatrix | None, **facts: object
) -> RankedResult:
    """Return the metrics of a score matrix.

    Args:
        facts: The fields of RankedResult that the matrix does not have.
    """
    summary = summarise_matrix(matrix, edition)
    result = {
        **summary.values,
        "metric": edition.metric,
        "interval": None if math.isnan(summary.interval[0]) else list(summary.interval),
        "bootstrap": None if math.isnan(summary.bootstrap[0]) else list(summary.bootstrap),
        "median_rank": summary.median_rank,
        "queries": len(matrix),
        "clips": len(matrix.clip_ids),
        "edition": edition.name,
        "chance": summary.chance,
        "untrained": None if untrained is None else summarise_matrix(untrained, edition).values[edition.metric],
    }
    return RankedResult.model_validate(result | facts)
