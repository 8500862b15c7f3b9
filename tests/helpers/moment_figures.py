"""All figures of moments as the official script prints them."""

from submission.metrics.moment_metrics import THRESHOLDS, MomentScores, published_percent


def official_figures(scores: MomentScores) -> dict[str, dict[str, float]]:
    """Per cent with two decimals: `MR-R1` and `MR-mAP`, each by threshold, and the latter's `average`."""
    recalls = {str(threshold): published_percent(scores.recall(threshold)) for threshold in THRESHOLDS}
    means = {str(threshold): published_percent(scores.mean_precision(threshold)) for threshold in THRESHOLDS}
    return {"MR-R1": recalls, "MR-mAP": means | {"average": published_percent(scores.mean_precision())}}
