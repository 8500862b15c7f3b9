"""Find windows by the scores of recordings' frames.

The scores are those of one model or several; the most probable windows are taken. A model of moments scores frames. A
model that compares frames with words scores each frame like a clip. A model of whole clips scores pieces of the
recording, which a sliding window cuts out.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.batches.items import require_known_windows
from system.features.extract import Features
from system.features.pieces import pieces_of
from system.models.batch import Embedded, Embeddings, Ragged, groups_of_similar_length
from system.models.retrieval import RetrievalModel
from system.models.scores import MomentScore, cosines_of_queries
from system.moments.labellings import log_likelihood, posteriors, raise_scores
from system.moments.windows import (
    MAX_FRAMES,
    By,
    Decoding,
    Found,
    Grid,
    WindowScores,
    best_windows,
    label_frames,
    mean_edge_sums,
    overlap_probability,
    refine_edges,
    select_windows,
    threshold_windows,
)
from system.ranking.embedding import embed_clips, embed_texts

# Q queries, T frames of a query's recording

log = logging.getLogger(__name__)

# of a query: log probabilities of windows, probabilities (T,) of frames to be in a moment, and edges (T + 1,) of frames
View = tuple[WindowScores, np.ndarray, np.ndarray]

FITTED_TOGETHER = 64  # queries per part of a step
FIT_STEPS = 50
CANDIDATES = 30  # most probable windows of each model, among which the windows are chosen
AT_ONCE = 1 << 20  # most frames that are decoded together: 16 MiB per array of two states in float64


class Sliding(NamedTuple):
    """Pieces of recordings for models of whole clips."""

    seconds: float = 10.0  # of a piece
    hop: float = 1.0  # seconds from a piece to the next


class QueryFrames(NamedTuple):
    """Cosines of the frames of a query's recording.

    A score of moments makes weights of them.
    """

    values: torch.Tensor  # (T,) on the CPU, or (K, T) for K vectors per frame
    grid: Grid  # times of the frames
    seconds: float  # length of the recording

    @property
    def edges(self) -> np.ndarray:
        """Starts of the frames and the end of the last, (T + 1,) seconds."""
        return self.grid.edges(self.size, self.seconds)

    @property
    def size(self) -> int:
        """Number of frames, T."""
        return self.values.shape[-1]


class Located(NamedTuple):
    """Windows of one query, and its recording's frames."""

    windows: list[Found]  # the best first
    edges: np.ndarray  # (T + 1,) seconds
    frames: np.ndarray  # (T,) probability to be in a moment

    def __repr__(self) -> str:
        """Show the windows."""
        return f"Located({self.windows})"


def score_recordings(
    model: RetrievalModel,
    recordings: Sequence[Clip],
    moments: Sequence[Moment],
    features: Features,
    sliding: Sliding | None = None,
) -> list[QueryFrames]:
    """Score all frames of each moment's recording for its text.

    Args:
        sliding: For a model of whole clips. None: the model has one vector per frame.
    """
    row = {clip.id: number for number, clip in enumerate(recordings)}
    clip_of = [row[moment.clip] for moment in moments]
    captions = embed_texts(model, [moment.text for moment in moments])
    if isinstance(model.score, MomentScore):
        return frame_series(model, embed_clips(model, recordings, features), recordings, clip_of, captions)
    if sliding is None:
        parts = list(_frames_as_clips(model, recordings, features))
    else:
        parts = list(_pieces_as_clips(model, recordings, features, sliding))
    found = []
    for query, number in enumerate(clip_of):
        clips, grid = parts[number]
        with torch.inference_mode():
            values = model.score(clips, captions.rows([query]))[:, 0].float().cpu()
        found.append(QueryFrames(values, grid, recordings[number].seconds or math.inf))
    return found


def frame_series(
    model: RetrievalModel, clips: Embeddings, recordings: Sequence[Clip], clip_of: Sequence[int], captions: Embedded
) -> list[QueryFrames]:
    """Score embedded recordings by a model of moments.

    Args:
        clip_of: (Q,) index of each query's recording.
    """
    with torch.inference_mode():
        found = cosines_of_queries(model.moments, clips, clip_of, captions)
    seconds = [recordings[number].seconds or math.inf for number in clip_of]
    return [QueryFrames(values, model.frame_grid, size) for values, size in zip(found, seconds, strict=True)]


