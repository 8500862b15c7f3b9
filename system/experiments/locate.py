"""Find the times of queries in long recordings, with any models, and write the challenge's file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_other
from data_tools.manifest import TEST_SPLITS, Query, read_manifest
from data_tools.moments import by_name, inside_recordings, read_moments
from data_tools.settings import fault_of, parse
from submission.editions import MAX_WINDOWS, format_metric, get_moments_edition
from submission.formats.moments import (
    windows_by_query,
)
from submission.metrics.summary import format_interval, summarise_moments
from system.experiments.moments import Asked, score_asked, write_windows
from system.models.scores import MomentScore
from system.moments.windows import By, Decoding
from system.ranking.embedding import require_known_words
from system.ranking.windows import FrameSeries, Sliding, find_windows, fit_score
from system.recipe.rules import decoding_mistakes
from system.retriever import Retriever


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
    """Find the windows of a file of moments by one model or several, write them, and print their metrics.

    Args:
        decode: Changes of how windows are chosen, such as round_to=1.
        fit: Split with known windows, to which every model's scale, offset and weights of starts and ends are fitted.
    """
    if out.suffix != ".jsonl":
        raise KitError(f"--out {out}: windows are written as JSON lines; give a name that ends in .jsonl")
    truth_file = out.with_suffix(".truth.jsonl")
    for path in (out, truth_file):
        require_other(path, [moments, audio])
    if len({model.resolve() for model in models}) < len(models):
        raise KitError("a model is named twice; name each model once")
    asked = read_asked(audio, moments, split)
    known = None if fit is None else _read_for_fit(audio, moments, fit, asked)
    retrievers = [open_model(one) for one in models]
    for retriever in retrievers if not allow_unknown else ():
        require_known_words(retriever.model, [Query(one.id, one.text, None) for one in asked.moments])
    by, decoding = _decoding(retrievers, decode, known is not None)
    members = [_member(retriever, asked, known, sliding, by, len(models) == 1) for retriever in retrievers]
    truth, answers = write_windows(out, truth_file, asked, find_windows(members, decoding, by))
    if not truth.is_blind:
        summary = summarise_moments(windows_by_query(answers), truth, get_moments_edition())
        for name, value in summary.values.items():
            interval = format_interval(summary.bootstraps[name], name)
            print(f"  {name:9} {format_metric(name, value)}  (95 % {interval}, bootstrap over recordings)")
    size = f"{counted(len(asked.moments), 'query', ',')} in {counted(len(asked.recordings), 'recording', ',')}"
    print(f"wrote {out}: {size}; next: lbar submit write {out} --out FILE.jsonl")


def read_asked(manifest: Path, path: Path, split: str | None) -> Asked:
    """Read the moments of recordings of a split; None: of all. They have windows all, or none has."""
    listed = read_manifest(manifest)
    clips, moments = {clip.id: clip for clip in listed}, read_moments(path, listed)
    found = [moment for moment in moments if split in (None, clips[moment.clip].split)]
    known = ", ".join(sorted({clips[moment.clip].split or "none" for moment in found or moments}))
    if not found:
        raise KitError(
            f"{path} has no moment of the split {split} of {manifest}; name a split that has moments ({known}), "
            "or make one manifest of all splits with lbar data castella"
        )
    if len({moment.windows is None for moment in found}) > 1:
        raise KitError(f"{path} has moments with and without windows; choose one split with --split ({known})")
    recordings = {moment.clip: clips[moment.clip] for moment in found}
    by_name(recordings.values())
    return Asked(found, recordings)


def _read_for_fit(manifest: Path, path: Path, split: str, asked: Asked) -> Asked:
    """Read the moments to which models are fitted, with windows inside their recordings."""
    if split in TEST_SPLITS:
        raise KitError(f"--fit {split} names a test split, to which models must not be fitted; name another split")
    if any(clip.split == split for clip in asked.recordings.values()):
        raise KitError(
            f"the split --fit {split} is also ranked, so metrics would be too high; rank another split with --split"
        )
    known = read_asked(manifest, path, split)
    return known._replace(moments=inside_recordings(known.moments, known.recordings.values()))


def _decoding(retrievers: Sequence[Retriever], decode: Sequence[str], is_fitted: bool) -> tuple[By, Decoding]:
    """Return how windows are chosen: as the first model does it, with changes."""
    own = None if is_fitted else next((one.windows for one in retrievers if one.windows), None)
    given = {key: parse(value).value for key, _, value in (change.partition("=") for change in decode)}
    by = given.pop("by", own.by if own and len(retrievers) == 1 else "overlap")
    unused = {"heard": None, "mean_edges": False} if by == "thresholds" else {"threshold": None}
    settings = (own.decoding.model_dump() if own else {}) | {"windows": MAX_WINDOWS} | unused | given
    try:
        decoding = Decoding.model_validate(settings)
    except ValidationError as error:
        raise KitError(f"--decode {' '.join(decode)}: {fault_of(error.errors()[0])}") from None
    if by not in get_args(By):
        raise KitError(f"--decode by={by}: must be one of {', '.join(get_args(By))}")
    if faults := [text for _, text in decoding_mistakes((), by, decoding)]:
        raise KitError(f"--decode: {faults[0]}")
    if by == "thresholds" and len(retrievers) > 1:
        raise KitError("--decode by=thresholds: several models are combined by overlap; leave it out, or --also")
    return by, decoding


def _member(
    retriever: Retriever, asked: Asked, known: Asked | None, sliding: Sliding, by: By, is_alone: bool
) -> tuple[MomentScore, FrameSeries]:
    """Return the score of moments of a model, fitted to known moments if there are any, and its scores of frames."""
    if known is not None:
        moments, series = score_asked(retriever, known, sliding, strict=False)
        own = retriever.model.score
        score = fit_score(
            own if isinstance(own, MomentScore) else MomentScore(), series, moments, str(retriever.folder)
        )
    elif retriever.windows is None:
        raise KitError(f"model {retriever.folder} was not trained on windows; fit it with --fit SPLIT")
    else:
        score = retriever.windows.score
        if score.published_threshold is not None and not (is_alone and by == "thresholds"):
            raise KitError(
                f"model {retriever.folder} was published without a way to find windows by overlap; add --fit SPLIT, or "
                "use it alone with --decode by=thresholds"
            )
    return score, score_asked(retriever, asked, sliding)[1]
