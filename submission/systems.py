"""Systems named on the command line, and their truth.

A system is a CSV of an edition, windows of moments (.jsonl), a score matrix (.npy), or a finished run, RUN or
RUN:ENTRY.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_file
from submission.editions import MOMENTS, Edition, get_any_edition
from submission.errors import SubmissionError
from submission.formats.csv_files import check_csv, editions_of, read_matrix_csv
from submission.formats.moments import (
    MomentTruth,
    check_moment_truth,
    check_moments,
    is_scored,
    read_moment_truth,
)
from submission.formats.problems import Problem, format_problems
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.formats.truth import Truth, matrix_truth, read_annotations, read_blind_set, read_captions
from submission.metrics.summary import (
    Summary,
    ranks_from_audio,
    ranks_in_csv,
    ranks_in_matrix,
    summarise,
    summarise_audio_to_text,
    summarise_moments_file,
    with_annotations,
)
from submission.runs.entry import is_run, open_entry

AnyTruth = Truth | MomentTruth


def read_truth(truth: Path | None, queries: Path | None, audio: Path | None) -> AnyTruth | None:
    """Read what a file is compared with.

    Args:
        truth: Captions (.csv), a score matrix (.npy), or true windows (.jsonl).
        queries: Queries of a blind set, as .csv or, for moments, .jsonl.
        audio: Folder of the blind set's audio.
    """
    path = truth or queries
    if truth and queries:
        raise SubmissionError("--truth and --queries: give one of them")
    if path is None:
        return None
    require_file(path)
    if path.suffix == ".jsonl":
        return read_moment_truth(path)
    if queries:
        if audio is None:
            raise SubmissionError("--audio: missing; a blind set needs its folder")
        return read_blind_set(queries, audio)
    return matrix_truth(read_scores(path)) if path.suffix == ".npy" else read_captions(path)


def scores_file(name: str) -> Path:
    """Return the file of a score matrix, or of windows.

    That of a run's entry for RUN.
    """
    return open_entry(name).scores if is_run(name) else Path(name)


def possible_editions(name: str) -> list[Edition]:
    """Return the editions that a system may be of."""
    path = scores_file(name)
    if path.suffix == ".jsonl":
        return list(MOMENTS.values())
    if path.suffix == ".npy":
        return [get_any_edition(edition) for edition in edition_names(read_scores(path))]
    require_file(path)
    return editions_of(path)


def edition_names(matrix: ScoreMatrix) -> set[str]:
    """Return the edition that a score matrix states."""
    if isinstance(edition := matrix.facts.get("edition"), str):
        return {edition}
    of = matrix.facts.get("of")
    parts = [part for part in of.values() if isinstance(part, dict)] if isinstance(of, dict) else []
    found = {part.get("edition") for part in parts}
    return {edition for edition in found if isinstance(edition, str)} if len(found) == 1 else set()


def common_edition(option: str | None, names: Iterable[str]) -> Edition:
    """Return the edition of --edition, or that of all systems.

    Of several possible ones, it is the latest.
    """
    if option:
        return get_any_edition(option)
    possible = [possible_editions(name) for name in names]
    shared = [edition for edition in possible[0] if all(edition in others for others in possible)] if possible else []
    if not shared:
        what = "the files have no edition in common" if len(possible) > 1 else "the edition of this file is unknown"
        raise SubmissionError(f"{what}; add --edition YEAR")
    return shared[-1]


def check_file(data: bytes, edition: Edition, known: AnyTruth | None) -> tuple[list[str], list[Problem], str]:
    """Return problems, notes, and a verdict without problems."""
    require_kind(edition, known)
    if edition.output == "windows" and b'"relevant_windows"' in data.partition(b"\n")[0]:
        queries, problems, notes = check_moment_truth(data)
        return list(format_problems(problems)), notes, f"ok: true windows of {counted(len(queries), 'query')}"
    if edition.output == "windows":
        answers, problems, notes = check_moments(data, edition, known if isinstance(known, MomentTruth) else None)
        if is_scored(answers):
            notes = [*notes, Problem(None, "the windows have scores; `write` removes them, for the file to submit")]
        windows = sum(len(answer.windows) for answer in answers)
        verdict = f"ok: {counted(len(answers), 'query')}, {counted(windows, 'window')}"
        return list(format_problems(problems)), notes, verdict
    found = check_csv(data, edition, known if isinstance(known, Truth) else None)
    unit = "score" if edition.output == "matrix" else "file name"
    verdict = f"ok: {counted(len(found.rows), 'query')} x {counted(len(found.header) - 1, unit)}"
    return list(format_problems(found.problems)), [], verdict


def require_kind(edition: Edition, known: AnyTruth | None) -> None:
    """Raise SubmissionError if the truth is of clips and the edition of windows, or the other way round."""
    if known is not None and isinstance(known, MomentTruth) != (edition.output == "windows"):
        raise SubmissionError(f"edition {edition.name} needs another kind of --truth or --queries: see check --help")


def read_summaries(
    names: Sequence[str],
    option: str | None = None,
    truth: Path | None = None,
    annotations: Path | None = None,
    from_audio: bool = False,
) -> list[Summary]:
    """Return the metrics of systems, all of one edition.

    Args:
        option: Value of --edition.
        truth: For CSVs and windows: captions or true windows.
        annotations: Score only these queries, with several relevant clips each.
        from_audio: Rank captions for clips.
    """
    edition = common_edition(option, names)
    if truth and all(is_run(name) for name in names):
        raise SubmissionError(f"{names[0]}: has its truth already; leave out --truth")
    if edition.output == "windows" and (annotations or from_audio):
        raise SubmissionError(f"{names[0]}: windows have neither --annotations nor --direction; leave them out")
    if edition.output == "windows":
        return [_summarise_windows(name, edition, truth) for name in names]
    return [_summarise_clips(name, edition, truth, annotations, from_audio) for name in names]


def _summarise_windows(name: str, edition: Edition, truth: Path | None) -> Summary:
    path = scores_file(name)
    known = open_entry(name).truth if is_run(name) else read_truth(truth, None, None)
    if path.suffix != ".jsonl" or not isinstance(known, MomentTruth):
        raise SubmissionError(f"{name}: no windows, or no true ones; give .jsonl and --truth FILE.jsonl")
    return summarise_moments_file(path, known, edition)


def _with_truth(name: str, matrix: ScoreMatrix, known: AnyTruth | None) -> ScoreMatrix:
    """Return a matrix of queries from a file, with their relevant clips by the truth."""
    if None not in matrix.relevant:
        raise SubmissionError(f"{name}: has its truth already; leave out --truth")
    if not isinstance(known, Truth) or (absent := set(matrix.query_texts) - known.relevant.keys()):
        raise SubmissionError(f"{name}: --truth does not know the query {min(absent, default='')!r}; name its captions")
    id_of = dict(zip(matrix.file_names, matrix.clip_ids, strict=True))
    names = [known.relevant[text] or () for text in matrix.query_texts]
    return replace(matrix, relevant=[[id_of[one] for one in sorted(some) if one in id_of] for some in names])


def _summarise_clips(
    name: str, edition: Edition, truth: Path | None, annotations: Path | None, from_audio: bool
) -> Summary:
    path = scores_file(name)
    matrix = read_scores(path) if path.suffix == ".npy" else None
    if matrix is not None and truth and not is_run(name):
        matrix = _with_truth(name, matrix, read_truth(truth, None, None))
    figures = get_any_edition("2025") if annotations else edition
    if matrix is None:
        known = read_truth(truth, None, None)
        if path.suffix == ".jsonl" or not isinstance(known, Truth):
            raise SubmissionError(f"{name}: captions are needed for a CSV; add --truth FILE.csv")
        several = read_annotations(annotations, known) if annotations else None
        if edition.output == "ranked":
            if from_audio:
                raise SubmissionError(f"{name}: ranks only clips; give its score matrix to rank captions")
            return summarise(ranks_in_csv(path, known, edition, several), figures.metrics, figures.metric)
        matrix = read_matrix_csv(path, edition, known)
    if annotations:
        matrix = with_annotations(matrix, read_annotations(annotations, matrix_truth(matrix)))
    if from_audio:
        return summarise_audio_to_text(ranks_from_audio(matrix))
    return summarise(ranks_in_matrix(matrix), figures.metrics, figures.metric)
