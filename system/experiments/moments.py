"""Rank entries of moments: find the windows of queries, write the edition's file, and compute the figures."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment, by_name, inside_recordings
from data_tools.moments import write_moments as write_truth
from submission.editions import MAX_WINDOWS, Edition, get_moments_edition
from submission.formats.moments import (
    Moments,
    MomentTruth,
    read_moment_truth,
    windows_by_query,
    write_moments,
    write_scored_moments,
)
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values, summarise_moments
from submission.runs.record import FrameScores, MomentsResult, write_frame_scores
from system.moments.windows import Grid, label_frames, runs_of_true
from system.ranking.entries import RankMoments
from system.ranking.windows import (
    FrameSeries,
    Located,
    Sliding,
    find_windows,
    fit_score,
    require_short_recordings,
    score_recordings,
)
from system.recipe import schema
from system.recipe.data import Data
from system.retriever import Retriever
from system.runs.folder import Run
from system.runs.open import describe_fit
from system.runs.trained_on import count_trained_clips

DRAWS = 20  # draws of random windows
REPAIR_RECORDINGS = (
    "repair or fetch these recordings; or make the moments file again without them, unless it is a blind list"
)

Windows = Mapping[str, Sequence[Sequence[float]]]  # start, end and perhaps score of each window, by query id
log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """Queries, each with its recording."""

    moments: list[Moment]
    recordings: dict[str, Clip]  # by id


def require_rankable_moments(recipe: schema.Recipe, data: Data) -> None:
    """Raise KitError before the training if a rank entry could not find windows for its moments after it.

    Recordings must be readable and not too long. All moments of an entry, or none, have windows; of a source `fit` all.
    """
    why = data.features.broken
    for name, entry in recipe.rank_moments.items():
        wanted = {moment.clip for moment in data.moments[entry.data]}
        if broken := {clip: why[clip] for clip in sorted(wanted & why.keys())}:
            described = describe_unreadable(broken, wanted)
            raise KitError(f"rank entry {name}: {described} cannot be read; {REPAIR_RECORDINGS}")
        by_name(clip for clip in data.readable_clips(entry.data) if clip.id in wanted)
        if entry.fit is not None:
            inside_recordings(data.moments[entry.fit], data.readable_clips(entry.fit))
        for source in filter(None, (entry.data, entry.fit)):
            known = {moment.windows is not None for moment in data.moments[source]}
            if len(known) > 1 or (source == entry.fit and False in known):
                reason = "since `fit` needs windows" if source == entry.fit else "or remove all windows"
                raise KitError(
                    f"rank entry {name}: {recipe.data[source].moments} has moments of data source {source} without "
                    f"windows; add windows to all moments of this source, {reason}"
                )
            require_short_recordings(data.moments[source], data.features)


def rank_moments(name: str, entry: RankMoments, data: Data, retriever: Retriever) -> MomentsResult:
    """Find the windows of a rank entry's queries, write them and the submission, and compute the metrics."""
    edition, run = get_moments_edition(entry.edition), Run(retriever.folder)
    asked = _asked(data, entry.data, data.moments[entry.data])
    sizes = counted(len(asked.moments), "query", ","), counted(len(asked.recordings), "recording")
    log.info("rank entry %s: finding the windows of %s in %s", name, *sizes)
    score, origin, fitted = retriever.model.moments, retriever.facts.checkpoint, None
    if entry.fit is not None:
        readable = [moment for moment in data.moments[entry.fit] if moment.clip in data.features.keys]
        known = _asked(data, entry.fit, inside_recordings(readable, data.readable_clips(entry.fit)))
        score = fit_score(score, score_asked(retriever, known)[1], known.moments, f"rank entry {name}", strict=False)
        fitted, origin = score.trained_numbers(), describe_fit(origin, entry.fit)
    series = score_asked(retriever, asked)[1]
    located = find_windows([(score, series)], entry.decoding, entry.windows)
    truth, answers = write_windows(run.file("windows", name), run.file("truth", name), asked, located)
    write_moments(run.file("answers", name), answers)
    frames = {qid: FrameScores(one.edges, one.frames) for qid, one in zip(truth.queries, located, strict=True)}
    write_frame_scores(run.file("frames", name), frames)
    edges = {qid: one.edges for qid, one in frames.items()}
    grids = dict(zip(truth.queries, series.grids, strict=True))
    sources = retriever.recipe.trained_on
    trained = {*data.captions(sources), *data.more_texts(sources)}
    result: dict[str, object] = {
        "metric": edition.metric,
        **metrics_of_windows(windows_by_query(answers), truth, edition, edges, grids),
        **metrics_of_new_texts(answers, truth, edition, trained),
        "data": entry.data,
        "queries": len(asked.moments),
        "clips": len(asked.recordings),
        "checkpoint": origin,
        "fitted": fitted,
        "edition": edition.name,
        "also_trained_on": count_trained_clips(run, entry.data, data),
    }
    return MomentsResult.model_validate(result)


