"""Score frames, and find windows.

Score the frames of recordings for queries, and find windows by these scores, with one model or several.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.features.extract import Features
from system.models.embeddings import Embedded, Embeddings
from system.models.retrieval import RetrievalModel
from system.models.scores import FrameWeights, MomentScore, cosines_of_queries
from system.moments.labellings import log_likelihood, posteriors, raise_scores
from system.moments.windows import (
    MAX_FRAMES,
    By,
    Decoding,
    Found,
    Grid,
    WindowScores,
    label_frames,
    mean_edge_sums,
    overlap_candidates,
    overlap_probability,
    overlap_windows,
    refine_edges,
    threshold_windows,
)

# Q queries, T frames

FITTED_TOGETHER = 64  # queries per part of a step
FIT_STEPS = 50
REPAIR_RECORDINGS = (
    "repair or fetch these recordings; or make the moments file again without them, unless it is a blind list"
)
AT_ONCE = 1 << 20  # most frames of queries that are decoded together: 16 MiB per array of two states in float64

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameSeries:
    """Scores of a recording's frames for each of Q queries. Each query is searched for in one recording.

    values: Cosines of a recording's T frames with the query, on the CPU: (T,), or (K, T) if the score uses K different
    vectors for each frame. From these cosines, MomentScore.weights computes the scores. edges: Start of each frame and
    end of the last frame, (T + 1,) seconds. grids: Times of the frames. Each of the three lists has one value per
    query.
    """

    values: list[torch.Tensor]
    edges: list[np.ndarray]
    grids: list[Grid]

    @property
    def frame_counts_and_lengths(self) -> tuple[list[int], list[str]]:
        """Two lists, one item per query: its recording's number of frames, and length as text such as "of 30 s"."""
        return [one.shape[-1] for one in self.values], [f"of {edges[-1]:,.0f} s" for edges in self.edges]


class Located(NamedTuple):
    """Windows of one query in its recording.

    windows: Found windows, best first. edges: Start of each frame and end of the last frame, (T + 1,) seconds.
    frames: (T,) probability that a frame is in a moment.
    """

    windows: list[Found]
    edges: np.ndarray
    frames: np.ndarray


def frame_series(
    model: RetrievalModel,
    clips: Embeddings,
    recordings: Sequence[Clip],
    clip_of: Sequence[int],
    captions: Embedded,
    grids: Mapping[str, Grid],
) -> FrameSeries:
    """Score all frames of each query's recording by a model of moments. clip_of: Index of each query's recording.

    clips: Embeddings of the recordings' frames. captions: Embeddings of the Q queries.
    grids: Dict from expert to the times of its frames.
    Raises KitError if the model returns one embedding per recording instead of one per frame.
    """
    if clips.lengths is None:
        raise KitError(
            "windows need one embedding per frame, but this model returns one per recording; use another model"
        )
    with torch.inference_mode():
        values = cosines_of_queries(require_moment_score(model), clips, clip_of, captions)
    sizes, grid = clips.lengths.tolist(), model.embedded_frame_grid(grids)
    edges = [grid.edges(size, clip.seconds or math.inf) for size, clip in zip(sizes, recordings, strict=True)]
    return FrameSeries(values, [edges[number] for number in clip_of], [grid] * len(clip_of))


def find_windows(score: MomentScore, series: FrameSeries, by: By, decoding: Decoding) -> list[Located]:
    """Find the windows of Q queries from one model's scores of frames. by: Kind of score that selects windows.

    Kinds of scores:
    `overlap`: The probability that some moment has an IoU of 0.7 or more with the window.
    `thresholds`: All frames of a window have a probability that reaches a threshold. The score is their mean
    probability minus the mean of all other frames.
    The result also has a probability per frame. It depends on the scores of all frames; with `thresholds`, only on the
    score of this frame.
    """
    if by == "overlap":
        return find_windows_by_several([(score, series)], decoding)
    located, exact = [], _in_float64(score)
    for values, edges in zip(series.values, series.edges, strict=True):
        frames = exact.weights(values.double()[None]).scores[0].sigmoid().numpy()
        located.append(Located(threshold_windows(frames, edges, decoding), edges, frames))
    return located


