"""The archive that is submitted.

<package>/task<T>/<label>/<label>.output.csv, for moments .output.jsonl
<package>/task<T>/<label>/<label>.meta.yaml
<package>/task<T>/<label>.technical_report.pdf    one report on all systems, with the label of the first one

Source: the validator of DCASE2020 Task 1, the only official package checker that was found.
"""

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from data_tools.files import writing
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.csv_files import check_csv
from submission.formats.moments import MomentTruth, check_moments, is_scored
from submission.formats.problems import Problem, format_problems
from submission.formats.truth import Truth
from submission.package.meta_model import meta_faults

AnyTruth = Truth | MomentTruth
MEMBER = re.compile(
    r"[^/]+/task(?P<task>[^/]+)/(?:(?P<label>[^/]+)/(?P=label)\.(?P<kind>output|meta)\.(?:csv|jsonl|yaml)|[^/]+\.pdf)"
)
DATE = (1980, 1, 1, 0, 0, 0)  # of every member, so that the same package has the same bytes


class PackedSystem(NamedTuple):
    """A system in a package.

    Attributes:
        output: The submitted file.
        meta: Content of meta.yaml.
        truth: Queries and pool of the file, if they are known.
        source: What was submitted.
        is_known: Whether the answers to the submitted queries are known, so that they are no blind set.
    """

    label: str
    output: bytes
    meta: dict[str, Any]
    truth: AnyTruth | None
    source: str
    is_known: bool


def write_archive(path: Path, systems: list[PackedSystem], edition: Edition, report: Path | None) -> None:
    """Write a package.

    Raises SubmissionError with all problems that check_archive finds in it.
    """
    folder = f"{path.stem}/task{edition.task}"
    members = {f"{folder}/{systems[0].label}.technical_report.pdf": report.read_bytes()} if report else {}
    for system in systems:
        name = f"{folder}/{system.label}/{system.label}"
        members[f"{name}.output{edition.suffix}"] = system.output
        members[f"{name}.meta.yaml"] = yaml.safe_dump(system.meta, sort_keys=False, allow_unicode=True).encode()
    truths = {system.label: system.truth for system in systems}
    with writing(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
        problems = list(check_members(members, edition, truths))
        if problems := [problem for problem in problems if report or "technical report" not in problem]:
            raise SubmissionError("\n".join(f"{path} is not written: {problem}" for problem in problems))


def check_archive(path: Path, edition: Edition, truth: AnyTruth | None = None) -> Iterator[str]:
    """Yield each problem of a package.

    Args:
        truth: Queries (and pool) that every submitted file must have.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            members = {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error, EOFError) as error:
        yield f"no complete zip archive ({error}); pack it again"
        return
    yield from (f"{name}: occurs twice; pack again" for name, count in Counter(names).items() if count > 1)
    yield from check_members(members, edition, truth)


def archive_notes(path: Path, edition: Edition, truth: MomentTruth | None) -> Iterator[str]:
    """Yield what is unusual, but scored, in the windows of a package without problems."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".output.jsonl"):
                notes = check_moments(archive.read(name), edition, truth)[2]
                yield from (f"{name.rpartition('/')[2]}: {note}" for note in format_problems(notes))


def check_members(
    members: dict[str, bytes], edition: Edition, truth: "AnyTruth | dict[str, AnyTruth | None] | None"
) -> Iterator[str]:
    """Yield each problem of the files of a package.

    Args:
        truth: Of all systems, or by label.
    """
    systems: dict[str, dict[str, bytes]] = {}
    for name, data in members.items():
        found = MEMBER.fullmatch(name)
        if not found or found["task"] != edition.task:
            yield f"{name}: wrong place or name; a package has <package>/task{edition.task}/<label>/<label>.<kind>"
        elif found["kind"]:
            systems.setdefault(found["label"], {})[name.partition(f"{found['label']}.")[2]] = data
        elif not data.startswith(b"%PDF-") or b"%%EOF" not in data[-1024:]:
            yield f"{name}: no complete PDF; export the report again"
    if len({name.partition("/")[0] for name in members}) > 1:
        yield "the package has several top folders"
    if sum(name.endswith(".pdf") for name in members) != 1:
        yield "the technical report (.pdf) is missing, or there are several; one is needed"
    if not 0 < len(systems) <= edition.systems:
        yield f"the package has {len(systems)} systems; 1 to {edition.systems} are allowed"
    for label, files in systems.items():
        own = truth.get(label) if isinstance(truth, dict) else truth
        yield from (f"{label}: {problem}" for problem in _system_problems(label, files, edition, own))


def _system_problems(label: str, files: dict[str, bytes], edition: Edition, truth: AnyTruth | None) -> Iterator[str]:
    if not re.fullmatch(edition.label, label):
        yield f"no label such as Name_Institute_task{edition.task}_1, without blanks and dots"
    output = f"output{edition.suffix}"
    if files.keys() != {output, "meta.yaml"}:
        yield f"the files are {', '.join(files)}, not {output} and meta.yaml"
        return
    yield from format_problems(output_problems(files[output], edition, truth))
    try:
        yield from meta_faults(yaml.safe_load(files["meta.yaml"]), label, edition)
    except (yaml.YAMLError, ValueError) as error:
        yield f"meta.yaml: no YAML ({error})"


def output_problems(data: bytes, edition: Edition, truth: AnyTruth | None) -> list[Problem]:
    """Return the problems of a submitted file."""
    if edition.output != "windows":
        return check_csv(data, edition, truth if isinstance(truth, Truth) else None).problems
    answers, problems, _ = check_moments(data, edition, truth if isinstance(truth, MomentTruth) else None)
    if is_scored(answers):
        problems.append(Problem(None, "the windows have scores; `write` removes them"))
    if any(answer.query is None or answer.vid is None for answer in answers):
        problems.append(Problem(None, "query or vid is missing"))
    return problems
