"""What the verbs read: systems, their truth, and files to submit.

A system is a CSV of an edition, windows of moments (.jsonl), a score matrix (.npy), or a finished run, RUN or
RUN:ENTRY.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_file
from submission.editions import MOMENTS, Edition, get_any_edition
from submission.formats.csv_files import check_csv, editions_of, read_csv
from submission.formats.problems import Problem, format_problems
from submission.formats.score_matrix import Labels, ScoreMatrix, read_scores
from submission.formats.truth import (
    read_annotations,
    read_blind_set,
    read_captions,
    relevant_names,
    require_distinct_names,
)
from submission.metrics.summary import (
    Summary,
    ranks_from_audio,
    summarise_audio_to_text,
    summarise_matrix,
    summarise_moments_file,
    with_truth,
)

# Verbs import pydantic models where they need them, because `score` of a CSV takes half the time without them.
if TYPE_CHECKING:
    from submission.formats.moments import MomentTruth
    from submission.runs.entry import Entry

AnyTruth: TypeAlias = "Labels | MomentTruth | None"
SCORED = "the windows have scores, which a submission has not; `write` removes them"


class Findings(NamedTuple):
    """What was found in a file or a package.

    Attributes:
        notes: Unusual content, which is scored anyway.
        size: What was read.
    """

    problems: list[str]
    notes: list[str]
    size: str


def check_output(data: bytes, edition: Edition, truth: AnyTruth) -> Findings:
    """Check a file to submit, without a truth only by itself."""
    labels, moments = (truth, None) if isinstance(truth, Labels) else (None, truth)
    wrong = labels if edition.output == "windows" else moments
    if wrong is not None:
        raise KitError(f"edition {edition.name} needs another kind of --truth or --queries: see check --help")
    if edition.output != "windows":
        _, rows, problems = check_csv(data, edition, labels)
        return Findings([*format_problems(problems)], [], counted(len(rows), "query"))
    from submission.formats.moments import check_answers

    answers, problems, notes = check_answers(data, moments)
    if answers and answers[0].is_scored:
        notes.append(Problem(None, SCORED))
    return Findings([*format_problems(problems)], [*format_problems(notes)], counted(len(answers), "query"))


def read_truth(truth: Path | None, queries: Path | None, audio: Path | None) -> AnyTruth:
    """Read what a file is compared with.

    Args:
        truth: Captions (.csv), a score matrix (.npy), or true windows (.jsonl).
        queries: Queries of a blind set, as .csv or, for moments, .jsonl.
        audio: Folder of the blind set's audio.
    """
    path = truth or queries
    if truth and queries:
        raise KitError("--truth and --queries: give one of them")
    if audio and not queries:
        raise KitError("--audio: needs --queries, the queries of the blind set")
    if path is None:
        return None
    require_file(path)
    if path.suffix == ".jsonl":
        from submission.formats.moments import read_moment_truth

        return read_moment_truth(path)
    if queries:
        if audio is None:
            raise KitError("--audio: missing; a blind set needs its folder")
        return read_blind_set(queries, audio)
    return read_scores(path) if path.suffix == ".npy" else read_captions(path)


def run_of(name: str) -> "Entry | None":
    """Return the entry of a finished run, RUN or RUN:ENTRY; None for a file."""
    if Path(name).is_file() or not (":" in name or Path(name).is_dir()):
        return None
    from submission.runs.entry import open_entry

    return open_entry(name)


def scores_file(name: str) -> Path:
    """Return the scores or windows that a name stands for."""
    run = run_of(name)
    return run.scores if run else Path(name)


def possible_editions(name: str) -> list[Edition]:
    """Return the editions that a system may be of."""
    path = scores_file(name)
    if path.suffix == ".jsonl":
        return list(MOMENTS.values())
    if path.suffix == ".npy":
        edition = read_scores(path).facts.get("edition")
        return [get_any_edition(edition)] if edition else []
    require_file(path)
    return editions_of(path)


def common_edition(option: str | None, names: Iterable[str]) -> Edition:
    """Return the edition of --edition, or the latest that fits all systems."""
    if option:
        return get_any_edition(option)
    possible = [possible_editions(name) for name in names]
    shared = [edition for edition in possible[0] if all(edition in others for others in possible)] if possible else []
    if not shared:
        raise KitError("the files name no edition, or none in common; add --edition YEAR")
    return shared[-1]


def read_summaries(
    names: Sequence[str], option: str | None, truth: Path | None, annotations: Path | None, from_audio: bool
) -> list[Summary]:
    """Return the metrics of systems, all of one edition.

    Args:
        option: Value of --edition.
        truth: Captions or true windows; runs and score matrices have their own, which it replaces.
        annotations: Score only these queries, with several relevant clips each.
        from_audio: Rank captions for clips.
    """
    edition = common_edition(option, names)
    known = read_truth(truth, None, None)
    if edition.output == "windows":
        if annotations or from_audio:
            raise KitError(f"{names[0]}: windows have neither --annotations nor --direction; leave them out")
        return [_summarise_windows(name, edition, known) for name in names]
    matrices = [_read_matrix(name, edition, known) for name in names]
    if annotations:
        matrices = [with_truth(matrix, read_annotations(annotations, matrix)) for matrix in matrices]
        edition = get_any_edition("2025")
    if from_audio:
        return [summarise_audio_to_text(ranks_from_audio(matrix)) for matrix in matrices]
    return [summarise_matrix(matrix, edition) for matrix in matrices]


def _summarise_windows(name: str, edition: Edition, known: AnyTruth) -> Summary:
    run = run_of(name)
    path, truth = (run.scores, known or run.truth) if run else (Path(name), known)
    if path.suffix != ".jsonl" or truth is None or isinstance(truth, Labels):
        raise KitError(f"{name}: no windows, or no true ones; give .jsonl and --truth FILE.jsonl")
    return summarise_moments_file(path, truth, edition)


def _read_matrix(name: str, edition: Edition, known: AnyTruth) -> ScoreMatrix:
    """Read scores, with the relevant clips by the truth if there is one."""
    path = scores_file(name)
    if path.suffix == ".npy" and known is None:
        return read_scores(path)
    if not isinstance(known, Labels):
        raise KitError(f"{name}: captions are needed to score clips; add --truth FILE.csv")
    if path.suffix != ".npy":
        return read_csv(path, edition, known)
    matrix = read_scores(path)
    if absent := set(matrix.query_texts).difference(known.query_texts):
        raise KitError(f"{name}: --truth does not know the query {min(absent)!r}; name its captions")
    require_distinct_names(matrix)
    return with_truth(matrix, relevant_names(known))