def find_windows_by_several(members: Sequence[tuple[MomentScore, FrameSeries]], decoding: Decoding) -> list[Located]:
    """Find the windows of Q queries from the frame scores of several models.

    members: For each model, its score of moments, and its scores of the queries' frames.

    The models' frames may have different lengths. Candidates are the most probable windows of each model. The score of
    a window is the probability that some moment has an IoU of 0.7 or more with the window, as a mean over the models. A
    window with such a moment is a hit for the metric R1@0.7. The probability that a moment has exactly the edges of the
    window would be less useful, since it is divided among many almost equal windows.

    The returned frames have the times of the model with most frames. Their values are the mean of all models'
    posterior probabilities.
    Source: ours; a decision of least expected loss (minimum Bayes risk).
    """
    for _, series in members:
        require_few_frames(*series.frame_counts_and_lengths)
    count = len(members[0][1].values)
    chosen: list[list[np.ndarray]] = [[] for _ in range(count)]
    edges = [max((series.edges[query] for _, series in members), key=len) for query in range(count)]
    frames = [np.zeros(len(of_query) - 1) for of_query in edges]
    unrounded = _without_rounding(decoding)
    posteriors_of = [list(_posteriors(score, series, decoding.heard)) for score, series in members]
    for (_, series), found in zip(members, posteriors_of, strict=True):
        for query, whole, inside in found:
            chosen[query].append(overlap_candidates(whole, series.edges[query], unrounded))
            frames[query] += _resample(inside, series.edges[query], edges[query]) / len(members)
    windows = [np.unique(np.concatenate(of_query), axis=0) for of_query in chosen]
    scores = [np.zeros(len(of_query)) for of_query in windows]
    for (_, series), found in zip(members, posteriors_of, strict=True):
        for query, whole, _ in found:
            scores[query] += overlap_probability(windows[query], whole, series.edges[query]) / len(members)
    lasts = [max(series.edges[query][-1] for _, series in members) for query in range(count)]
    best = [overlap_windows(windows[query], scores[query], lasts[query], unrounded) for query in range(count)]
    if decoding.mean_edges:
        sums = [np.zeros((len(of_query), 3)) for of_query in best]
        for (_, series), found in zip(members, posteriors_of, strict=True):
            for query, whole, _ in found:
                sums[query] += mean_edge_sums(_edges_array(best[query]), whole, series.edges[query])
        best = [refine_edges(best[query], sums[query], lasts[query], decoding) for query in range(count)]
    return [Located(best[query], edges[query], frames[query].clip(0.0, 1.0)) for query in range(count)]


def _without_rounding(decoding: Decoding) -> Decoding:
    """Return the settings without rounding if starts and ends of windows are averaged later, and rounded after that."""
    return decoding.model_copy(update={"round_to": None}) if decoding.mean_edges else decoding


def _edges_array(windows: Sequence[Found]) -> np.ndarray:
    """Return the starts and ends of windows as an array, (W, 2) seconds."""
    return np.array([[window.start, window.end] for window in windows])


def _posteriors(
    score: MomentScore, series: FrameSeries, heard: float | None
) -> Iterator[tuple[int, WindowScores, np.ndarray]]:
    """Yield each query's index, and the probabilities of windows and of frames for this query.

    The second value has the log probabilities that a window is exactly one moment. The third value has the
    probabilities (T,) that a frame is in a moment. heard: The scores of frames are raised until a moment has at least
    this probability, since the query is known to be heard; None: no scores are raised.
    """
    for queries, (scores, enter, leave), lengths in _batches_by_length(_in_float64(score), series):
        if heard is not None:
            scores, enter = raise_scores(scores, lengths, enter, leave, heard, score.frame_share)
        frames, begin, end = (one.numpy() for one in posteriors(scores, lengths, enter, leave))
        for row, (query, size) in enumerate(zip(queries, lengths.tolist(), strict=True)):
            yield query, WindowScores(begin[row, :size], end[row, :size]), frames[row, :size]