def _frames_as_clips(
    model: RetrievalModel, recordings: Sequence[Clip], features: Features
) -> Iterator[tuple[Embedded, Grid]]:
    """Make clips of the frames of each recording.

    A frame has the time of the only expert's frame, if there is one for each embedded frame. Otherwise the frames
    divide the recording into equal parts.
    """
    embedded = embed_clips(model, recordings, features)
    assert isinstance(embedded, Ragged)
    for clip, series in zip(recordings, embedded.series, strict=True):
        if not clip.seconds:
            raise KitError(f"recording {clip.id}: no length; add `seconds` to its line in the manifest")
        name, *others = features.banks
        is_one_each = not others and features.banks[name].rows_of(features.keys[clip.id]) == len(series)
        part = clip.seconds / len(series)
        clips = Embedded(series[:, None], torch.ones(len(series), dtype=torch.int64, device=series.device))
        yield clips, features.grids[name] if is_one_each else Grid(part, part / 2)


def _pieces_as_clips(
    model: RetrievalModel, recordings: Sequence[Clip], features: Features, sliding: Sliding
) -> Iterator[tuple[Embedded, Grid]]:
    """Make clips of the pieces of each recording.

    The windows' frame in the middle of a piece is one hop long.
    """
    pieces, of_pieces = pieces_of(recordings, features, *sliding)
    embedded = embed_clips(model, [piece for each in pieces for piece in each], of_pieces)
    for part in embedded.values.split([len(each) for each in pieces]):
        yield Embedded(part), Grid(sliding.hop, sliding.hop / 2)


def find_windows(
    members: Sequence[tuple[MomentScore, Sequence[QueryFrames]]], decoding: Decoding, by: By = "overlap"
) -> list[Located]:
    """Find the windows of Q queries.

    Several models may have different frames.

    `overlap`: A window's score is the probability that some moment has an IoU of 0.7 or more with it, as a mean over
    the models: the decision of least expected loss for R1@0.7. Candidates are the most probable windows of each model.
    The probability that a moment has exactly these edges would be less useful, since it is divided among many almost
    equal windows. `thresholds`: All frames of a window have a probability that reaches a threshold, by the first model.

    Returns:
        Windows with the frames of the model with most frames. Their probabilities are means over the models; with
        `thresholds`, they depend on the score of the frame alone.

    Source: ours (minimum Bayes risk).
    """
    if by == "thresholds":
        score, series = members[0]
        return [_windows_by_thresholds(_exact(score), one, decoding) for one in series]
    found = [dict(_posteriors(score, series, decoding.heard)) for score, series in members]
    return [_windows_by_overlap([views[query] for views in found], decoding) for query in range(len(found[0]))]


def _windows_by_thresholds(score: MomentScore, series: QueryFrames, decoding: Decoding) -> Located:
    frames, edges = score.weights(series.values.double()[None]).scores[0].sigmoid().numpy(), series.edges
    return Located(threshold_windows(frames, edges, decoding), edges, frames)


def _windows_by_overlap(views: Sequence[View], decoding: Decoding) -> Located:
    """Find the windows of one query by each model's view."""
    unrounded = decoding.model_copy(update={"round_to": None}) if decoding.mean_edges else decoding
    finest, last = max((edges for *_, edges in views), key=len), max(edges[-1] for *_, edges in views)
    wide = unrounded.model_copy(update={"windows": CANDIDATES})
    probable = {window[:2] for whole, _, edges in views for window in best_windows(whole, edges, wide)}
    candidates = np.array(sorted(probable))
    scores = sum(overlap_probability(candidates, whole, edges) / len(views) for whole, _, edges in views)
    windows = select_windows(candidates, np.asarray(scores), last, unrounded)
    if decoding.mean_edges:
        chosen = np.array([[window.start, window.end] for window in windows])
        sums = sum(mean_edge_sums(chosen, whole, edges) for whole, _, edges in views)
        windows = refine_edges(windows, np.asarray(sums), last, decoding)
    frames = sum(_resample(inside, edges, finest) / len(views) for _, inside, edges in views)
    return Located(windows, finest, np.asarray(frames).clip(0.0, 1.0))


