"""Rank entries of moments.

The rank entries of moments: find the windows of queries, write the edition's file, and compute the figures.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment, by_name, inside_recordings
from data_tools.moments import write_moments as write_queries
from submission.editions import Edition, get_moments_edition
from submission.formats.moments import (
    Moments,
    MomentTruth,
    read_moment_truth,
    write_moments,
    write_scored_moments,
)
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values, summarise_moments
from submission.runs.files import FrameScores, write_frame_scores
from submission.runs.record import MomentsResult
from system.experiments.ranking import RunModels
from system.moments.windows import Grid, label_frames, runs_of_true
from system.recipe import schema

if TYPE_CHECKING:
    from system.ranking.windows import Located
    from system.recipe.data import Data

DRAWS = 20  # draws of random windows

log = logging.getLogger(__name__)


class Files(NamedTuple):
    """Paths of the files that a rank entry of moments writes into the folder of a run.

    windows: The windows found for each query, with their scores. answers: The challenge's submission. truth: The
    queries, and their true windows if known, in the published format. frames: For each query, one probability per frame
    of its recording: that the query is heard in the frame.
    """

    windows: Path
    answers: Path
    truth: Path
    frames: Path

    @classmethod
    def of(cls, run: Path, name: str) -> "Files":
        """Return the paths of the files that the rank entry `name` writes into the folder of a run."""
        scores = run / "scores"
        windows, truth = scores / f"{name}.windows.jsonl", scores / f"{name}.truth.jsonl"
        return cls(windows, run / "submission" / f"{name}.jsonl", truth, scores / f"{name}.frames.npz")


def require_rankable_moments(recipe: schema.Recipe, data: "Data") -> None:
    """Raise KitError before the training if a rank entry could not find windows for its moments after the training.

    The error is raised for recordings that cannot be read or are too long, and if only some moments of an entry have
    windows. A rank entry may name a data source `fit`. A few numbers of the model's score are fitted to the moments of
    this source, so all of them must have windows.
    """
    from system.ranking.locate import REPAIR_RECORDINGS, describe_unreadable
    from system.ranking.windows import require_short_recordings

    why = data.features.broken
    for name, entry in recipe.rank_moments.items():
        wanted_ids = {moment.clip for moment in data.moments[entry.data]}
        if broken := {clip: why[clip] for clip in sorted(wanted_ids & why.keys())}:
            broken_recordings = describe_unreadable(broken, wanted_ids)
            raise KitError(f"rank entry {name}: {broken_recordings} cannot be read; {REPAIR_RECORDINGS}")
        by_name(clip for clip in data.readable_clips(entry.data) if clip.id in wanted_ids)
        if entry.fit is not None:
            inside_recordings(data.moments[entry.fit], data.readable_clips(entry.fit))
        for source in filter(None, (entry.data, entry.fit)):
            known = {moment.windows is not None for moment in data.moments[source]}
            if len(known) > 1 or (source == entry.fit and False in known):
                file = recipe.data[source].moments
                rule = (
                    "add windows to all moments of this source, or remove all windows"
                    if source == entry.data
                    else "add windows to all moments of this source, since `fit` needs windows"
                )
                raise KitError(f"rank entry {name}: {file} has moments of data source {source} without windows; {rule}")
            require_short_recordings(data.moments[source], data.features)


def rank_moments(models: RunModels) -> dict[str, MomentsResult]:
    """Find windows for the queries of every rank entry of moments, and compute their metrics.

    Files with the windows, the queries and a submission are written. Returns: Dict from rank entry to its result.
    """
    from system.ranking.windows import find_windows, fit_score, score_recordings
    from system.runs.open import describe_fit

    recipe, data, results = models.recipe, models.data, {}
    for name, entry in recipe.rank_moments.items():
        moments, edition = data.moments[entry.data], get_moments_edition(entry.edition)
        by_id = {clip.id: clip for clip in data.readable_clips(entry.data)}
        clips = list({moment.clip: by_id[moment.clip] for moment in moments}.values())
        log.info(
            "rank entry %s: finding the windows of %s in %s",
            name,
            counted(len(moments), "query", ","),
            counted(len(clips), "recording"),
        )
        chosen = models.model_ranker(entry.stage, entry.checkpoint)
        score, origin, fitted = chosen.model.moments, chosen.origin, None
        if entry.fit is not None:
            readable = [moment for moment in data.moments[entry.fit] if moment.clip in data.features.keys]
            known = inside_recordings(readable, data.readable_clips(entry.fit))
            series = score_recordings(chosen.model, data.readable_clips(entry.fit), known, data.features)
            score = fit_score(score, series, known, f"rank entry {name}", strict=False)
            fitted = score.trained_numbers()
            origin = describe_fit(origin, entry.fit)
        series = score_recordings(chosen.model, clips, moments, data.features)
        located = find_windows([(score, series)], entry.decoding, entry.windows)
        files = Files.of(models.run.folder, name)
        truth = _write_files(files, located, moments, by_id, edition)
        result: dict[str, object] = {
            "metric": edition.metric,
            **_metrics_of_windows(located, series.grids, truth, edition),
            **_metrics_of_new_texts(located, truth, edition, data.texts(recipe.trained_on)),
            "data": entry.data,
            "queries": len(moments),
            "clips": len(clips),
            "checkpoint": origin,
            "fitted": fitted,
            "edition": edition.name,
            "also_trained_on": data.count_shared_clips(recipe.trained_on, [entry.data]),
            **{kind: str(path) for kind, path in files._asdict().items()},
        }
        results[name] = MomentsResult.model_validate(result)
    return results


def _write_files(
    files: Files,
    located: "Sequence[Located]",
    moments: Sequence[Moment],
    clips: Mapping[str, Clip],
    edition: Edition,
) -> MomentTruth:
    """Write all files of a rank entry of moments. Returns: The queries with their true windows, if known."""
    for path in files:
        path.parent.mkdir(exist_ok=True)
    write_queries(files.truth, moments, clips.values())
    truth = read_moment_truth(files.truth)
    answers = [
        Moments(query.line, query.qid, query.query, query.vid, [list(window) for window in one.windows])
        for query, one in zip(truth.queries.values(), located, strict=True)
    ]
    write_scored_moments(files.windows, answers)
    write_moments(files.answers, answers, edition)
    frames = {qid: FrameScores(one.edges, one.frames) for qid, one in zip(truth.queries, located, strict=True)}
    write_frame_scores(files.frames, frames)
    return truth


def _metrics_of_windows(
    located: "Sequence[Located]", grids: Sequence[Grid], truth: MomentTruth, edition: Edition
) -> dict[str, object]:
    """Return metrics of a rank entry's found windows, and of two baselines: random windows and rounded true windows.

    Rounded windows consist of whole frames. Returns: A dict whose values are all None if the true windows are not
    known. located: Found windows of each query. grids: For each query, the times of its recording's frames. truth:
    Queries and true windows.
    """
    if truth.is_blind:
        return dict.fromkeys(("figures", "bootstrap", "random", "ceiling"))
    windows = {qid: [list(window) for window in one.windows] for qid, one in zip(truth.queries, located, strict=True)}
    summary = summarise_moments(windows, truth, edition)
    edges = {qid: one.edges for qid, one in zip(truth.queries, located, strict=True)}
    return {
        "figures": summary.values,
        "bootstrap": {name: list(interval) for name, interval in summary.bootstraps.items()},
        "random": _metrics_of_random_windows(truth, edition, edges),
        "ceiling": _metrics_of_true_frames(truth, edition, edges, dict(zip(truth.queries, grids, strict=True))),
    }


def _metrics_of_new_texts(
    located: "Sequence[Located]", truth: MomentTruth, edition: Edition, trained: Collection[str]
) -> dict[str, object]:
    """Return the number and the metrics of the queries whose text was not used in training.

    located: Found windows of each query. trained: Texts that were used in training.
    """
    answers = zip(truth.queries.values(), located, strict=True)
    windows = {
        query.qid: [list(window) for window in one.windows] for query, one in answers if query.query not in trained
    }
    known = {} if truth.is_blind else {qid: one for qid, one in truth.windows().items() if qid in windows}
    figures = metric_values(score_moments(windows, known), edition.metrics) if any(known.values()) else None
    return {"new_texts": len(windows), "figures_of_new_texts": figures}


def _metrics_of_random_windows(
    truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the metrics of random windows that begin and end at `edges` of frames, as a baseline for comparison.

    The windows are drawn DRAWS times, and each metric is the mean over these draws. In each draw, every query gets the
    edition's maximum number of windows. edges: Dict from query id to the edges of frames in seconds.
    """
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
    """Return the metrics of the true windows, rounded to whole frames; no model that finds windows can exceed these.

    A rounded window consists of the frames whose centres are in the true window; if there is no such frame, of the
    frame nearest to the window. It may thus begin and end earlier or later than the true window. edges: Dict from query
    id to the edges of frames in seconds. grids: Dict from query id to the times of the frames.
    """
    known = {}
    for qid, windows in truth.windows().items():
        here = edges[qid]
        pairs = [(start, end) for start, end in windows]
        runs = runs_of_true(label_frames(pairs, len(here) - 1, grids[qid]))
        known[qid] = [[float(here[first]), float(here[last + 1])] for first, last in runs]
    return metric_values(score_moments(known, truth.windows()), edition.metrics)