def _resample(frames: np.ndarray, edges: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Convert the values of C frames to values of F shorter frames, whose times are in `fine`.

    Each new value is the mean of the old values during the shorter frame.
    frames: (C,) values of the frames. edges: (C + 1,) edges of the frames in seconds. fine: (F + 1,) edges of the
    shorter frames.
    """
    ends, starts = np.minimum(fine[1:, None], edges[1:]), np.maximum(fine[:-1, None], edges[:-1])
    found: np.ndarray = (ends - starts).clip(min=0.0) @ frames / np.diff(fine).clip(min=1e-9)
    return found


def require_few_frames(lengths: Sequence[int], names: Sequence[str]) -> None:
    """Raise KitError if a recording has more than MAX_FRAMES frames, too many to compare all windows.

    lengths: Number of frames of each recording. names: Names of the recordings, in the same order.
    """
    if lengths and (size := max(lengths)) > MAX_FRAMES:
        longest = names[lengths.index(size)]
        raise KitError(
            f"recording {longest} has {size:,} frames, but the limit is {MAX_FRAMES:,}; cut the recording, or use "
            "fewer frames per second (another expert, or a longer --hop)"
        )


def require_short_recordings(moments: Sequence[Moment], features: Features) -> None:
    """Raise KitError if the recording of a moment has too many frames to compare all windows.

    Only recordings with computed frames are checked.
    """
    clips = sorted({moment.clip for moment in moments} & features.keys.keys())
    for bank in features.banks.values():
        require_few_frames([bank.rows_of(features.keys[clip]) for clip in clips], clips)


@torch.no_grad()
def _batches_by_length(
    score: MomentScore, series: FrameSeries
) -> Iterator[tuple[list[int], FrameWeights, torch.Tensor]]:
    """Yield groups of queries that fit into memory: indexes, weights of their recordings' frames, numbers of frames.

    The B recordings of a group have similar lengths. The weights are in float64. The numbers of frames have the shape
    (B,).
    score: Score of moments in float64, on the CPU.
    """
    lengths, _ = series.frame_counts_and_lengths
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * lengths[order[end]] > AT_ONCE:
            queries = order[begin:end]
            weights = score.weights(_pad([series.values[query].double() for query in queries]))
            yield queries, weights, torch.tensor([lengths[query] for query in queries])
            begin = end


def _pad(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pad the values (..., T) of Q queries with zeros to the largest T. Returns: (Q, ..., T)."""
    longest = max(one.shape[-1] for one in values)
    return torch.stack([F.pad(one, (0, longest - one.shape[-1])) for one in values])


def _in_float64(score: MomentScore) -> MomentScore:
    """Return a copy of a score in float64 on the CPU, without gradients."""
    return deepcopy(score).cpu().double().requires_grad_(False)


def fit_score(score: MomentScore, series: FrameSeries, moments: Sequence[Moment], name: str) -> MomentScore:
    """Return a copy of a score whose trained numbers are fitted to known moments. name: Name of the model, for the log.

    The numbers are the scale and the offset of frame scores, and the weights of moment starts and ends. The fit
    maximises the likelihood per frame.
    A model that was never trained on windows can find windows after the fit. Trained layers do not change. The
    optimizer is LBFGS in float64, with a line search and at most FIT_STEPS steps. It starts from the values of `score`.

    moments: The known moment of each query of `series`. Raises KitError for moments without windows.
    """
    if blind := next((moment.id for moment in moments if moment.windows is None), None):
        raise KitError(f"moment {blind} has no windows, but a fit needs known windows; name a split that has them")
    score = _in_float64(score)
    values, lengths = (
        _pad([values.double() for values in series.values]),
        torch.tensor(series.frame_counts_and_lengths[0]),
    )
    labels = torch.zeros(len(values), values.shape[-1], dtype=torch.bool)
    for row, moment, length, grid in zip(labels, moments, lengths.tolist(), series.grids, strict=True):
        row[:length] = torch.from_numpy(label_frames(moment.windows or [], length, grid))
    numbers = [one.requires_grad_() for one in score.parameters() if one.dim() == 0]
    optimizer = torch.optim.LBFGS(numbers, max_iter=FIT_STEPS, line_search_fn="strong_wolfe")

    def mean_loss() -> float:
        """Return the mean loss of all moments; its gradients are stored in the score's trained numbers."""
        optimizer.zero_grad()
        total = 0.0
        for part in torch.arange(len(moments)).split(FITTED_TOGETHER):
            scores, enter, leave = score.weights(values[part])
            found = log_likelihood(scores, lengths[part], labels[part], enter, leave) / lengths[part]
            loss = -found.sum() / len(moments)
            loss.backward()
            total += loss.item()
        return total

    optimizer.step(mean_loss)
    score = score.float().requires_grad_(False)
    if score.scale <= 0:
        log.warning(
            "model %s: the fitted scale is not above 0, so its scores are no better than chance; leave the model out",
            name,
        )
    log.info(
        "model %s was fitted to %s: %s", name, counted(len(moments), "moment", ","),
        ", ".join(f"{key} {value:.2f}" for key, value in score.trained_numbers().items()),
    )  # fmt: skip
    return score


def describe_unreadable(broken: Mapping[str, str], recordings: Collection[str]) -> str:
    """Return a text with the number of unreadable recordings, and the first of them with the reason.

    broken: Dict from the id of a recording to the reason. recordings: Ids of all recordings.
    """
    clip, reason = next(iter(broken.items()))
    return f"{len(broken):,} of {counted(len(recordings), 'recording', ',')} (first {clip}: {reason})"


def require_moment_score(model: RetrievalModel) -> MomentScore:
    """Return a model's score of moments. Raises KitError for a model without such a score."""
    try:
        return model.moments
    except ValueError:
        raise KitError(
            "this model cannot find windows of moments; name a model that was trained with the score moments"
        ) from None
