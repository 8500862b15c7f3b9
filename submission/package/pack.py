"""Make the archive to submit from finished runs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from data_tools.cli import counted
from submission.editions import AnyEdition, Edition, MomentsEdition
from submission.errors import SubmissionError
from submission.formats.csv_table import Row, parse_rows
from submission.formats.edition_csv import write_csv
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.formats.truth import matrix_truth, read_annotations
from submission.metrics.blend import contributing_models, hub_corrections
from submission.metrics.scoring import with_annotations
from submission.package.about import About, System, read_about
from submission.package.archive import PackedSystem, write_archive
from submission.package.meta import (
    are_counted,
    describe,
    label_problems,
    make_meta,
    missing_addresses,
    missing_descriptions,
    system_label,
)
from submission.package.moments_package import pack_moments
from submission.runs.finished import Finished, FinishedMoments, FinishedRun


class Package(NamedTuple):
    """A written archive (package). unready: Reasons why it must not be submitted yet; empty if it is ready."""

    path: Path
    systems: list[PackedSystem]
    unready: list[str]


class Submitted(NamedTuple):
    """A system to submit: one run, the runs of a blend, or the scores of another program.

    Attributes:
        runs: The run or the blended runs; empty for the scores of another program.
        matrix: Score matrix of another program, which is submitted and scored unless about.yaml names other files.
    """

    runs: Sequence[Finished]
    matrix: Path | None = None

    @property
    def ranks_blind(self) -> bool:
        """Whether the runs of this system have also ranked the blind set with the same models."""
        return self.matrix is None and self.runs[0].ranks_blind

    def missing_facts(self) -> list[str]:
        """Return the keys that about.yaml must have for this system: some of output, scored and parameters."""
        of_clips = not any(isinstance(run, FinishedMoments) for run in self.runs)
        files = [] if self.ranks_blind else ["output"]
        if len(self.runs) > 1:
            files = ["output", "scored"]
        return [*files, *(["parameters"] if of_clips and not are_counted(self.runs) else [])]

    def with_files(self, system: System) -> System:
        """Return a system of about.yaml with the paths `scored` and `output` of another program's scores."""
        if self.matrix is None:
            return system
        path = str(self.matrix.resolve())
        return system.model_copy(update={key: getattr(system, key) or path for key in ("scored", "output")})


def pack(
    submitted: Sequence[Submitted],
    about_path: Path,
    edition: AnyEdition,
    out: Path,
    report: Path | None = None,
    style: str = "label",
) -> Package:
    """Write the package (.zip) of the submitted systems; return its path, its content, and reasons why it is not ready.

    Args:
        about_path: The participant's about.yaml; paths in it are relative to its folder.
        out: Path of the package, NAME.zip. It is called NAME.NOT_READY.zip if there is no report, or if a system that
            finds moments submits queries whose true windows are known.
        report: Technical report, a PDF file.
        style: A key of the edition's `names`.
    Raises SubmissionError with all missing or wrong facts, one per line.
    """
    about = read_about(about_path, len(submitted))
    about = about.model_copy(
        update={"systems": [one.with_files(facts) for one, facts in zip(submitted, about.systems, strict=True)]}
    )
    systems = [one.runs for one in submitted]
    if problems := list(_package_problems(systems, about, edition, style)):
        raise SubmissionError("\n".join(f"{about_path}: {problem}" for problem in problems))
    pack_one: Callable[..., PackedSystem] = pack_moments if isinstance(edition, MomentsEdition) else _pack_clips
    packed = [
        pack_one(runs, about, system, edition, system_label(about, edition, index), about_path.parent)
        for index, (runs, system) in enumerate(zip(systems, about.systems, strict=True), start=1)
    ]
    reasons = [] if report else ["the package has no technical report; add --report REPORT.pdf"]
    if isinstance(edition, MomentsEdition):
        reasons += [known_answers_message(system) for system in packed if system.answered_by]
    unready = out.with_suffix(".NOT_READY.zip")
    path = unready if reasons else out
    write_archive(path, packed, edition, style, report.read_bytes() if report else None)
    if not reasons:
        unready.unlink(missing_ok=True)
    return Package(path, packed, reasons)


def known_answers_message(system: PackedSystem) -> str:
    """Return the message for a system that does not submit the blind set, but queries whose answers are known."""
    return (
        f"{system.label} submits queries whose answers are known ({system.answered_by}), not the blind set; rank the "
        "blind set in the run, or add your results for the blind set as `output` in about.yaml"
    )


