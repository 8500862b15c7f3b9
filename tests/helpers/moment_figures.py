"""All figures of moments as the official script prints them."""

import numpy as np

from submission.metrics.moments import THRESHOLDS, MomentScores
from submission.metrics.summary import metric_values


def percent(share: float) -> float:
    return float(f"{100 * share:.2f}")


def official_figures(scores: MomentScores) -> dict[str, dict[str, float]]:
    """Per cent with two decimals: `MR-R1` and `MR-mAP`, each by threshold, and the latter's `average`."""
    recalls = {str(t): percent(float(np.mean(list(scores[f"R1@{t:g}"].values())))) for t in THRESHOLDS}
    means = metric_values(scores, [*(f"mAP@{t:g}" for t in THRESHOLDS), "mAP"])
    by_threshold = {str(t): percent(means[f"mAP@{t:g}"]) for t in THRESHOLDS}
    return {"MR-R1": recalls, "MR-mAP": by_threshold | {"average": percent(means["mAP"])}}