def _resample(frames: np.ndarray, edges: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Average frames' values over shorter frames, of edges `fine`."""
    ends, starts = np.minimum(fine[1:, None], edges[1:]), np.maximum(fine[:-1, None], edges[:-1])
    return (ends - starts).clip(min=0.0) @ frames / np.diff(fine).clip(min=1e-9)


@torch.no_grad()
def _posteriors(score: MomentScore, series: Sequence[QueryFrames], heard: float | None) -> Iterator[tuple[int, View]]:
    """Yield each query's probabilities of windows and frames.

    Queries of recordings of similar length are decoded together.

    Args:
        heard: Scores of frames are raised until a moment is that probable, since the query is known to be heard.

    Yields:
        The query's index and view.
    """
    exact, lengths = _exact(score), [one.size for one in series]
    require_few_frames(lengths, [f"of {one.edges[-1]:,.0f} s" for one in series])
    for queries in groups_of_similar_length(lengths, AT_ONCE):
        sizes = torch.tensor([lengths[query] for query in queries])
        scores, enter, leave = exact.weights(_pad([series[query].values.double() for query in queries]))
        if heard is not None:
            scores, enter = raise_scores(scores, sizes, enter, leave, heard, exact.frame_share)
        frames, first, last = (one.numpy() for one in posteriors(scores, sizes, enter, leave))
        for row, (query, size) in enumerate(zip(queries, sizes.tolist(), strict=True)):
            windows = WindowScores(first[row, :size], last[row, :size])
            yield query, (windows, frames[row, :size], series[query].edges)


def require_few_frames(lengths: Sequence[int], names: Sequence[str]) -> None:
    """Refuse recordings with too many frames for all windows."""
    if lengths and (size := max(lengths)) > MAX_FRAMES:
        raise KitError(
            f"recording {names[lengths.index(size)]} has {size:,} frames, but the limit is {MAX_FRAMES:,}; cut the "
            "recording, or use fewer frames per second (another expert, or a longer --hop)"
        )


def require_short_recordings(moments: Sequence[Moment], features: Features) -> None:
    """Refuse moments whose recording has too many frames.

    Recordings without computed frames are not checked.
    """
    clips = sorted({moment.clip for moment in moments} & features.keys.keys())
    for bank in features.banks.values():
        require_few_frames([bank.rows_of(features.keys[clip]) for clip in clips], clips)


def fit_score(score: MomentScore, series: Sequence[QueryFrames], moments: Sequence[Moment], name: str) -> MomentScore:
    """Return a copy of a score, fitted to known moments.

    The numbers are the scale and the offset of frame scores, and the weights of moment starts and ends; layers stay.
    The fit maximises the likelihood per frame by LBFGS in float64, from the values of `score`, with a line search and
    at most FIT_STEPS steps. A model that was never trained on windows can find windows after it.

    Args:
        moments: The known moment of each query of `series`.
        name: Of the model, for messages.
    """
    require_known_windows(moments)
    score, values = _exact(score), _pad([one.values.double() for one in series])
    lengths = torch.tensor([one.size for one in series])
    labels = torch.zeros(len(values), values.shape[-1], dtype=torch.bool)
    for row, moment, one in zip(labels, moments, series, strict=True):
        row[: one.size] = torch.from_numpy(label_frames(moment.windows or [], one.size, one.grid))
    numbers = [one.requires_grad_() for one in score.parameters() if one.dim() == 0]
    optimizer = torch.optim.LBFGS(numbers, max_iter=FIT_STEPS, line_search_fn="strong_wolfe")

    def mean_loss() -> float:
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
    fitted = ", ".join(f"{key} {value:.2f}" for key, value in score.trained_numbers().items())
    if score.scale <= 0:
        log.warning("%s: its scores are no better than chance on these moments (%s); leave it out", name, fitted)
    log.info("model %s was fitted to %s: %s", name, counted(len(moments), "moment", ","), fitted)
    return score


def _pad(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pad values (..., T) with zeros to the largest T."""
    longest = max(one.shape[-1] for one in values)
    return torch.stack([F.pad(one, (0, longest - one.shape[-1])) for one in values])


def _exact(score: MomentScore) -> MomentScore:
    """Return a score's copy in float64 on the CPU."""
    return deepcopy(score).cpu().double().requires_grad_(False)
