"""The rank entries of moments: when each query is heard, in the edition's file, and how well that is known."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from submission.editions import MomentsEdition, get_moments_edition
from submission.formats.moments_jsonl import Moments, write_moments, write_scored_moments
from submission.formats.moments_truth import MomentQuery, MomentTruth, write_moment_truth
from submission.metrics.moments import score_moments
from submission.metrics.moments_summary import metric_values, summarise_moments
from submission.runs.record import MomentsResult
from system.compute.distributed import is_first
from system.moments.windows import labels_of, runs_of
from system.recipe import schema
from system.runs.folder import Run

if TYPE_CHECKING:
    from system.batches.data import Data
    from system.features.build import Features
    from system.models.retrieval import RetrievalModel

DRAWS = 20  # of random windows

log = logging.getLogger(__name__)


def files_of(run: Path, name: str) -> tuple[Path, Path, Path]:
    """Of an entry of a run: the windows with scores, what is handed in, the queries as they are published."""
    scores = run / "scores"
    return scores / f"{name}.windows.jsonl", run / "submission" / f"{name}.jsonl", scores / f"{name}.truth.jsonl"


def require_moments(recipe: schema.Recipe, data: "Data") -> None:
    """KitError for moments that are to be ranked and whose recording cannot be read."""
    for name, entry in recipe.rank_moments.items():
        for moment in data.moments[entry.data]:
            if reason := data.features.broken.get(moment.clip):
                raise KitError(
                    f"rank entry {name}: the recording of {moment.id} cannot be read ({reason}); repair it, or take "
                    f"the moment out of {recipe.data[entry.data].moments}"
                )


def rank_moments(
    recipe: schema.Recipe, run: Run, data: "Data", model: "RetrievalModel", untrained: "RetrievalModel"
) -> dict[str, MomentsResult]:
    """Windows of every entry's queries, with scores and as they are handed in, the queries themselves, and figures.
    untrained: of published weights."""
    from system.runs.checkpoints import load_checkpoint
    from system.runs.moments import fit_score, windows_of_moments
    from system.runs.open import PUBLISHED

    found = {}
    for name, entry in recipe.rank_moments.items():
        moments, edition = data.moments[entry.data], get_moments_edition(entry.edition)
        by_id = {clip.id: clip for clip in data.whole(entry.data)}
        clips = list({moment.clip: by_id[moment.clip] for moment in moments}.values())
        log.info("ranking %s: %s in %s", name, counted(len(moments), "query", ","), counted(len(clips), "recording"))
        chosen, taken = untrained, PUBLISHED
        if entry.stage is not None:
            chosen, taken = model, load_checkpoint(model, run.folder / entry.stage, entry.checkpoint or "last")
        if entry.fit is not None:
            fit_score(chosen, data.whole(entry.fit), data.moments[entry.fit], data.features)
            taken += f", fitted to {entry.fit}"
        windows = windows_of_moments(chosen, clips, moments, data.features, entry.windows, entry.decoding)
        if not is_first():
            continue
        truth = truth_of(moments, by_id, entry.data)
        answers = [
            Moments(line, moment.id, moment.text, truth.queries[moment.id].vid, [list(window) for window in one])
            for line, (moment, one) in enumerate(zip(moments, windows, strict=True), 1)
        ]
        files = files_of(run.folder, name)
        for path in files:
            path.parent.mkdir(exist_ok=True)
        write_scored_moments(files[0], answers, edition)
        write_moments(files[1], answers, edition)
        write_moment_truth(files[2], truth)
        result: dict[str, object] = {
            "metric": edition.metric,
            **_figures(answers, truth, edition, clips, moments, data.features),
            "data": entry.data,
            "queries": len(moments),
            "clips": len(clips),
            "checkpoint": taken,
            "edition": edition.name,
            "also_trained_on": data.shared(recipe.trained_on, [entry.data]),
            **dict(zip(("windows", "answers", "truth"), map(str, files), strict=True)),
        }
        found[name] = MomentsResult.model_validate(result)
    return found


def truth_of(moments: Sequence[Moment], clips: Mapping[str, Clip], name: str) -> MomentTruth:
    """The queries as they are published: a recording is known by its file's name without the suffix."""
    queries = {}
    for line, moment in enumerate(moments, 1):
        clip, windows = clips[moment.clip], moment.windows
        vid = PurePath(clip.file_name).stem
        true = None if windows is None else [list(window) for window in windows]
        queries[moment.id] = MomentQuery(line, moment.id, moment.text, vid, clip.seconds, true)
    return MomentTruth(queries, name, [])


def _figures(
    answers: Sequence[Moments],
    truth: MomentTruth,
    edition: MomentsEdition,
    clips: Sequence[Clip],
    moments: Sequence[Moment],
    features: "Features",
) -> dict[str, object]:
    """None of a blind list."""
    if truth.is_blind:
        return dict.fromkeys(("figures", "bootstrap", "random", "ceiling"))
    summary = summarise_moments({answer.qid: answer.windows for answer in answers}, truth, edition)
    return {
        "figures": summary.values,
        "bootstrap": {name: list(interval) for name, interval in summary.bootstraps.items()},
        "random": _of_random_windows(truth, edition, clips, moments, features),
        "ceiling": _of_true_frames(truth, edition, clips, moments, features),
    }


def _edges(clips: Sequence[Clip], features: "Features") -> dict[str, np.ndarray]:
    """By clip, the edges of its frames."""
    ((expert, grid),) = features.grids.items()
    frames = {clip.id: features.banks[expert].rows_of(features.keys[clip.id]) for clip in clips}
    return {clip.id: grid.edges(frames[clip.id], clip.seconds or np.inf) for clip in clips}


def _of_random_windows(
    truth: MomentTruth,
    edition: MomentsEdition,
    clips: Sequence[Clip],
    moments: Sequence[Moment],
    features: "Features",
) -> dict[str, float]:
    """Means of DRAWS draws of as many windows as count, between two edges of frames."""
    edges, rng, total = _edges(clips, features), np.random.default_rng(0), dict.fromkeys(edition.metrics, 0.0)
    for _ in range(DRAWS):
        drawn = {}
        for moment in moments:
            known = np.unique(edges[moment.clip])
            pairs = [sorted(rng.choice(known, 2, replace=False).tolist()) for _ in range(edition.max_windows)]
            drawn[moment.id] = pairs
        values = metric_values(score_moments(drawn, truth.windows()), edition.metrics)
        total = {metric: value + values[metric] / DRAWS for metric, value in total.items()}
    return total


def _of_true_frames(
    truth: MomentTruth,
    edition: MomentsEdition,
    clips: Sequence[Clip],
    moments: Sequence[Moment],
    features: "Features",
) -> dict[str, float]:
    """Of somebody who knows of every frame whether it is in a moment."""
    (grid,) = features.grids.values()
    edges, known = _edges(clips, features), {}
    for moment in moments:
        here = edges[moment.clip]
        runs = runs_of(labels_of(moment.windows or [], len(here) - 1, grid))
        known[moment.id] = [[float(here[first]), float(here[last + 1])] for first, last in runs]
    return metric_values(score_moments(known, truth.windows()), edition.metrics)
