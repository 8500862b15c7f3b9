"""Rank entries of moments: find the windows of queries, write the edition's file, and compute the figures."""

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.moments import by_name, inside_recordings
from submission.editions import Edition, get_moments_edition
from submission.formats.moments import Moments, MomentTruth, windows_by_query, write_moments
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values, summarise_moments
from submission.runs.files import FrameScores, write_frame_scores
from submission.runs.record import MomentsResult
from system.experiments.locate import REPAIR_RECORDINGS, Asked, describe_unreadable, write_windows
from system.moments.windows import Grid, label_frames, runs_of_true
from system.ranking.entries import RankMoments
from system.ranking.windows import find_windows, fit_score, require_short_recordings, score_recordings
from system.recipe import schema
from system.recipe.data import Data
from system.retriever import Retriever
from system.runs.folder import Run
from system.runs.open import describe_fit
from system.runs.trained_on import count_trained_clips

DRAWS = 20  # draws of random windows

Windows = Mapping[str, Sequence[Sequence[float]]]  # start, end and perhaps score of each window, by query id
log = logging.getLogger(__name__)


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
    moments, edition, model = data.moments[entry.data], get_moments_edition(entry.edition), retriever.model
    by_id, run = {clip.id: clip for clip in data.readable_clips(entry.data)}, Run(retriever.folder)
    asked = Asked(moments, {moment.clip: by_id[moment.clip] for moment in moments})
    sizes = counted(len(moments), "query", ","), counted(len(asked.recordings), "recording")
    log.info("rank entry %s: finding the windows of %s in %s", name, *sizes)
    score, origin, fitted = model.moments, retriever.facts.checkpoint, None
    if entry.fit is not None:
        clips = data.readable_clips(entry.fit)
        readable = [moment for moment in data.moments[entry.fit] if moment.clip in data.features.keys]
        known = inside_recordings(readable, clips)
        series = score_recordings(model, clips, known, data.features)
        score = fit_score(score, series, known, f"rank entry {name}", strict=False)
        fitted, origin = score.trained_numbers(), describe_fit(origin, entry.fit)
    series = score_recordings(model, list(asked.recordings.values()), moments, data.features)
    located = find_windows([(score, series)], entry.decoding, entry.windows)
    files = {
        "windows": run.windows_file(name),
        "answers": run.csv_file(name).with_suffix(".jsonl"),
        "truth": run.scores_file(name).with_suffix(".truth.jsonl"),
        "frames": run.scores_file(name).with_suffix(".frames.npz"),
    }
    truth, answers = write_windows(files["windows"], files["truth"], asked, located)
    write_moments(files["answers"], answers, edition)
    frames = {qid: FrameScores(one.edges, one.frames) for qid, one in zip(truth.queries, located, strict=True)}
    write_frame_scores(files["frames"], frames)
    edges = {qid: one.edges for qid, one in frames.items()}
    grids = dict(zip(truth.queries, series.grids, strict=True))
    trained = data.texts({source for stage in retriever.recipe.stages.values() for source in stage.train.data})
    result: dict[str, object] = {
        "metric": edition.metric,
        **metrics_of_windows(windows_by_query(answers), truth, edition, edges, grids),
        **metrics_of_new_texts(answers, truth, edition, trained),
        "data": entry.data,
        "queries": len(moments),
        "clips": len(asked.recordings),
        "checkpoint": origin,
        "fitted": fitted,
        "edition": edition.name,
        "also_trained_on": count_trained_clips(run, entry.data, data),
        **{kind: str(path) for kind, path in files.items()},
    }
    return MomentsResult.model_validate(result)


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
            drawn[qid] = [sorted(rng.choice(points, 2, replace=False).tolist()) for _ in range(edition.max_windows)]
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
