"""Find moments by any models.

The moments of a query are the times at which it is heard in its recording. One trained model finds them, or the mean
of several models.

A model of moments scores frames. A model that compares frames with words scores each frame like a clip. A model of
whole clips scores pieces of the recording, which a sliding window cuts out.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_other
from data_tools.manifest import TEST_SPLITS, Clip, Query, read_manifest
from data_tools.moments import Moment, by_name, inside_recordings, read_moments, write_moments
from submission.editions import Edition, format_metric, get_moments_edition
from submission.formats.moments import Moments, read_moment_truth, windows_by_query, write_scored_moments
from submission.metrics.summary import Summary, format_interval, summarise_moments
from system.models.scores import MomentScore
from system.moments.windows import By, Decoding
from system.ranking.base import Ranker
from system.ranking.hub_corrected import HubCorrectedRanker
from system.ranking.model import ModelRanker
from system.ranking.windows import FrameSeries, Located, Sliding, find_windows, fit_score, score_recordings

# Q queries, T frames

REPAIR_RECORDINGS = (
    "repair or fetch these recordings; or make the moments file again without them, unless it is a blind list"
)
WAYS: tuple[By, ...] = get_args(By)  # ways to find windows; the first is the default


@dataclass(frozen=True)
class MomentQueries:
    """Queries with their moments, and a dict from id to each recording that is searched."""

    moments: list[Moment]
    recordings: dict[str, Clip]

    def rows_among(self, clips: Sequence[Clip]) -> list[int]:
        """Return, for every query, the index of its recording in `clips`."""
        row = {clip.id: number for number, clip in enumerate(clips)}
        return [row[moment.clip] for moment in self.moments]

    def only_recordings(self, ids: Container[str]) -> "MomentQueries":
        """Return a copy with only the moments of recordings whose id is in `ids`."""
        recordings = {clip: recording for clip, recording in self.recordings.items() if clip in ids}
        return MomentQueries([moment for moment in self.moments if moment.clip in recordings], recordings)


def read_moment_queries(manifest: Path, path: Path, split: str | None) -> MomentQueries:
    """Read the moments of recordings of a split.

    path: File of the moments. split: Split of the recordings in the manifest; None for all splits.
    Raises KitError if no moment is of the split, if a recording is not in the manifest, or if only some moments have
    known windows.
    """
    listed = read_manifest(manifest)
    clips, moments = {clip.id: clip for clip in listed}, read_moments(path, listed)
    queries = [moment for moment in moments if split in (None, clips[moment.clip].split)]
    if not queries:
        known = ", ".join(sorted({clips[moment.clip].split or "none" for moment in moments}))
        raise KitError(
            f"{path} has no moment of the split {split} of {manifest}; name a split that has moments ({known}), "
            "or make one manifest of all splits with lbar data castella"
        )
    if len({moment.windows is None for moment in queries}) > 1:
        known = ", ".join(sorted({clips[moment.clip].split or "none" for moment in queries}))
        raise KitError(f"{path} has moments with and without windows; choose one split with --split ({known})")
    recordings = {moment.clip: clips[moment.clip] for moment in queries}
    by_name(recordings.values())
    return MomentQueries(queries, recordings)


def read_for_fit(manifest: Path, path: Path, split: str, queries: MomentQueries) -> MomentQueries:
    """Read the moments of the split `split`, to which models are fitted.

    queries: The ranked queries. Raises KitError for a test split of the challenge and for a split whose recordings are
    ranked. Also raises the errors of read_moment_queries.
    """
    if split in TEST_SPLITS:
        raise KitError(f"--fit {split} names a test split, to which models must not be fitted; name another split")
    if any(clip.split == split for clip in queries.recordings.values()):
        raise KitError(
            f"the split --fit {split} is also ranked, so metrics would be too high; rank another split with --split"
        )
    return read_moment_queries(manifest, path, split)


def locate_files(
    models: Sequence[Path],
    open_model: Callable[[Path], Ranker],
    audio: Path,
    moments: Path,
    split: str | None,
    fit: str | None,
    out: Path,
    sliding: Sliding,
    **options: Any,
) -> None:
    """Find the windows of a file of moments, write them, and print their metrics; see `locate`."""
    if out.suffix != ".jsonl":
        raise KitError(f"--out {out}: windows are written as JSON lines; give a name that ends in .jsonl")
    for path in (out, truth_file(out)):
        require_other(path, [moments, audio])
    if not (0 < sliding.seconds < 3600 and 0 < sliding.hop < 3600):
        raise KitError("--piece and --hop must be above 0 and below 3600 seconds")
    if len({model.resolve() for model in models}) < len(models):
        raise KitError("a model is named twice; name each model once")
    queries = read_moment_queries(audio, moments, split)
    known = None if fit is None else read_for_fit(audio, moments, fit, queries)
    located = locate([open_model(one) for one in models], queries, known, sliding, **options)
    summary = write_windows(out, queries, located, get_moments_edition())
    if summary is not None:
        for name, value in summary.values.items():
            print(f"  {name:9} {format_metric(name, value)}  (95 % {format_interval(summary.bootstraps[name], name)})")
    size = f"{counted(len(queries.moments), 'query', ',')} in {counted(len(queries.recordings), 'recording', ',')}"
    print(f"wrote {out}: {size}; next: lbar submit write {out} --out FILE.jsonl")


def locate(
    rankers: Sequence[Ranker],
    queries: MomentQueries,
    fit: MomentQueries | None,
    sliding: Sliding,
    by: By | None = None,
    round_to: float | None = None,
    allow_unknown: bool = False,
    threshold: float | None = None,
    heard: float | None = None,
    mean_edges: bool | None = None,
) -> list[Located]:
    """Find each query's windows in its recording, best first.

    The results of several models are combined by the mean of their probabilities.
    Each query gets as many windows as the edition allows.

    Args:
        fit: Moments with known windows. Every model's scale, offset, and weights of moment starts and ends are fitted
            to these moments. None: use the trained values.
        sliding: Window that slides over recordings, for models of whole clips.
        by: Score that selects windows. `overlap`: the probability that some moment has an IoU of 0.7 or more with the
            window. `thresholds`: windows consist of
            all consecutive frames whose probabilities reach a threshold. None: `thresholds` for a model with published
            scores of frames that is not fitted, else `overlap`.
        allow_unknown: Accept queries without any known word, for which all frames have the same score.
        threshold: For `thresholds`: least probability of a frame in a window. None: the published threshold of a model
            with published scores of frames, else nine thresholds from 0.1 to 0.9.
        heard: Least probability that a query is heard in its recording. If the model's probability is lower, its scores
            are increased by a constant until this value is reached. 0: scores are not increased.
        mean_edges: Whether to replace a window's edges by mean edges: those of all possible moments that have an IoU of
            0.7 or more with the window, weighted by their probabilities.
        round_to: Round edges to multiples of this number of seconds. 0: not rounded.
            None for `heard`, `mean_edges` or `round_to`: as in the first run's first rank entry of moments.
    Raises: KitError for rankers without a trained model, models that need `fit` but do not get it, options that do not
        fit together, and recordings that cannot be read. Unreadable recordings of `fit` are left out with a warning.
    """
    for name, value, limit in (("threshold", threshold, 1), ("heard", heard, 1), ("round-to", round_to, 3600)):
        if value is not None and not 0 <= value < limit:
            raise KitError(f"--{name} {value:g}: must be from 0, below {limit}")
    if threshold == 0:
        raise KitError("--threshold 0: must be above 0; leave it out for the default")
    if threshold is not None and by not in (None, "thresholds"):
        raise KitError(f"--threshold only works with --by thresholds, not with --by {by}; leave one of them out")
    by = "thresholds" if threshold is not None else by
    if len(rankers) > 1 and by not in (None, "overlap"):
        raise KitError(
            f"--by {by} only works without --also, since several models are combined by overlap; leave out --by"
        )
    if fit is not None:
        fit = MomentQueries(inside_recordings(fit.moments, fit.recordings.values()), fit.recordings)
    members = []
    for ranker in rankers:
        if isinstance(ranker, HubCorrectedRanker):  # a correction changes the ranks of clips, not the times in them
            ranker = ranker.inner
        if not isinstance(ranker, ModelRanker):
            raise KitError(
                f"windows need a trained model, not {ranker.origin}; name the folder of a run or an exported model"
            )
        if not allow_unknown:
            ranker.require_known_words([Query(id=one.id, text=one.text, relevant=None) for one in queries.moments])
        score = ranker.windows.score if ranker.windows else MomentScore()
        if fit is not None:
            known, series = score_queries(ranker, fit, sliding, strict=False)
            start = ranker.model.score if isinstance(ranker.model.score, MomentScore) else MomentScore()
            score = fit_score(start, series, known, ranker.name)
        elif not isinstance(ranker.model.score, MomentScore):
            raise KitError(
                f"model {ranker.name} was not trained on windows; fit the model to a split with known windows, "
                "with --fit SPLIT"
            )
        elif score.published_threshold is not None and (len(rankers) > 1 or by == "overlap"):
            raise KitError(
                f"model {ranker.name} was published without a way to find windows by overlap; add --fit SPLIT, which "
                "fits this model to a split with known windows, or rank with only this model and --by thresholds"
            )
        members.append((score, score_queries(ranker, queries, sliding)[1]))
    published = None if fit is not None else members[0][0].published_threshold
    usual = next((one.windows.decoding for one in rankers if isinstance(one, ModelRanker) and one.windows), Decoding())
    decoding = Decoding(
        round_to=usual.round_to if round_to is None else round_to or None,
        windows=get_moments_edition().max_windows,
        threshold=threshold or published,
        heard=usual.heard if heard is None else heard or None,
        mean_edges=usual.mean_edges if mean_edges is None else mean_edges,
    )
    if by == "thresholds" and (heard or mean_edges):
        raise KitError("--heard and --mean-edges do not work with --by thresholds; leave them out")
    return find_windows(members, decoding, by or (WAYS[0] if published is None else "thresholds"))


def score_queries(
    ranker: ModelRanker, queries: MomentQueries, sliding: Sliding, strict: bool = True
) -> tuple[list[Moment], FrameSeries]:
    """Return the moments of readable recordings, and the scores of these recordings' frames.

    sliding: Size and hop of the pieces that a model of whole clips scores; other models do not use it. strict: Raise
    KitError for recordings that cannot be read; if False, leave these recordings out.
    """
    model, recordings = ranker.model, list(queries.recordings.values())
    try:
        features = ranker.source.features(model, recordings)
    except KitError as error:
        raise KitError(f"model {ranker.name}: {error}") from error
    if features.broken and (strict or not features.keys):
        broken_recordings = describe_unreadable(features.broken, queries.recordings.keys())
        raise KitError(f"{broken_recordings} cannot be read; {REPAIR_RECORDINGS}")
    queries = queries.only_recordings(features.keys)
    recordings = list(queries.recordings.values())
    by_pieces = None if isinstance(model.score, MomentScore) or ranker.score.of_series else sliding
    return queries.moments, score_recordings(model, recordings, queries.moments, features, by_pieces)


def describe_unreadable(broken: Mapping[str, str], recordings: Collection[str]) -> str:
    """Return a text with the number of unreadable recordings, and the first of them with the reason.

    broken: Dict from the id of a recording to the reason. recordings: Ids of all recordings.
    """
    clip, reason = next(iter(broken.items()))
    return f"{len(broken):,} of {counted(len(recordings), 'recording', ',')} (first {clip}: {reason})"


def truth_file(path: Path) -> Path:
    """Return the path of the file with the queries' true windows, which is next to the file of found windows."""
    return path.with_suffix(".truth.jsonl")


def write_windows(path: Path, queries: MomentQueries, located: Sequence[Located], edition: Edition) -> Summary | None:
    """Write found windows (.jsonl) and queries (.truth.jsonl); return metrics, or None if the true windows are secret.

    The windows have scores. The file of queries has the published format, with true windows if they are known.
    """
    truth_path = truth_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_moments(truth_path, queries.moments, queries.recordings.values())
    truth = read_moment_truth(truth_path)
    answers = [
        Moments(query.line, query.qid, query.query, query.vid, [list(window) for window in one.windows])
        for query, one in zip(truth.queries.values(), located, strict=True)
    ]
    write_scored_moments(path, answers)
    if truth.is_blind:
        return None
    return summarise_moments(windows_by_query(answers), truth, edition)
