"""Find the times of queries in long recordings.

Rank entries of moments and the verb `locate` score the frames of the recordings, find windows, write them with the
queries in the challenge's formats, and compute the figures.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_other
from data_tools.manifest import TEST_SPLITS, Clip, Query, read_manifest
from data_tools.moments import Moment, inside_recordings, read_moments, write_moments
from data_tools.settings import fault_of, parse
from submission.editions import MAX_WINDOWS, Edition, get_moments_edition
from submission.formats.moments import (
    Answer,
    MomentTruth,
    read_moment_truth,
    windows_by_query,
    write_answers,
    write_scored_answers,
)
from submission.metrics.moments import score_moments
from submission.metrics.summary import metric_values, summarise_moments
from submission.runs.record import FrameScores, MomentsResult, write_frame_scores
from system.batches.items import require_known_windows
from system.models.scores import MomentScore
from system.moments.windows import By, Decoding, Grid, label_frames, runs_of_true
from system.ranking.embedding import require_known_words, require_readable
from system.ranking.entries import RankMoments
from system.ranking.windows import (
    Located,
    QueryFrames,
    Sliding,
    find_windows,
    fit_score,
    require_short_recordings,
    score_recordings,
)
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.rules import decoding_mistakes
from system.retriever import Retriever
from system.runs.folder import Run
from system.runs.open import describe_fit
from system.runs.provenance import count_trained_clips

DRAWS = 20  # draws of random windows
log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """Queries, each with its recording."""

    moments: list[Moment]
    recordings: dict[str, Clip]  # by id


def _asked(moments: list[Moment], clips: Mapping[str, Clip], where: object) -> Asked:
    """Return queries with their recordings. All have windows, or none."""
    if len({moment.windows is None for moment in moments}) > 1:
        raise KitError(f"{where} has moments with and without windows; choose one split, or add the windows")
    return Asked(moments, {moment.clip: clips[moment.clip] for moment in moments})


def _asked_of_source(data: Data, source: str) -> Asked:
    clips = {clip.id: clip for clip in data.clips[source]}
    return _asked(data.moments[source], clips, f"data source {source}")


def require_moments(recipe: schema.Recipe, data: Data) -> None:
    """Refuse moments that stages or rank entries cannot use.

    Windows must be known to train and to fit, and recordings short enough to find windows in.
    """
    searched = list[str]()
    for entry in recipe.rank_moments.values():
        asked = _asked_of_source(data, entry.data)
        require_readable(asked.recordings.values(), data.features.broken, f"data source {entry.data}", every=True)
        searched.append(entry.data)
        if entry.fit:
            data.items(entry.fit, "moment")  # their windows are known, and in the recordings
            searched.append(entry.fit)
    for stage in [stage for stage in recipe.stages.values() if stage.unit == "moment"]:
        for source in stage.sources:
            require_known_windows(data.moments[source])
        if schema.OF_WINDOWS & set(stage.monitor.metrics):
            searched += stage.monitor.data
    for source in searched:
        require_short_recordings(data.moments[source], data.features)


def rank_moments(name: str, entry: RankMoments, data: Data, retriever: Retriever) -> MomentsResult:
    """Find and write the windows of a rank entry's queries."""
    edition, run = get_moments_edition(entry.edition), Run(retriever.folder)
    asked = _asked_of_source(data, entry.data)
    sizes = counted(len(asked.moments), "query", ","), counted(len(asked.recordings), "recording")
    log.info("rank entry %s: finding the windows of %s in %s", name, *sizes)
    score, origin, fitted = retriever.model.moments, retriever.facts.checkpoint, None
    if entry.fit is not None:
        score = _fitted(retriever, _asked_of_source(data, entry.fit), None, f"rank entry {name}")
        fitted, origin = score.trained_numbers(), describe_fit(origin, entry.fit)
    series = _score_asked(retriever, asked)[1]
    located = find_windows([(score, series)], entry.decoding, entry.windows)
    truth, answers = _write_windows(run.file("windows", name), run.file("truth", name), asked, located)
    write_answers(run.file("answers", name), answers)
    frames = {qid: FrameScores(one.edges, one.frames) for qid, one in zip(truth.queries, located, strict=True)}
    write_frame_scores(run.file("frames", name), frames)
    figures: dict[str, object] = dict.fromkeys(("figures", "bootstrap", "random", "ceiling"))
    if not truth.is_blind:
        edges = {qid: one.edges for qid, one in frames.items()}
        summary = summarise_moments(windows_by_query(answers), truth, edition)
        figures = {
            "figures": summary.values,
            "bootstrap": {metric: list(interval) for metric, interval in summary.bootstraps.items()},
            "random": metrics_of_random_windows(truth, edition, edges),
            "ceiling": _metrics_of_true_frames(truth, edition, edges, [one.grid for one in series]),
        }
    sources = retriever.recipe.trained_on
    known = {
        "metric": edition.metric,
        "data": entry.data,
        "queries": len(asked.moments),
        "clips": len(asked.recordings),
        "checkpoint": origin,
        "fitted": fitted,
        "edition": edition.name,
        "also_trained_on": count_trained_clips(run, entry.data, data),
    }
    new = metrics_of_new_texts(answers, truth, edition, {*data.captions(sources), *data.more_texts(sources)})
    return MomentsResult.model_validate(known | figures | new)


