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
from submission.metrics.blend import contributing_models, corrections
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
    """A written archive. unready: Reasons why it must not be submitted yet, one message each."""

    path: Path
    systems: list[PackedSystem]
    unready: list[str]


class Submitted(NamedTuple):
    """A system to submit: one run, the runs of a blend, or the scores of another program.

    blend: The blend's own run folder, if it has one. matrix: Score matrix for the figures of a system without runs.
    Their files are submitted unless about.yaml names others.
    """

    runs: Sequence[Finished]
    blend: Finished | None = None
    matrix: Path | None = None

    @property
    def ranks_blind(self) -> bool:
        """Whether the blind set was ranked with the models of this system."""
        return self.matrix is None and (self.blend or self.runs[0]).ranks_blind

    def missing_facts(self) -> list[str]:
        """Return the keys of about.yaml's systems that this one needs: output, scored, parameters."""
        of_clips = not any(isinstance(run, FinishedMoments) for run in self.runs)
        files = [] if self.ranks_blind else ["output"]
        if len(self.runs) > 1 and not self.blend:
            files = ["output", "scored"]
        return [*files, *(["parameters"] if of_clips and not are_counted(self.runs) else [])]

    def with_files(self, system: System) -> System:
        """Return the participant's facts about the system, with files of the blend or matrix where they name none."""
        files: dict[str, Path] = {}
        if self.matrix:
            files = {"scored": self.matrix, "output": self.matrix}
        elif isinstance(self.blend, FinishedRun):
            scored = self.blend.file(f"scores/{self.blend.entry}.npy")
            files = {"scored": scored, "output": self.blend.blind_scores or scored}
        elif isinstance(self.blend, FinishedMoments):
            source = self.blend.blind or self.blend
            scored = self.blend.file(f"scores/{self.blend.entry}.windows.jsonl")
            files = {"scored": scored, "output": source.file(f"submission/{source.entry}.jsonl")}
        return system.model_copy(
            update={key: getattr(system, key) or str(path.resolve()) for key, path in files.items()}
        )


def pack(
    submitted: Sequence[Submitted],
    about_path: Path,
    edition: AnyEdition,
    out: Path,
    report: Path | None = None,
    style: str = "label",
) -> Package:
    """Write the package (.zip) of the systems.

    about_path: The participant's file; the files it names are in its folder. The archive is called NAME.NOT_READY.zip
    without a report, and if a system of moments answers queries whose answers are known.
    Raises SubmissionError, one line per fact, for everything that is missing or wrong.
    """
    about = read_about(about_path, len(submitted))
    about = about.model_copy(
        update={"systems": [one.with_files(facts) for one, facts in zip(submitted, about.systems, strict=True)]}
    )
    systems = [one.runs for one in submitted]
    if problems := list(_problems(systems, about, edition, style)):
        raise SubmissionError("\n".join(f"{about_path}: {problem}" for problem in problems))
    pack_one: Callable[..., PackedSystem] = pack_moments if isinstance(edition, MomentsEdition) else _pack_clips
    packed = [
        pack_one(runs, about, system, edition, system_label(about, edition, index), about_path.parent)
        for index, (runs, system) in enumerate(zip(systems, about.systems, strict=True), start=1)
    ]
    reasons = [] if report else ["it has no technical report; add --report REPORT.pdf"]
    if isinstance(edition, MomentsEdition):
        reasons += [known_answers_message(system) for system in packed if system.answered_by]
    unready = out.with_suffix(".NOT_READY.zip")
    path = unready if reasons else out
    write_archive(path, packed, edition, style, report.read_bytes() if report else None)
    if not reasons:
        unready.unlink(missing_ok=True)
    return Package(path, packed, reasons)


def known_answers_message(system: PackedSystem) -> str:
    """Return the message on a system that answers queries whose answers are known."""
    fault = f"{system.label} submits queries whose answers are known ({system.answered_by}), not the blind set"
    return f"{fault}; rank the blind set in the run, or give this system its file as `output`"