def _asked(data: Data, source: str, moments: list[Moment]) -> Asked:
    clips = {clip.id: clip for clip in data.readable_clips(source)}
    return Asked(moments, {moment.clip: clips[moment.clip] for moment in moments})


def score_asked(
    retriever: Retriever, asked: Asked, sliding: Sliding | None = None, strict: bool = True
) -> tuple[list[Moment], FrameSeries]:
    """Score the frames of the recordings that can be read; return their moments, too.

    Args:
        strict: Raise KitError if one cannot be read.
    """
    recordings, settings = list(asked.recordings.values()), retriever.recipe.model.score
    try:
        features = retriever.frames_of(recordings)
    except KitError as error:
        raise KitError(f"model {retriever.folder}: {error}") from error
    broken = {clip.id: features.broken[clip.id] for clip in recordings if clip.id in features.broken}
    readable = [clip for clip in recordings if clip.id in features.keys]
    if broken and (strict or not readable):
        raise KitError(f"{describe_unreadable(broken, recordings)} cannot be read; {REPAIR_RECORDINGS}")
    moments = [moment for moment in asked.moments if moment.clip in features.keys]
    by_pieces = None if settings.of_series else sliding
    return moments, score_recordings(retriever.model, readable, moments, features, by_pieces)


def describe_unreadable(broken: Mapping[str, str], recordings: Collection[object]) -> str:
    """Count unreadable recordings, and name the first one and its fault."""
    clip, reason = next(iter(broken.items()))
    return f"{len(broken):,} of {counted(len(recordings), 'recording', ',')} (first {clip}: {reason})"


def write_windows(
    path: Path, truth_file: Path, asked: Asked, located: Sequence[Located]
) -> tuple[MomentTruth, list[Moments]]:
    """Write windows with scores, and the queries in the published format, with true windows if they are known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_truth(truth_file, asked.moments, asked.recordings.values())
    truth = read_moment_truth(truth_file)
    answers = [
        Moments(query.line, query.qid, query.query, query.vid, [list(window) for window in one.windows])
        for query, one in zip(truth.queries.values(), located, strict=True)
    ]
    write_scored_moments(path, answers)
    return truth, answers


def metrics_of_windows(
    windows: Windows, truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray], grids: Mapping[str, Grid]
) -> dict[str, object]:
    """Return the metrics of found windows, of random ones, and of true ones that consist of whole frames.

    All are None if the true windows are not known.

    Args:
        edges: (T + 1,) of the frames of each query's recording.
        grids: Times of these frames.
    """
    if truth.is_blind:
        return dict.fromkeys(("figures", "bootstrap", "random", "ceiling"))
    summary = summarise_moments(windows, truth, edition)
    return {
        "figures": summary.values,
        "bootstrap": {name: list(interval) for name, interval in summary.bootstraps.items()},
        "random": metrics_of_random_windows(truth, edition, edges),
        "ceiling": _metrics_of_true_frames(truth, edition, edges, grids),
    }


def metrics_of_new_texts(
    answers: Sequence[Moments], truth: MomentTruth, edition: Edition, trained: Collection[str]
) -> dict[str, object]:
    """Return the number and the metrics of the queries whose text is none of those `trained`."""
    windows = windows_by_query([one for one in answers if one.query not in trained])
    known = {} if truth.is_blind else {qid: one for qid, one in truth.windows().items() if qid in windows}
    figures = metric_values(score_moments(windows, known), edition.metrics) if any(known.values()) else None
    return {"new_texts": len(windows), "figures_of_new_texts": figures}


def metrics_of_random_windows(
    truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the mean metrics, over DRAWS draws, of as many random windows per query as the edition allows."""
    rng, total = np.random.default_rng(0), dict.fromkeys(edition.metrics, 0.0)
    for _ in range(DRAWS):
        drawn = {}
        for qid, known in edges.items():
            points = np.unique(known)
            drawn[qid] = [sorted(rng.choice(points, 2, replace=False).tolist()) for _ in range(MAX_WINDOWS)]
        values = metric_values(score_moments(drawn, truth.windows()), edition.metrics)
        total = {metric: value + values[metric] / DRAWS for metric, value in total.items()}
    return total


def _metrics_of_true_frames(
    truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray], grids: Mapping[str, Grid]
) -> dict[str, float]:
    """Return the metrics of the true windows as a perfect model of frames would find them.

    They consist of the frames whose centres are in the true window, or of the nearest one.
    """
    known = {}
    for qid, windows in truth.windows().items():
        here = edges[qid]
        labels = label_frames([(start, end) for start, end in windows], len(here) - 1, grids[qid])
        known[qid] = [[float(here[first]), float(here[last + 1])] for first, last in runs_of_true(labels)]
    return metric_values(score_moments(known, truth.windows()), edition.metrics)
