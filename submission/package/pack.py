"""From runs or score matrices to the archive."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.csv_files import check_csv, csv_of
from submission.formats.moments import read_moments, submitted, windows_by_query
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.formats.truth import matrix_truth, read_annotations
from submission.metrics.blend import models_of
from submission.metrics.summary import summarise_matrix, summarise_moments, with_annotations
from submission.package.about import About, System, read_about
from submission.package.archive import PackedSystem, write_archive
from submission.package.meta import make_meta, missing_facts, system_label
from submission.runs.entry import Entry, open_entry

Submitted = list[Entry] | Path  # one run, the runs of a blend, or the score matrix of another program


def open_systems(names: Sequence[str]) -> list[Submitted]:
    """Open systems to submit.

    RUN[:ENTRY], several of them joined by commas for a blend, or SCORES.npy.
    """
    return [Path(name) if name.endswith(".npy") else [open_entry(part) for part in name.split(",")] for name in names]


def pack(
    systems: Sequence[Submitted], about_path: Path, edition: Edition, out: Path, report: Path | None
) -> list[PackedSystem]:
    """Write the package of the systems, and return its content."""
    about = read_about(about_path, len(systems))
    if problems := list(_problems(systems, about, edition)):
        raise SubmissionError("\n".join(f"{about_path}: {problem}" for problem in problems))
    pack_one = _pack_moments if edition.output == "windows" else _pack_clips
    packed = [
        pack_one(one, about, facts, edition, system_label(about, edition, index), about_path.parent)
        for index, (one, facts) in enumerate(zip(systems, about.systems, strict=True), 1)
    ]
    write_archive(out, packed, edition, report)
    return packed


def _problems(systems: Sequence[Submitted], about: About, edition: Edition) -> Iterator[str]:
    """Yield each reason why the systems cannot form one package."""
    if len(systems) > edition.systems:
        yield f"{len(systems)} systems are submitted; edition {edition.name} accepts {edition.systems}"
    for number, (given, facts) in enumerate(zip(systems, about.systems, strict=True)):
        runs = given if isinstance(given, list) else []
        for run in runs:
            if run.of_moments != (edition.output == "windows"):
                yield f"{run.folder}:{run.name} is of another task than edition {edition.name}"
            elif run.is_of_validation:
                yield f"{run.folder}:{run.name} ranks a validation split; name an entry of the split that you report"
        if not runs and edition.output == "windows":
            yield f"edition {edition.name} finds moments, but a score matrix (.npy) ranks clips; give runs"
        if len(runs) > 1 and not (facts.output and facts.scored):
            yield f"systems.{number}: output or scored is missing, which a blend of {len(runs)} runs needs"
        yield from missing_facts(runs, about, number, edition)


def _pack_clips(
    given: Submitted, about: About, system: System, edition: Edition, label: str, folder: Path
) -> PackedSystem:
    runs = given if isinstance(given, list) else []
    own = given if isinstance(given, Path) else given[0].scores
    scored = _scores_of(runs, folder / system.scored if system.scored else own)
    known = set(scored.query_texts)
    if about.annotations:
        scored = with_annotations(scored, read_annotations(folder / about.annotations, matrix_truth(scored)))
    meta = make_meta(runs, about, system, summarise_matrix(scored, edition).values, edition, label)
    blind = runs[0].blind_scores if runs else None
    output = folder / system.output if system.output else blind or own
    if output.suffix != ".npy":
        data = output.read_bytes()
        queries = {cells[0] for _, cells in check_csv(data, edition).rows}
        truth = matrix_truth(read_scores(blind)) if blind else None
        return PackedSystem(label, data, meta, truth, str(output), queries <= known)
    matrix = _scores_of(runs, output)
    is_known = any(clips is not None for clips in matrix.relevant)
    return PackedSystem(label, csv_of(matrix, edition), meta, matrix_truth(matrix), str(output), is_known)


def _pack_moments(
    given: Submitted, about: About, system: System, edition: Edition, label: str, folder: Path
) -> PackedSystem:
    assert isinstance(given, list)
    runs, first, blind = given, given[0], given[0].blind
    figures = first.figures
    if system.scored:
        scored = windows_by_query(read_moments(folder / system.scored, edition, first.truth))
        figures = summarise_moments(scored, first.truth, edition).values
    path = folder / system.output if system.output else (blind or first).scores
    truth = blind.truth if blind else None if system.output else first.truth
    answers = read_moments(path, edition, truth)
    if truth:
        position = {qid: number for number, qid in enumerate(truth.queries)}
        answers.sort(key=lambda answer: position[answer.qid])
    is_known = {answer.qid for answer in answers} <= first.truth.queries.keys()
    meta = make_meta(runs, about, system, figures, edition, label)
    return PackedSystem(label, submitted(answers, edition), meta, truth, str(path), is_known)


def _scores_of(runs: Sequence[Entry], path: Path) -> ScoreMatrix:
    """Read a score matrix of the given runs, if any."""
    matrix = read_scores(path)
    expected = [model for run in runs for model in models_of(run.matrix.facts)]
    if runs and set(models_of(matrix.facts)) != set(expected):
        raise SubmissionError(f"{path}: scores of other models than the submitted runs")
    return matrix
