"""Result of a ranked entry, for result.json."""

from submission.editions import Edition
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.summary import bounds_or_none, summarise_matrix
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
        "interval": bounds_or_none(summary.interval),
        "bootstrap": bounds_or_none(summary.bootstrap),
        "median_rank": summary.median_rank,
        "queries": len(matrix),
        "clips": len(matrix.clip_ids),
        "edition": edition.name,
        "chance": summary.chance,
        "untrained": None if untrained is None else summarise_matrix(untrained, edition).values[edition.metric],
    }
    return RankedResult.model_validate(result | facts)
