"""Metrics of moments: R1@IoU and mAP of windows, in [0, 1].

Windows are [start, end] or [start, end, score] in seconds. IoU: intersection of two windows divided by their union.
Source: DCASE 2026 baseline, src/standalone_eval/eval.py and utils.py at 45ef471 (github.com/awkrail). Results are equal
to the last bit, so that figures such as 43.125 are rounded in the same way.

Differences from the official script:
- Windows without scores, an IndexError there, are ranked in the order of the file.
- A reversed window may have IoU 0 / 0 and then counts as right there. Here such files are refused by `check`.
- True windows of equal IoU: there, numpy's unstable sort decides; here, the later one is matched.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from submission.editions import MAX_SECONDS, MAX_WINDOWS

THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# Ranges of true windows in seconds: the lower limit is excluded, the upper one included. inferred: the first three are
# those of Moment-DETR, which a comment in the scorer lists, but `long` has no upper limit; the others divide `short`.
LENGTHS = {
    "short": (0.0, 10.0),
    "middle": (10.0, 30.0),
    "long": (30.0, MAX_SECONDS),
    "under 2 s": (0.0, 2.0),
    "2 to 5 s": (2.0, 5.0),
    "5 to 10 s": (5.0, 10.0),
}

Windows = Sequence[Sequence[float]]
MomentScores = dict[str, dict[str, float]]  # by metric and query id


def score_moments(
    predictions: Mapping[str, Windows], truth: Mapping[str, Windows], lengths: tuple[float, float] = (0.0, MAX_SECONDS)
) -> MomentScores:
    """Return R1 and mAP of each query at the IoUs 0.5 ... 0.95.

    lengths: Only true windows longer than the first and at most as long as the second value count; queries without
    such a window are left out. Windows that match others are wrong, so metrics of ranges do not average to the whole.

    >>> score_moments({"a": [[0, 10]]}, {"a": [[0, 8], [20, 30]]})["mAP@0.75"]
    {'a': 0.5}
    """
    low, high = lengths
    scores: MomentScores = {f"{name}@{t:g}": {} for name in ("R1", "mAP") for t in THRESHOLDS}
    for qid, windows in predictions.items():
        true = np.array([window for window in truth[qid] if low < window[1] - window[0] <= high], float)
        if not len(true):
            continue
        listed = np.array(windows[:MAX_WINDOWS], float)
        first = iou_over_hull(listed[0].tolist(), true[ious(listed[:1], true).argmax()].tolist())
        if listed.shape[1] == 3:
            listed = listed[np.argsort(-listed[:, 2], kind="stable")]
        for threshold, found in zip(THRESHOLDS, hits(ious(listed, true)).tolist(), strict=True):
            scores[f"R1@{threshold:g}"][qid] = float(first >= threshold)
            scores[f"mAP@{threshold:g}"][qid] = average_precision(found, len(true)) if any(found) else 0.0
    return scores


def ious(windows: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the IoU of windows and true windows, (W, G)."""
    shared = np.minimum(windows[:, None, 1], true[:, 1]) - np.maximum(windows[:, None, 0], true[:, 0])
    shared = np.maximum(shared, 0)
    union = (windows[:, 1] - windows[:, 0])[:, None] + (true[:, 1] - true[:, 0]) - shared
    return np.asarray(shared / union)


def iou_over_hull(window: Sequence[float], true: Sequence[float]) -> float:
    """Return the IoU of overlapping windows by their hull.

    The script does so for R1; the last bit may differ.
    """
    shared = max(0.0, min(window[1], true[1]) - max(window[0], true[0]))
    return shared / (max(window[1], true[1]) - min(window[0], true[0]))


def hits(table: np.ndarray) -> np.ndarray:
    """Return whether each window matches a free true window.

    Args:
        table: (W, G) IoU of the windows, best first.

    Returns:
        (T, W), by threshold.
    """
    limits = np.array(THRESHOLDS)
    tables, found = np.repeat(table[None], len(limits), axis=0), np.zeros((len(limits), len(table)), bool)
    for rank in np.flatnonzero(table.max(axis=1) >= limits[0]):
        best = table.shape[1] - 1 - tables[:, rank, ::-1].argmax(axis=1)  # the later one of equal true windows
        found[:, rank] = tables[np.arange(len(limits)), rank, best] >= limits
        tables[found[:, rank], :, best[found[:, rank]]] = -1.0
    return found


def average_precision(found: Sequence[bool], n_true: int) -> float:
    """Return the average precision of a query.

    It is the sum of the best precision at or after each right window, divided by the number of true windows.
    """
    counts = list(accumulate(found))
    precision = [count / rank for rank, count in enumerate(counts, 1)]
    best = list(accumulate(reversed(precision), max))[::-1]
    terms = [(n / n_true - (n - 1) / n_true) * p for n, p, right in zip(counts, best, found, strict=True) if right]
    missed = [0.0] if counts[-1] < n_true else []  # the script adds this term, which decides how numpy sums
    return float(np.sum([*terms, *missed]))
