"""Windows of a recording, from scores of its frames.

Windows are in seconds. For training, frames are labelled by true windows.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from data_tools.settings import Positive, Strict
from submission.metrics.moments import ious

# T frames, W windows

CANDIDATES = 256  # windows considered first; more if too many of them overlap
IOU = 0.7  # of R1@0.7
DIGITS = 4  # of seconds
MIN_MASS = 1e-6  # probability of similar moments, below which a window keeps its edges
MAX_FRAMES = 20_000  # of a recording: comparing all windows takes T x T numbers at worst, 10 GB with copies
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

By = Literal["overlap", "thresholds"]  # see overlap_probability, threshold_windows


class Grid(NamedTuple):
    """Times of frames.

    A frame covers half a hop on both sides of its centre.
    """

    hop: float  # seconds from one frame to the next
    first: float  # centre of the first frame, in seconds

    @classmethod
    def of(cls, source: Any) -> "Grid":
        """Return the times of an expert's frames."""
        return cls(1 / source.frames_per_second, source.first_centre)

    def centres(self, frames: int) -> np.ndarray:
        """Return the centres of the first frames, (T,) in seconds."""
        return self.first + self.hop * np.arange(frames)

    def edges(self, frames: int, seconds: float) -> np.ndarray:
        """Return the starts of frames and the last one's end.

        The first frame begins at 0. The last frame ends with the recording if less than a hop remains.

        Args:
            frames: Number of frames, T.
            seconds: Length of the recording; no edge is after its end.

        Returns:
            (T + 1,) in seconds.
        """
        edges = self.first + self.hop * (np.arange(frames + 1) - 0.5)
        edges[0] = 0.0
        if 0 < seconds - edges[-1] < self.hop:
            edges[-1] = seconds
        return edges.clip(0.0, seconds)


class Decoding(Strict):
    """Settings that select windows.

    Rounding helps if the true edges are rounded too; CASTELLA's are whole seconds.
    """

    round_to: Annotated[float, Field(gt=0)] | None = None  # round edges to multiples of these seconds; null: no
    max_iou: Annotated[float, Field(ge=0, le=1)] = 0.6  # windows with a higher IoU with a better one are dropped
    windows: Positive = 10  # maximum number of windows per query
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None  # by thresholds: only this one; null: 0.1 to 0.9
    heard: Annotated[float, Field(gt=0, lt=1)] | None = None  # least probability that the query is heard; null: 0
    mean_edges: bool = False  # replace edges by the mean of those of similar windows (IoU of 0.7 or more)


class Found(NamedTuple):
    """A window that was found for a query."""

    start: float  # seconds
    end: float  # seconds
    score: float  # higher is better


def label_frames(windows: Sequence[tuple[float, float]], frames: int, grid: Grid) -> np.ndarray:
    """Label the frames whose centre is in a window.

    A centre is in a window if start <= centre < end. If a window contains no centre, the frame nearest to its middle is
    labelled.

    Deviation: the 2026 baseline rounds starts and ends down to whole frames. Example with one frame per second: for the
    window [70.9, 81.2], the baseline labels frame 70 as true, although the window covers only a tenth of this frame.
    For windows of whole seconds, the labels are the same.

    Args:
        frames: Number of frames, T.
        grid: Times of the frames.

    Returns:
        (T,) bool.
    """
    centres = grid.centres(frames)
    labels = np.zeros(frames, bool)
    for start, end in windows:
        inside = (centres >= start) & (centres < end)
        if not inside.any():
            inside[np.abs(centres - (start + end) / 2).argmin()] = True
        labels |= inside
    return labels


