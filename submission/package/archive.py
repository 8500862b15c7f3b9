"""The archive that is submitted.

<package>/task<T>/<label>/<label>.output.csv, for moments .output.jsonl
<package>/task<T>/<label>/<label>.meta.yaml
<package>/task<T>/<label>.technical_report.pdf    one report on all systems, with the label of the first one

Source: the validator of DCASE2020 Task 1, the only official package checker that was found.
"""

import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from data_tools.errors import KitError
from data_tools.files import writing
from submission.editions import Edition
from submission.inputs import SCORED, AnyTruth, Findings, check_output
from submission.package.meta_model import meta_faults

MEMBER = re.compile(r"(?P<label>[^/]+)/(?P=label)\.(?P<kind>output\.csv|output\.jsonl|meta\.yaml)|[^/]+\.pdf")
NO_REPORT = "the technical report (.pdf) is missing, or there are several; one is needed"


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
    truth: AnyTruth
    source: str
    is_known: bool


def write_archive(path: Path, systems: list[PackedSystem], edition: Edition, report: Path | None) -> None:
    """Write a package, perhaps still without its report.

    Raises KitError with every other problem that check_archive would find.
    """
    folder = f"{path.stem}/task{edition.task}"
    members = {f"{folder}/{systems[0].label}.technical_report.pdf": report.read_bytes()} if report else {}
    for system in systems:
        name = f"{folder}/{system.label}/{system.label}"
        members[f"{name}.output{edition.suffix}"] = system.output
        members[f"{name}.meta.yaml"] = yaml.safe_dump(system.meta, sort_keys=False, allow_unicode=True).encode()
    found = check_members(members, edition, {system.label: system.truth for system in systems})
    if problems := [problem for problem in found.problems if report or problem != NO_REPORT]:
        raise KitError("\n".join(f"{path} is not written: {problem}" for problem in problems))
    with writing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def check_archive(path: Path, edition: Edition, truth: AnyTruth = None) -> Findings:
    """Check a package.

    Args:
        truth: Queries (and pool) that every submitted file must have.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    except (zipfile.BadZipFile, RuntimeError, zlib.error) as error:
        return Findings([f"no complete zip archive ({error}); pack it again"], [], "")
    return check_members(members, edition, defaultdict(lambda: truth))


def check_members(members: dict[str, bytes], edition: Edition, truths: Mapping[str, AnyTruth]) -> Findings:
    """Check the files of a package.

    Args:
        truths: By label.
    """
    problems, notes, systems = list[str](), list[str](), defaultdict[str, dict[str, bytes]](dict)
    folder = f"{next(iter(members), '').partition('/')[0]}/task{edition.task}/"
    for name, data in members.items():
        found = MEMBER.fullmatch(name.removeprefix(folder))
        if not found or not name.startswith(folder):
            problems.append(f"{name}: wrong place or name; a package has {folder}<label>/<label>.<kind>")
        elif found["label"]:
            systems[found["label"]][found["kind"]] = data
        elif not data.startswith(b"%PDF-") or b"%%EOF" not in data[-1024:]:
            problems.append(f"{name}: no complete PDF; export the report again")
    if sum(name.endswith(".pdf") for name in members) != 1:
        problems.append(NO_REPORT)
    if not 0 < len(systems) <= edition.systems:
        problems.append(f"the package has {len(systems)} systems; 1 to {edition.systems} are allowed")
    for label, files in systems.items():
        own = _check_system(label, files, edition, truths[label])
        problems += [f"{label}: {problem}" for problem in own.problems]
        notes += [f"{label}: {note}" for note in own.notes]
    return Findings(problems, notes, f"a package of edition {edition.name}")


def _check_system(label: str, files: dict[str, bytes], edition: Edition, truth: AnyTruth) -> Findings:
    problems, output = list[str](), f"output{edition.suffix}"
    if not re.fullmatch(edition.label, label):
        problems.append(f"no label such as Name_Institute_task{edition.task}_1, without blanks and dots")
    if files.keys() != {output, "meta.yaml"}:
        return Findings([*problems, f"the files are {', '.join(files)}, not {output} and meta.yaml"], [], "")
    found = check_output(files[output], edition, truth)
    problems += [*found.problems, *(note for note in found.notes if SCORED in note)]
    try:
        problems += meta_faults(yaml.safe_load(files["meta.yaml"]), label, edition)
    except (yaml.YAMLError, ValueError) as error:
        problems.append(f"meta.yaml: no YAML ({error})")
    return Findings(problems, found.notes, "")