def _score_asked(
    retriever: Retriever, asked: Asked, sliding: Sliding | None = None, strict: bool = True
) -> tuple[list[Moment], list[QueryFrames]]:
    """Return the moments of readable recordings, and their frames' scores.

    Args:
        sliding: Pieces of recordings, for a model of clips.
        strict: Raise KitError if one cannot be read.
    """
    recordings = list(asked.recordings.values())
    try:
        features = retriever.frames_of(recordings)
    except KitError as error:
        raise KitError(f"model {retriever.folder}: {error}") from error
    readable = require_readable(recordings, features.broken, f"model {retriever.folder}", every=strict)
    moments = [moment for moment in asked.moments if moment.clip in features.keys]
    by_pieces = None if retriever.recipe.model.score.of_series else sliding
    return moments, score_recordings(retriever.model, readable, moments, features, by_pieces)


def _fitted(retriever: Retriever, known: Asked, sliding: Sliding | None, name: str) -> MomentScore:
    """Fit a model's score to known moments.

    A model of clips gets a score for its cosines. Recordings that cannot be read are left out.
    """
    known = known._replace(moments=inside_recordings(known.moments, known.recordings.values()))
    moments, series = _score_asked(retriever, known, sliding, strict=False)
    own = retriever.model.score
    return fit_score(own if isinstance(own, MomentScore) else MomentScore(), series, moments, name)


def _write_windows(
    path: Path, truth_file: Path, asked: Asked, located: Sequence[Located]
) -> tuple[MomentTruth, list[Answer]]:
    """Write windows with scores, and queries with known windows."""
    write_moments(truth_file, asked.moments, asked.recordings.values())  # makes their folder
    truth = read_moment_truth(truth_file)
    answers = [
        Answer(query.line, query.qid, query.query, query.vid, [list(window) for window in one.windows])
        for query, one in zip(truth.queries.values(), located, strict=True)
    ]
    write_scored_answers(path, answers)
    return truth, answers


def metrics_of_new_texts(
    answers: Sequence[Answer], truth: MomentTruth, edition: Edition, trained: Collection[str]
) -> dict[str, object]:
    """Return metrics and number of queries with new texts.

    Args:
        trained: Texts of the training data.
    """
    windows = windows_by_query([one for one in answers if one.query not in trained])
    known = {} if truth.is_blind else {qid: one for qid, one in truth.windows().items() if qid in windows}
    figures = metric_values(score_moments(windows, known), edition.metrics) if any(known.values()) else None
    return {"new_texts": len(windows), "figures_of_new_texts": figures}


