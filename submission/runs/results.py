"""Result of a ranked entry.

Compute the result of a ranked entry for result.json from its score matrix.
"""

import math

from submission.editions import Edition
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.scoring import summarise_matrix
from submission.runs.record import RankedResult


def ranked_result(
    matrix: ScoreMatrix, edition: Edition, untrained: ScoreMatrix | None, **facts: object
) -> RankedResult:
    """Compute the metrics of a ranked entry's score matrix; return them as a result, together with other `facts`.

    untrained: Score matrix of the untrained model, to add its metric for comparison, or None. facts: The fields of
    RankedResult that are not computed from the matrix: data, checkpoint, ceiling, also_trained_on, and the paths scores
    and csv.
    """
    summary = summarise_matrix(matrix, edition)
    hubs = summary.hubness
    result = {
        **summary.values,
        "metric": edition.metric,
        "interval": _interval_or_none(summary.interval),
        "bootstrap": _interval_or_none(summary.bootstrap),
        "median_rank": summary.median_rank,
        "queries": len(matrix.query_ids),
        "clips": len(matrix.clip_ids),
        "edition": edition.name,
        "chance": summary.chance,
        "untrained": None if untrained is None else summarise_matrix(untrained, edition).values[edition.metric],
        **({"hub_skewness": hubs.skewness, "never_found": hubs.never} if hubs else {}),
    }
    return RankedResult.model_validate(result | facts)


def _interval_or_none(bounds: tuple[float, float]) -> list[float] | None:
    """Convert a confidence interval to a list; None if it is NaN, as for a single query, since JSON has no NaN."""
    return None if math.isnan(bounds[0]) else list(bounds)