def _problems(systems: Sequence[Sequence[Finished]], about: About, edition: AnyEdition, style: str) -> Iterator[str]:
    """Yield the reasons why the systems cannot form one package, such as too many of them."""
    if len(systems) > edition.systems:
        yield f"{len(systems)} systems are submitted; edition {edition.name} accepts {edition.systems}"
    if style not in edition.names:
        yield f"edition {edition.name} has no naming style {style!r}; use {', '.join(edition.names)}"
    of_moments = isinstance(edition, MomentsEdition)
    for run in (run for runs in systems for run in runs):
        if run.is_of_validation:
            yield f"{run.folder}:{run.entry} ranks a validation split; name an entry of the split for the results"
        if isinstance(run, FinishedMoments) != of_moments:
            kinds = ("moments", "clips") if of_moments else ("clips", "moments")
            yield f"edition {edition.name} ranks {kinds[0]}, but {run.folder}:{run.entry} ranks {kinds[1]}"
    yield from label_problems(about)
    for number, (runs, system) in enumerate(zip(systems, about.systems, strict=True)):
        if of_moments and not runs:
            yield f"edition {edition.name} finds moments, but a score matrix (.npy) ranks clips"
        if not of_moments and not system.parameters and not are_counted(runs):
            yield f"systems.{number}.parameters: is missing, and the runs do not count all; write that of all models"
        if len(system.abbreviation) > edition.abbreviation:
            yield f"systems.{number}.abbreviation: has more than {edition.abbreviation} characters"
        for key, what in (("output", "to submit"), ("scored", "of the split of its figures")):
            if len(runs) > 1 and getattr(system, key) is None:
                file = "file of windows" if of_moments else "score matrix"
                blended = f"a blend of {len(runs)} runs needs the {file} {what}"
                yield f"systems.{number}.{key}: is missing; {blended}"
        yield from _description_problems(f"systems.{number}.description", runs, system)
    for name in sorted({name for runs in systems for name in missing_addresses(runs, about.sources)}):
        yield f"sources.{name}.url: is missing; give the address of {name}, or null if it is not published"


def _description_problems(at: str, runs: Sequence[Finished], system: System) -> Iterator[str]:
    """Yield problems of a system's description: facts that neither the runs nor it state, and unknown keys."""
    known = describe(runs)
    for key in [key for key in system.description if key not in known]:
        yield f"{at}.{key}: no such key; keys: {', '.join(known) or 'none for moments'}"
    for key in missing_descriptions(runs):
        if key not in system.description:
            yield f"{at}.{key}: is missing, and no run states it; write it, for example none"


def _pack_clips(
    runs: Sequence[FinishedRun], about: About, system: System, edition: Edition, label: str, folder: Path
) -> PackedSystem:
    """Pack one system that ranks clips: return its output and its meta.yaml."""
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
    """Return whether a score matrix knows the relevant clips of all queries in a CSV, given as bytes."""
    known = {text for text, clips in zip(matrix.query_texts, matrix.relevant, strict=True) if clips is not None}
    return all(known.issuperset(row.cells[:1]) for row in parse_rows(data) if isinstance(row, Row) and row.line > 1)


def _describe_entry(run: FinishedRun) -> str:
    """Return the note that a system submits an entry of queries with known answers, not of the blind set."""
    ranked = f"{run.entry!r} ({counted(len(run.matrix.clip_ids), 'clip')})"
    return f"submits the ranked entry {ranked}; to submit the blind set, give this system an `output`"


def _read_scores_of(runs: Sequence[FinishedRun], path: Path) -> ScoreMatrix:
    """Read a score matrix that the runs made. Raises SubmissionError if its facts name other runs.

    Without runs, the scores may be those of any program.
    """
    matrix = read_scores(path)
    if not runs:
        return matrix
    makers = {str(run or "an unnamed run") for run, _ in contributing_models(matrix.facts)}
    expected = {str(maker or "an unnamed run") for run in runs for maker, _ in contributing_models(run.matrix.facts)}
    corrected, ours = corrections(matrix.facts), ", ".join(corrections(run.matrix.facts) for run in runs)
    if makers != expected:
        names = f"{', '.join(sorted(makers))}, not by {', '.join(sorted(expected))}"
        raise SubmissionError(f"{path}: was made by {names}; give scores that these runs made")
    if corrected != ours:
        problem = f"has the hub correction {corrected}, but the ranked entries have {ours}"
        raise SubmissionError(f"{path}: {problem}; give scores of the same entries")
    return matrix