def _package_problems(
    systems: Sequence[Sequence[Finished]], about: About, edition: AnyEdition, style: str
) -> Iterator[str]:
    """Yield a message for each reason why the systems cannot form one package, such as too many systems."""
    if len(systems) > edition.systems:
        yield (
            f"{len(systems)} systems are submitted, but edition {edition.name} accepts at most {edition.systems}; "
            "leave some out"
        )
    if style not in edition.names:
        yield f"edition {edition.name} has no naming style {style!r}; use {', '.join(edition.names)}"
    of_moments = isinstance(edition, MomentsEdition)
    for run in (run for runs in systems for run in runs):
        if run.is_of_validation:
            yield f"{run.folder}:{run.entry} ranks a validation split; name an entry of the split that you report"
        if isinstance(run, FinishedMoments) != of_moments:
            tasks = ("finds moments", "ranks clips") if of_moments else ("ranks clips", "finds moments")
            yield (
                f"edition {edition.name} {tasks[0]}, but {run.folder}:{run.entry} {tasks[1]}; give an entry that "
                f"{tasks[0]}"
            )
    yield from label_problems(about)
    for number, (runs, system) in enumerate(zip(systems, about.systems, strict=True)):
        if of_moments and not runs:
            yield f"edition {edition.name} finds moments, but a score matrix (.npy) ranks clips; give runs"
        if not of_moments and not system.parameters and not are_counted(runs):
            yield (
                f"systems.{number}.parameters: is missing, and the runs do not have the numbers of parameters of all "
                "models; write the total number"
            )
        if len(system.abbreviation) > edition.abbreviation:
            yield f"systems.{number}.abbreviation: has more than {edition.abbreviation} characters; shorten it"
        for key, purpose in (("output", "to submit"), ("scored", "for its results")):
            if len(runs) > 1 and getattr(system, key) is None:
                file = "file of windows" if of_moments else "score matrix"
                yield (
                    f"systems.{number}.{key}: is missing; a blend of {len(runs)} runs needs a {file} {purpose}; add it"
                )
        yield from _description_problems(f"systems.{number}.description", runs, system)
    for name in sorted({name for runs in systems for name in missing_addresses(runs, about.sources)}):
        yield f"sources.{name}.url: is missing; give the address of {name}, or null if it is not published"


def _description_problems(at: str, runs: Sequence[Finished], system: System) -> Iterator[str]:
    """Yield a message for each unknown key of a system's description, and for each required value that is missing.

    at: Key of the description in about.yaml. A value may be in the description or in the runs.
    """
    known = describe(runs)
    for key in [key for key in system.description if key not in known]:
        yield f"{at}.{key}: is an unknown key; known keys: {', '.join(known) or 'none for moments'}"
    for key in missing_descriptions(runs):
        if key not in system.description:
            yield f"{at}.{key}: is missing, and is not in the runs; write a value, for example none"


def _pack_clips(
    runs: Sequence[FinishedRun], about: About, system: System, edition: Edition, label: str, folder: Path
) -> PackedSystem:
    """Pack one system that ranks clips: return its file to submit and the content of its meta.yaml."""
    scored = _read_scores_of(runs, folder / system.scored) if system.scored else runs[0].matrix
    entry, known = (repr(runs[0].entry), runs[0].matrix) if runs else (str(system.scored), scored)
    if about.annotations:
        scored = with_annotations(scored, read_annotations(folder / about.annotations, matrix_truth(scored)))
    meta = make_meta(runs, about, system, scored, edition, label)
    if system.output and not system.output.endswith(".npy"):
        data = (folder / system.output).read_bytes()
        answered_by = entry if _answers_known(data, known) else ""
        return PackedSystem(label, f"submits {system.output}", data, meta, answered_by=answered_by)
    output = folder / system.output if system.output else runs[0].blind_scores
    description = f"submits {system.output or output}" if output else _describe_entry(runs[0])
    matrix = _read_scores_of(runs, output) if output else runs[0].matrix
    with TemporaryDirectory() as temporary:
        csv = Path(temporary) / "output.csv"
        write_csv(matrix, csv, edition)
        has_answers = any(clips is not None for clips in matrix.relevant)
        answered_by = (repr(system.output) if system.output else entry) if has_answers else ""
        return PackedSystem(label, description, csv.read_bytes(), meta, matrix_truth(matrix), answered_by)


def _answers_known(data: bytes, matrix: ScoreMatrix) -> bool:
    """Return whether the relevant clips of all queries in a CSV (`data`) are known in a score matrix."""
    known = {text for text, clips in zip(matrix.query_texts, matrix.relevant, strict=True) if clips is not None}
    return all(known.issuperset(row.cells[:1]) for row in parse_rows(data) if isinstance(row, Row) and row.line > 1)


def _describe_entry(run: FinishedRun) -> str:
    """Return the message that a system submits a ranked entry, and how to submit the blind set instead."""
    return (
        f"the system submits the ranked entry {run.entry!r} ({counted(len(run.matrix.clip_ids), 'clip')}); to "
        "submit the blind set, add your results for it to this system as `output` in about.yaml"
    )


def _read_scores_of(runs: Sequence[FinishedRun], path: Path) -> ScoreMatrix:
    """Read a score matrix that was made by the given runs.

    Raises SubmissionError if the metadata stored with the matrix name other runs than `runs`, or another hub correction
    than the runs' entries have. A hub correction lowers the scores of clips that have high scores for many queries.
    For a system without runs, a score matrix of any program is accepted.
    """
    matrix = read_scores(path)
    if not runs:
        return matrix
    makers = {str(run or "an unnamed run") for run, _ in contributing_models(matrix.facts)}
    expected = {str(maker or "an unnamed run") for run in runs for maker, _ in contributing_models(run.matrix.facts)}
    corrected, ours = hub_corrections(matrix.facts), ", ".join(hub_corrections(run.matrix.facts) for run in runs)
    if makers != expected:
        raise SubmissionError(
            f"{path}: has scores of {', '.join(sorted(makers))}, not of {', '.join(sorted(expected))}; give scores of "
            "the submitted runs"
        )
    if corrected != ours:
        raise SubmissionError(
            f"{path}: has the hub correction {corrected}, but the submitted entries have the hub correction {ours}; "
            "give scores of these entries"
        )
    return matrix