class WindowScores(NamedTuple):
    """Scores of all windows of a recording.

    The window from frame i to frame j >= i, both included, has the score begin_i + end_j. The table of all T x T scores
    is never computed as a whole, since only few of its rows are needed.
    """

    begin: np.ndarray  # (T,)
    end: np.ndarray  # (T,)

    @property
    def size(self) -> int:
        """Number of frames, T."""
        return len(self.begin)

    def best_score_per_start(self) -> np.ndarray:
        """Return the best score of windows by first frame, (T,)."""
        return self.begin + np.maximum.accumulate(self.end[::-1])[::-1]

    def rows(self, rows: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        """Return the scores of windows by first and last frame.

        Args:
            rows: Indexes of R first frames.
            columns: Range of C last frames.

        Returns:
            (R, C), -inf if the last frame is before the first one.
        """
        scores: np.ndarray = self.begin[rows, None] + self.end[columns]
        scores[np.arange(self.size)[columns] < rows[:, None]] = -np.inf
        return scores


def best_windows(scores: WindowScores, edges: np.ndarray, decoding: Decoding) -> list[Found]:
    """Return the windows of highest score with little overlap.

    There is at least one; the best one comes first.

    Args:
        edges: (T + 1,) starts of the T frames and end of the last one, in seconds.

    Raises:
        ValueError: No score is finite.
    """
    bounds = np.where(edges[1:] > edges[:-1], scores.best_score_per_start(), -np.inf)
    if not np.isfinite(bounds).any():
        raise ValueError("no window can be chosen, since no score is finite; check the model's weights")
    count = CANDIDATES
    while True:
        # The `count` best windows begin with frames that have the `count` best bounds.
        rows = np.flatnonzero((bounds >= _nth_highest(bounds, count)) & (bounds > -np.inf))
        table = scores.rows(rows)
        first, last = np.nonzero((table >= _nth_highest(table, count)) & (table > -np.inf))
        windows = np.stack([edges[rows[first]], edges[last + 1]], 1)
        found = select_windows(windows, table[first, last], edges[-1], decoding)
        if len(found) == decoding.windows or len(first) < count:
            return found
        count *= 4


def _nth_highest(values: np.ndarray, n: int) -> float:
    return -np.inf if values.size <= n else float(np.partition(values, values.size - n, None)[-n])


def select_windows(windows: np.ndarray, scores: np.ndarray, last: float, decoding: Decoding) -> list[Found]:
    """Select windows with little overlap, best first.

    Windows with equal scores are ordered by their start, then by their length.

    Args:
        windows: (W, 2) in seconds.
        scores: (W,), higher is better.
        last: End of the recording in seconds.
    """
    order = np.lexsort((windows[:, 1], windows[:, 0], -scores))
    windows, scores = _round_edges(windows[order], last, decoding.round_to), scores[order]
    remaining = np.ones(len(windows), bool)
    chosen: list[Found] = []
    while len(chosen) < decoding.windows and remaining.any():
        best = int(remaining.argmax())
        chosen.append(Found(float(windows[best, 0]), float(windows[best, 1]), float(scores[best])))
        remaining &= ious(windows, windows[best : best + 1])[:, 0] <= decoding.max_iou
        remaining[best] = False
    return chosen


def _round_edges(windows: np.ndarray, last: float, unit: float | None) -> np.ndarray:
    """Round windows to multiples of `unit` seconds, if set.

    An edge halfway between two multiples is rounded to the even multiple. A rounded window has a length of at least one
    unit. A partial unit at the recording's end counts as a whole unit, since true ends are rounded up.

    Source: the 2026 baseline's output. Deviations: a window without length becomes the unit around its middle here,
    while the baseline does not change it. The baseline ends all windows at 300 s.

    Args:
        windows: (W, 2) in seconds.
        last: End of the last frame in seconds.
    """
    windows = windows.round(DIGITS)
    if unit is None:
        return windows
    steps, highest = np.rint(windows / unit), max(1.0, np.ceil(last / unit - 1e-9))
    none = steps[:, 0] == steps[:, 1]
    steps[none, 0] = np.floor(windows[none].mean(1) / unit)
    steps[:, 0] = steps[:, 0].clip(0.0, highest - 1)
    steps[:, 1] = np.maximum(steps[:, 1].clip(0.0, highest), steps[:, 0] + 1)
    return (steps * unit).round(DIGITS)


def similar_ranges(windows: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the moments that are similar to each window.

    They have an IoU of at least 0.7 with it, and are ranges of their last frame by their first one.

    Returns:
        By window and first frame of a moment, (C, T) each: the first of these last frames, and the one behind them.
    """
    start, end = windows[:, :1], windows[:, 1:].clip(max=edges[-1])
    later, earlier = np.maximum(start, edges[:-1]), np.minimum(start, edges[:-1])  # (C, T) of it and of a frame's start
    shortest, longest = later + IOU * (end - earlier), earlier + (end - later) / IOU  # ends for which the IoU is enough
    first = edges[1:].searchsorted(shortest - 1e-9)
    behind = np.where(shortest <= end + 1e-9, edges[1:].searchsorted(longest + 1e-9, side="right"), first)
    return first, behind


def mean_edge_sums(windows: np.ndarray, scores: WindowScores, edges: np.ndarray) -> np.ndarray:
    """Sum the edges and probabilities of similar moments.

    A moment, from any frame to any later one, is similar to a window if their IoU is at least 0.7. Its edges are
    weighted by its probability.

    Args:
        windows: (C, 2) starts and ends in seconds.
        scores: Log probabilities that frames are one whole moment; -inf: impossible.
        edges: (T + 1,) starts of the T frames and end of the last one, in seconds.

    Returns:
        (C, 3): sums of starts, of ends, and of probabilities.
    """
    firsts, behinds = similar_ranges(windows, edges)
    frames, sums = np.arange(scores.size), np.zeros((len(windows), 3))
    for first, behind, total in zip(firsts, behinds, sums, strict=True):
        rows = np.flatnonzero(behind > first)
        if len(rows):
            columns = slice(int(first[rows].min()), int(behind[rows].max()))
            block, last = np.exp(scores.rows(rows, columns)), frames[columns]
            block[(last < first[rows, None]) | (last >= behind[rows, None])] = 0.0
            total[:] = block.sum(1) @ edges[rows], block.sum(0) @ edges[1:][columns], block.sum()
    return sums


def overlap_probability(windows: np.ndarray, scores: WindowScores, edges: np.ndarray) -> np.ndarray:
    """Compute the probability (C,) of a moment similar to windows.

    The probabilities of all similar moments are added: moments of a query do not overlap, but two moments with an IoU
    of 0.7 or more with a window would, so that at most one of them is real. The part of a window after the last edge,
    due to rounding, does not count. The arguments are those of `mean_edge_sums`.
    """
    return mean_edge_sums(windows, scores, edges)[:, 2].clip(0.0, 1.0)


def refine_edges(found: Sequence[Found], sums: np.ndarray, last: float, decoding: Decoding) -> list[Found]:
    """Replace windows' edges by mean edges of similar moments.

    Similar moments have an IoU of at least 0.7 with the window. The mean is weighted by their probabilities. If the sum
    of these is 1e-6 or less, the edges do not change. Scores do not change. A window that then equals a better window
    is dropped.

    Source: this kit; these edges have the least expected squared error.

    Args:
        found: W windows without rounding.
        sums: (W, 3), from mean_edge_sums; with several models, the sum of their arrays.
        last: End of the recording in seconds.
    """
    windows = np.array(found)[:, :2]
    is_known = sums[:, 2] > MIN_MASS
    windows[is_known] = sums[is_known, :2] / sums[is_known, 2:]
    chosen: dict[tuple[float, float], Found] = {}
    for (start, end), one in zip(_round_edges(windows, last, decoding.round_to).tolist(), found, strict=True):
        chosen.setdefault((start, end), Found(start, end, one.score))
    return list(chosen.values())


def threshold_windows(frames: np.ndarray, edges: np.ndarray, decoding: Decoding) -> list[Found]:
    """Find windows whose frames' probabilities all reach a threshold.

    The threshold is a setting in `decoding`. Without this setting, the windows of nine thresholds from 0.1 to 0.9 are
    taken together. A window's score is the mean probability of its frames minus the mean probability of all other
    frames. Windows that overlap a better window too much are dropped. If no frame reaches the lowest threshold, the
    only window is the frame of the highest probability.

    Args:
        frames: (T,) probabilities in [0, 1].
        edges: (T + 1,) starts of the T frames and end of the last one, in seconds.

    Raises:
        ValueError: A probability is not finite.
    """
    if not np.isfinite(frames).all():
        raise ValueError("no window can be chosen, since a probability is not finite; check the model's weights")
    thresholds = THRESHOLDS if decoding.threshold is None else (decoding.threshold,)
    runs = {run for threshold in thresholds for run in runs_of_true(frames >= threshold)}
    best = int(np.where(edges[1:] > edges[:-1], frames, -1.0).argmax())
    first, last = np.array(sorted(run for run in runs if edges[run[1] + 1] > edges[run[0]]) or [(best, best)]).T
    inside, sums = last + 1 - first, np.concatenate([[0.0], frames.cumsum()])
    total, outside = sums[last + 1] - sums[first], len(frames) - inside
    scores = total / inside - (sums[-1] - total) / outside.clip(min=1)  # means of frames inside and outside
    return select_windows(np.stack([edges[first], edges[last + 1]], 1), scores, edges[-1], decoding)


def runs_of_true(labels: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each true run."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], labels.astype(np.int8), [0]])))
    for first, behind in zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True):
        yield first, behind - 1
