"""From runs or score matrices to the archive."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import KitError
from submission.editions import Edition
from submission.formats.csv_files import check_csv, csv_of
from submission.formats.moments import read_answers, submitted
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.formats.truth import read_annotations
from submission.inputs import AnyTruth
from submission.metrics.blend import models_of
from submission.metrics.summary import summarise_matrix, summarise_moments_file, with_truth
from submission.package.about import About, System, read_about
from submission.package.archive import PackedSystem, write_archive
from submission.package.meta import make_meta, missing_facts, system_label
from submission.runs.entry import Entry, open_entry


class Submitted(NamedTuple):
    """What is named on the command line.

    Attributes:
        runs: One run, or the runs of a blend; none for the score matrix of another program.
        scores: Scores or windows of the first run, or that matrix.
    """

    runs: list[Entry]
    scores: Path


def pack(
    names: Sequence[str], about_path: Path, edition: Edition, out: Path, report: Path | None
) -> list[PackedSystem]:
    """Write the package of systems, and return its content.

    Args:
        names: RUN[:ENTRY], several of them joined by commas for a blend, or SCORES.npy.
    """
    systems = []
    for name in names:
        runs = [] if name.endswith(".npy") else [open_entry(part) for part in name.split(",")]
        systems.append(Submitted(runs, runs[0].scores if runs else Path(name)))
    about = read_about(about_path, len(systems))
    if problems := dict.fromkeys(_problems(systems, about, edition)):  # a source may be missing in several systems
        raise KitError("\n".join(f"{about_path}: {problem}" for problem in problems))
    packed = [
        _pack_one(one, about, facts, edition, system_label(about, edition, number), about_path.parent)
        for number, (one, facts) in enumerate(zip(systems, about.systems, strict=True), 1)
    ]
    write_archive(out, packed, edition, report)
    return packed


def _problems(systems: Sequence[Submitted], about: About, edition: Edition) -> Iterator[str]:
    """Yield each reason why the systems cannot form one package."""
    for number, ((runs, _), facts) in enumerate(zip(systems, about.systems, strict=True)):
        for run in runs:
            if run.of_moments != (edition.output == "windows"):
                yield f"{run.folder}:{run.name} is of another task than edition {edition.name}"
            elif run.other_models:
                yield f"{run.folder}:{run.name} averages {', '.join(run.other_models)}; pack RUN,RUN and their blend"
            elif run.is_of_validation:
                yield f"{run.folder}:{run.name} ranks a validation split; name an entry of the split that you report"
        if not runs and edition.output == "windows":
            yield f"edition {edition.name} finds moments, but a score matrix (.npy) ranks clips; give runs"
        if len(runs) > 1 and not (facts.output and facts.scored):
            yield f"systems.{number}: output or scored is missing, which a blend of {len(runs)} runs needs"
        yield from missing_facts(runs, about, number, edition)


def _pack_one(
    given: Submitted, about: About, facts: System, edition: Edition, label: str, folder: Path
) -> PackedSystem:
    """Return a system in a package.

    Args:
        folder: That of about.yaml, to which its paths are relative.
    """
    runs, own = given
    blind = runs[0].blind if runs else None
    scored = folder / facts.scored if facts.scored else own
    output = folder / facts.output if facts.output else blind.scores if blind else own
    truth: AnyTruth
    if edition.output == "windows":
        known = runs[0].truth
        figures = summarise_moments_file(scored, known, edition).values
        truth = blind.truth if blind else None if facts.output else known
        answers = read_answers(output, truth)
        if truth:  # in the order of the organisers' list
            position = {qid: number for number, qid in enumerate(truth.queries)}
            answers.sort(key=lambda answer: position[answer.qid])
        data, is_known = submitted(answers), {one.qid for one in answers} <= known.queries.keys()
    else:
        matrix = _scores_of(runs, scored)
        ranked = _scores_of(runs, output) if output.suffix == ".npy" else None
        data = csv_of(ranked, edition) if ranked else output.read_bytes()
        truth = ranked or (blind.matrix if blind else None)
        is_known = {cells[0] for _, cells in check_csv(data, edition).rows} <= set(matrix.query_texts)
        if about.annotations:
            matrix = with_truth(matrix, read_annotations(folder / about.annotations, matrix))
        figures = summarise_matrix(matrix, edition).values
    meta = make_meta(runs, about, facts, figures, edition, label)
    return PackedSystem(label, data, meta, truth, str(output), is_known)


def _scores_of(runs: Sequence[Entry], path: Path) -> ScoreMatrix:
    """Read a score matrix of the given runs, if any."""
    matrix = read_scores(path)
    expected = [model for run in runs for model in models_of(run.matrix.facts)]
    if runs and set(models_of(matrix.facts)) != set(expected):
        raise KitError(f"{path}: scores of other models than the submitted runs")
    return matrix
