"""R1@IoU and mAP of windows.

Compute metrics of moments: windows of a recording that a text query describes. IoU: length of the intersection of two
windows, divided by the length of their union.

Q: number of queries; W: submitted windows of a query; G: true windows of a query; T: the 10 thresholds of IoU. Times
are in seconds. All functions accept invalid windows, such as reversed ones; formats.moments_jsonl refuses them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from submission.arrays import Flags, Ints, Values, sizes
from submission.editions import get_moments_edition
from submission.errors import SubmissionError

_EDITION = get_moments_edition()
THRESHOLDS = _EDITION.thresholds  # of IoU
MAX_WINDOWS = _EDITION.max_windows  # per query that AP uses
MAX_SECONDS = _EDITION.max_seconds  # of a true window; longer ones do not count
LENGTHS = _EDITION.lengths
_MAX_BATCH_WINDOWS = 2**14  # true windows, to limit memory
_PAIRWISE_SUM_LENGTH = 8  # minimum number of terms that numpy adds in pairs

Windows = Sequence[Sequence[float]]


class MomentScores(NamedTuple):
    """Scores of each query that has a true window of a permitted length.

    Attributes:
        qids: (Q,) query ids in the submitted order.
        ious: (Q,) IoU of the first submitted window with the true window that fits best, in [0, 1].
        precisions: (Q, T) average precision at each of the T thresholds of IoU, in [0, 1].
        n_true: (Q,) number of true windows of a permitted length.
        n_dropped: Number of true windows of all queries that are ignored because of their length.
        left_out: Ids of queries without a true window of a permitted length; they have no scores.
    """

    qids: list[str]
    ious: Values
    precisions: Values
    n_true: Ints
    n_dropped: int
    left_out: list[str]

    def hits(self, threshold: float) -> Values:
        """Return 1 for each query whose first window has an IoU >= `threshold` with a true window, otherwise 0.

        The array has the shape (Q,); its mean is R1@threshold.
        """
        return (self.ious >= threshold).astype(np.float64)

    def precisions_at(self, threshold: float | None = None) -> Values:
        """Return the average precision of each query, (Q,), at `threshold`; for None, the mean over all THRESHOLDS."""
        return self.precisions.mean(axis=1) if threshold is None else self.precisions[:, THRESHOLDS.index(threshold)]

    def recall(self, threshold: float) -> float:
        """Return R1@threshold: the share of queries whose first window has at least this IoU with a true window."""
        return float(self.hits(threshold).mean())

    def mean_precision(self, threshold: float | None = None) -> float:
        """Return mAP@threshold in [0, 1], or, without a threshold, mAP: the mean over all thresholds of IoU.

        The mean over queries is computed first, as in the official script: the last bit of a sum decides how a figure
        such as 43.125 is rounded.
        """
        means = self.precisions.mean(axis=0)
        return float(means.mean() if threshold is None else means[THRESHOLDS.index(threshold)])


def published_percent(share: float) -> float:
    """Convert a share in [0, 1] to per cent with two decimals, as the official script prints it.

    >>> published_percent(0.13559322)
    13.56
    """
    return float(f"{100 * share:.2f}")


def score_moments(
    predictions: Mapping[str, Windows],
    truth: Mapping[str, Windows],
    lengths: tuple[float, float] = (0.0, MAX_SECONDS),
    undefined_hits: bool = False,
) -> MomentScores:
    """Score each query's windows by the true windows whose length is in a range (`lengths`).

    predictions: Dict from query id to windows in file order, all [start, end] or all [start, end, score], in seconds.
    truth: Dict from query id to true windows [start, end].
    lengths: Range (low, high) in seconds. Only true windows with low < length <= high are used; others are ignored.
    Queries without such a window get no scores. Predicted windows that match only ignored windows are wrong. Metrics of
    several ranges therefore do not average to the metric of all windows. LENGTHS has the published ranges.
    undefined_hits: Whether a window with an IoU of 0 / 0 is right in AP, as in the official script.

    R1@t is the share of queries whose first window in the file has an IoU of at least t with any true window. Scores do
    not matter for it. AP@t uses the first MAX_WINDOWS windows in the file, sorted by descending score; windows with
    equal scores, or without scores, stay in their order. Each window is matched with the unmatched true window of the
    highest IoU (of equal ones, the later one), and is right if this IoU is at least t. The precision at a window is the
    share of right windows up to it. For each right window, the best precision at this or a later window is taken. AP@t
    is the sum of these precisions, divided by the number of true windows (VOC 2011).

    Raises SubmissionError for other query ids than in the truth, for no query, and for a query without windows. Also if
    only some windows have scores, and if no true window has a length in the range.
    Source: DCASE 2026 baseline, src/standalone_eval/eval.py and utils.py at 45ef471 (github.com/awkrail).

    Deviations:

    - A reversed window has a negative length. If a true window has the same length, the IoU is 0 / 0, which the script
      counts as right in AP. Here it is wrong, unless undefined_hits.
    - Windows without scores raise an IndexError in the script. Here they are ranked in the order of the file.
    - The script sorts true windows of equal IoU by numpy's unstable sort. Its order depends on the processor (with
      AVX-512, for four windows or more). This matters if true windows overlap. It also matters if two adjacent true
      windows of equal length form a predicted window.

    >>> scores = score_moments({"a": [[0, 10]]}, {"a": [[0, 8], [20, 30]]})
    >>> scores.recall(0.7), scores.mean_precision(0.75)
    (1.0, 0.5)
    """
    scored = _require_valid(predictions, truth)
    low, high = lengths
    true_windows: dict[str, Windows] = {}
    n_dropped = 0
    for qid in predictions:
        counted = [window for window in truth[qid] if low < window[1] - window[0] <= high]
        n_dropped += len(truth[qid]) - len(counted)
        if counted:
            true_windows[qid] = counted
    if not true_windows:
        raise SubmissionError(
            f"no query has a true window longer than {low:g} s and up to {high:g} s, so no query can be scored; use "
            "other queries"
        )
    submitted = padded([predictions[qid][:MAX_WINDOWS] for qid in true_windows], 3 if scored else 2)
    first = submitted[:, 0]
    if scored:
        order = np.argsort(-submitted[:, :, 2], axis=1, kind="stable")  # NaN, the padding, comes last
        submitted = np.take_along_axis(submitted, order[:, :, None], axis=1)
    window_lists = list(true_windows.values())
    n_true = sizes(window_lists)
    ious, precisions = np.zeros(len(true_windows)), np.zeros((len(true_windows), len(THRESHOLDS)))
    undefined = math.inf if undefined_hits else 0.0
    for rows in _batches(n_true):
        truths = padded([window_lists[row] for row in rows], 2)
        ious[rows] = _ious_of_first(first[rows], truths)
        precisions[rows] = _average_precisions(_hits(ious_of(submitted[rows], truths, undefined)), n_true[rows])
    left_out = [qid for qid in predictions if qid not in true_windows]
    return MomentScores(list(true_windows), ious, precisions, n_true, n_dropped, left_out)


def _require_valid(predictions: Mapping[str, Windows], truth: Mapping[str, Windows]) -> bool:
    """Return whether the predicted windows have scores. Raises SubmissionError for invalid input of score_moments."""
    if not predictions and not truth:
        raise SubmissionError("no query to score; give at least one, with its true windows")
    for missing, problem in (
        ([qid for qid in truth if qid not in predictions], "has no predicted windows"),
        ([qid for qid in predictions if qid not in truth], "is not in the truth"),
    ):
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise SubmissionError(
                f"the query {missing[0]!r} {problem}{others}; give predictions and a truth with the same queries"
            )
    forms = set()
    for qid, windows in predictions.items():
        if len(windows) == 0:
            raise SubmissionError(f"the query {qid!r} has no window; each query needs one or more")
        forms |= {len(window) for window in windows}
        if not forms <= {2, 3}:
            raise SubmissionError(f"query {qid!r}: a window must be [start, end] or [start, end, score]")
        if len(forms) > 1:
            raise SubmissionError(f"query {qid!r}: only some windows have a score; give all windows a score, or none")
    if wrong := [qid for qid, windows in truth.items() if any(len(window) != 2 for window in windows)]:
        raise SubmissionError(f"query {wrong[0]!r}: a true window must be [start, end], without a score")
    for qid, windows in (*predictions.items(), *truth.items()):
        if not all(math.isfinite(number) for window in windows for number in window):
            raise SubmissionError(f"query {qid!r}: a window contains NaN or infinity; correct it")
    return forms == {3}


def padded(windows: Sequence[Windows], width: int) -> Values:
    """Return the windows of all queries as one array (Q, W, width), padded with NaN. width: Numbers per window."""
    array = np.full((len(windows), max(map(len, windows)), width), np.nan)
    counts = sizes(windows)
    flat = np.array([window[:width] for each in windows for window in each], dtype=np.float64)
    array[np.arange(array.shape[1]) < counts[:, None]] = flat
    return array


def _batches(n_true: Ints) -> Iterable[Ints]:
    """Yield batches of query numbers; queries of a batch have similar numbers of true windows, which saves memory."""
    order = np.argsort(n_true, kind="stable")
    start = 0
    while start < len(order):
        stop = min(len(order), start + 1024)
        while stop - start > 1 and (stop - start) * int(n_true[order[stop - 1]]) > _MAX_BATCH_WINDOWS:
            stop = start + (stop - start) // 2
        yield order[start:stop]
        start = stop


def ious_of(submitted: Values, truths: Values, undefined: float = 0.0) -> Values:
    """Return the IoU of each submitted and each true window, (Q, W, G); NaN for padding, `undefined` for 0 / 0."""
    with np.errstate(all="ignore"):
        starts = np.maximum(submitted[:, :, None, 0], truths[:, None, :, 0])
        shared = np.maximum(np.minimum(submitted[:, :, None, 1], truths[:, None, :, 1]) - starts, 0)
        lengths, true_lengths = submitted[:, :, 1] - submitted[:, :, 0], truths[:, :, 1] - truths[:, :, 0]
        ious = shared / (lengths[:, :, None] + true_lengths[:, None, :] - shared)
    return np.where(np.isnan(ious) & ~np.isnan(shared), undefined, ious)


def _ious_of_first(first: Values, truths: Values) -> Values:
    """Return for each query, (Q,), the IoU of its first window with the true window that fits best.

    If several true windows fit equally well, the first of them is used. As in the official script, the length of the
    intersection is divided by the length from the first start to the last end. The result can differ in the last bit
    from the IoU that AP uses.
    """
    best = np.nanargmax(ious_of(first[:, None], truths)[:, 0], axis=1)
    truth = truths[np.arange(len(best)), best]
    with np.errstate(all="ignore"):
        shared = np.maximum(np.minimum(first[:, 1], truth[:, 1]) - np.maximum(first[:, 0], truth[:, 0]), 0)
        hull = np.maximum(first[:, 1], truth[:, 1]) - np.minimum(first[:, 0], truth[:, 0])
        return np.where(hull == 0, 0.0, shared / hull)


def _hits(ious: Values) -> Flags:
    """Return for each query, IoU threshold and submitted window whether the window is right, (Q, T, W).

    Q: queries; T: thresholds; W: submitted windows; G: true windows. A window is right if its IoU with a true window is
    at least the threshold. Each true window is matched at most once. ious: (Q, W, G) IoU of each submitted window, best
    one first, with each true window.
    """
    n_queries, n_windows, n_truths = ious.shape
    thresholds = np.array(THRESHOLDS)
    free = np.ones((n_queries, len(thresholds), n_truths), dtype=bool)
    hits = np.zeros((n_queries, len(thresholds), n_windows), dtype=bool)
    for rank in range(n_windows):
        available = np.where(free, np.nan_to_num(ious[:, None, rank], nan=-1.0), -1.0)
        taken = n_truths - 1 - np.argmax(available[:, :, ::-1], axis=2)  # the last of equal ones
        best = np.take_along_axis(available, taken[:, :, None], axis=2)[:, :, 0]
        hits[:, :, rank] = best >= thresholds
        query, threshold = np.nonzero(hits[:, :, rank])
        free[query, threshold, taken[query, threshold]] = False
    return hits


def _average_precisions(hits: Flags, n_true: Ints) -> Values:
    """Return the average precision of each query at each threshold, (Q, T). hits: (Q, T, W), true for right windows.

    Q: queries; T: thresholds; W: submitted windows. n_true: (Q,) number of true windows of each query. Results are
    equal to those of the official script to the last bit, so that means ending in 5 are rounded in the same way. For
    this reason, the increase of recall at a window is computed as a difference of two recalls. Eight or more terms are
    added by numpy's sum, which adds in pairs.
    """
    n_found = np.cumsum(hits, axis=2)
    precision = n_found / np.arange(1, hits.shape[2] + 1)
    best = np.maximum.accumulate(precision[:, :, ::-1], axis=2)[:, :, ::-1]
    recall = n_found / n_true[:, None, None]
    terms = np.where(hits, np.diff(recall, axis=2, prepend=0.0) * best, 0.0)
    result: Values = np.cumsum(terms, axis=2)[:, :, -1]
    n_terms = n_found[:, :, -1] + (n_found[:, :, -1] < n_true[:, None])  # the missed windows are one term of 0
    for query, threshold in np.argwhere(n_terms >= _PAIRWISE_SUM_LENGTH):
        hit_terms = terms[query, threshold][hits[query, threshold]]
        result[query, threshold] = np.append(hit_terms, 0.0)[: n_terms[query, threshold]].sum()
    return result