def metrics_of_random_windows(
    truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the metrics of random windows.

    They are means over DRAWS draws of as many windows per query as the edition allows.
    """
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
    truth: MomentTruth, edition: Edition, edges: Mapping[str, np.ndarray], grids: Sequence[Grid]
) -> dict[str, float]:
    """Return the metrics of a perfect model of frames.

    Its windows consist of the frames whose centres are in the true window, or of the nearest frame.
    """
    known = {}
    for (qid, windows), grid in zip(truth.windows().items(), grids, strict=True):
        here = edges[qid]
        labels = label_frames([(start, end) for start, end in windows], len(here) - 1, grid)
        known[qid] = [[float(here[first]), float(here[last + 1])] for first, last in runs_of_true(labels)]
    return metric_values(score_moments(known, truth.windows()), edition.metrics)


def locate_files(
    models: Sequence[Path],
    open_model: Callable[[Path], Retriever],
    audio: Path,
    moments: Path,
    split: str | None,
    fit: str | None,
    out: Path,
    sliding: Sliding,
    decode: Sequence[str] = (),
    allow_unknown: bool = False,
) -> None:
    """Find and write windows by one model or several.

    If the true windows are known, it prints what `lbar submit score` says of the found ones.

    Args:
        decode: Changes of how windows are chosen, such as round_to=1.
        fit: Split with known windows, to which every model's scale, offset and weights of starts and ends are fitted.
    """
    if out.suffix != ".jsonl":
        raise KitError(f"--out {out}: windows are written as JSON lines; give a name that ends in .jsonl")
    truth_file = out.with_suffix(".truth.jsonl")
    for path in (out, truth_file):
        require_other(path, [moments, audio])
    asked = _read_asked(audio, moments, split)
    if fit in TEST_SPLITS or any(clip.split == fit for clip in asked.recordings.values() if fit):
        raise KitError(f"--fit {fit}: a test split, or the ranked one; fit to another, or rank another with --split")
    known = _read_asked(audio, moments, fit) if fit else None
    retrievers = [open_model(one) for one in models]
    for retriever in retrievers if not allow_unknown else ():
        require_known_words(retriever.model, [Query(one.id, one.text, None) for one in asked.moments])
    choice = _choice(retrievers, decode, known is not None)
    scores = [_score_of(retriever, known, sliding, choice.by) for retriever in retrievers]
    members = [(one, _score_asked(it, asked, sliding)[1]) for one, it in zip(scores, retrievers, strict=True)]
    truth, answers = _write_windows(out, truth_file, asked, find_windows(members, choice, choice.by))
    if not truth.is_blind:
        print(*summarise_moments(windows_by_query(answers), truth, get_moments_edition()).lines(), sep="\n")
    size = f"{counted(len(asked.moments), 'query', ',')} in {counted(len(asked.recordings), 'recording', ',')}"
    print(f"wrote {out}: {size}; next: lbar submit write {out} --out FILE.jsonl")


def _read_asked(manifest: Path, path: Path, split: str | None) -> Asked:
    """Read the moments of a split's recordings, or of all."""
    listed = read_manifest(manifest)
    clips, moments = {clip.id: clip for clip in listed}, read_moments(path, listed)
    found = [moment for moment in moments if split in (None, clips[moment.clip].split)]
    if not found:
        known = ", ".join(sorted({clips[moment.clip].split or "none" for moment in moments}))
        raise KitError(f"{path}: no moment of split {split} of {manifest}; splits with moments: {known}")
    return _asked(found, clips, path)


class Choice(Decoding):
    """How windows are chosen, as --decode says it."""

    by: By


def _choice(retrievers: Sequence[Retriever], decode: Sequence[str], is_fitted: bool) -> Choice:
    """Return how windows are chosen.

    The first model decides, with the changes of the command line.
    """
    own = None if is_fitted else next((one.windows for one in retrievers if one.windows), None)
    given = {key: parse(value).value for key, _, value in (change.partition("=") for change in decode)}
    by = given.setdefault("by", own.by if own and len(retrievers) == 1 else "overlap")
    unused = {"heard": None, "mean_edges": False} if by == "thresholds" else {"threshold": None}
    settings = (own.decoding.model_dump() if own else {}) | {"windows": MAX_WINDOWS} | unused | given
    try:
        choice = Choice.model_validate(settings)
    except ValidationError as error:
        raise KitError(f"--decode {' '.join(decode)}: {fault_of(error.errors()[0])}") from None
    if faults := [text for _, text in decoding_mistakes(choice.by, choice)]:
        raise KitError(f"--decode: {faults[0]}")
    if choice.by == "thresholds" and len(retrievers) > 1:
        raise KitError("--decode by=thresholds: several models are combined by overlap; leave it out, or --also")
    return choice


def _score_of(retriever: Retriever, known: Asked | None, sliding: Sliding, by: By) -> MomentScore:
    """Return a model's score, fitted to known moments if any."""
    if known is not None:
        fitted = _fitted(retriever, known, sliding, str(retriever.folder))
        if fitted.scale <= 0:
            raise KitError(f"model {retriever.folder}: no better than chance on the moments of --fit; leave it out")
        return fitted
    if retriever.windows is None:
        raise KitError(f"model {retriever.folder} was not trained on windows; fit it with --fit SPLIT")
    score = retriever.windows.score
    if score.published_threshold is not None and by == "overlap":
        raise KitError(f"model {retriever.folder} has no overlap; add --decode by=thresholds or --fit SPLIT")
    return score
