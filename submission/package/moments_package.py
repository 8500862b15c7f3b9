"""Package of a system of moments.

Pack a system that finds moments: the windows to submit, and meta.yaml with the metrics of its runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from submission.editions import MomentsEdition
from submission.errors import SubmissionError
from submission.formats.moments_jsonl import Moments, read_moments, windows_by_query, write_moments
from submission.formats.moments_truth import format_size
from submission.metrics.moments_summary import summarise_moments
from submission.package.about import About, System
from submission.package.archive import PackedSystem
from submission.package.moments_meta import make_moments_meta
from submission.runs.finished import FinishedMoments


def pack_moments(
    runs: Sequence[FinishedMoments], about: About, system: System, edition: MomentsEdition, label: str, folder: Path
) -> PackedSystem:
    """Pack one system that finds moments: return its file to submit and the content of its meta.yaml.

    The file has no scores, and its queries are in the order of the truth.

    Args:
        runs: The run of the system, or all runs of a blend.
        system: The participant's facts; its files `output` and `scored`, if any, are relative to `folder`.
        label: Label of the system.
    Raises SubmissionError for files with other queries than the truth, and for a blind list, which has no metrics.
    """
    first = runs[0]
    source, figures = first.blind or first, require_figures(first)
    if system.scored:
        scored = read_moments(folder / system.scored, edition, first.truth)
        figures = summarise_moments(windows_by_query(scored), first.truth, edition).values
    meta = make_moments_meta(runs, about, system, figures, edition, label)
    if system.output:
        path, description = folder / system.output, f"submits {system.output}"
        truth = first.blind.truth if first.blind else None
    else:
        path, truth = source.file(f"submission/{source.entry}.jsonl"), source.truth
        ranked = f"{first.entry!r} ({format_size(truth)})"
        description = (
            f"submits {path}"
            if first.blind
            else (
                f"the system submits the windows of the entry {ranked}; to submit windows for the blind list, add "
                "their file to this system as `output` in about.yaml"
            )
        )
    answers = read_moments(path, edition, truth)
    if truth:
        position = {qid: number for number, qid in enumerate(truth.queries)}
        answers.sort(key=lambda answer: position[answer.qid])
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "output.jsonl"
        write_moments(file, answers, edition)
        return PackedSystem(label, description, file.read_bytes(), meta, truth, _entry_with_answers(answers, runs))


def _entry_with_answers(answers: Sequence[Moments], runs: Sequence[FinishedMoments]) -> str:
    """Return the name of a ranked entry that has true windows for all submitted queries; "" if no entry has."""
    answered = {(answer.qid, answer.query) for answer in answers}
    for run in runs:
        for name in (name for name, entry in run.result.moments.items() if entry.figures is not None):
            queries = replace(run, entry=name).truth.queries
            same_ids = {answer.qid for answer in answers} == queries.keys()
            if same_ids or answered <= {(query.qid, query.query) for query in queries.values()}:
                return repr(name)
    return ""


def require_figures(run: FinishedMoments) -> Mapping[str, float]:
    """Return the metrics of an entry that finds moments: a dict from metric to value in [0, 1].

    Raises SubmissionError for an entry that ranks a blind list, which has no metrics.
    """
    if run.ranked.figures is None:
        scored_entries = [name for name, entry in run.result.moments.items() if entry.figures is not None]
        hint = (
            f"use {run.folder}:{scored_entries[0]}"
            if scored_entries
            else "add an entry under `rank` in its recipe whose data have true windows"
        )
        raise SubmissionError(f"{run.folder}: {run.entry!r} ranks a blind list, which has no metrics; {hint}")
    return run.ranked.figures
