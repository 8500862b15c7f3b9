"""Write and check the archive.

The zip archive to submit is written completely or not at all. The check is like that of the official validator. The
files in the archive are:

<name>/task<T>/<label>/<label>.output.csv       one folder per system; for moments .output.jsonl
<name>/task<T>/<label>/<label>.meta.yaml
<name>/task<T>/<label>.technical_report.pdf     one report on all systems, with the label of the first system

Sources: submission/editions.py states the source of each edition's file names (item `names` of the attribute
`sources`). The layout is that of the validator of DCASE2020 Task 1.
"""

import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from data_tools.documents.problems import Problem
from data_tools.documents.yaml12 import parse_yaml
from data_tools.errors import DataError
from data_tools.files import writing
from submission.editions import AnyEdition, MomentsEdition, Names, all_editions
from submission.errors import SubmissionError
from submission.formats.csv_table import SHOWN_PROBLEMS, format_problems
from submission.formats.matrix_csv import check_matrix_csv
from submission.formats.moments_jsonl import NOT_IN_PACKAGES, check_moments
from submission.formats.moments_truth import MomentTruth
from submission.formats.ranked_csv import check_ranked_csv
from submission.formats.truth import Truth
from submission.package.meta_model import meta_faults

MAX_OUTPUT_BYTES = 2**28  # bytes of an output, unpacked: a full matrix takes some 60 MB
MAX_META_BYTES, MAX_REPORT_BYTES = 2**20, 2**27  # bytes, likewise
METHOD_NAMES = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # every unzip program reads these
_MEMBER_DATE = (1980, 1, 1, 0, 0, 0)  # date of every member, so that the same package has the same bytes


AnyTruth = Truth | MomentTruth


class PackedSystem(NamedTuple):
    """A system with all content of its folder in the archive.

    Attributes:
        label: Label of the system, which is also the name of its folder.
        description: Description of the submitted file, for a message.
        output: Content of the submitted file.
        meta: Content of meta.yaml.
        truth: Queries of the blind set or split, to compare the file with; None to check only the format of the file.
        answered_by: Name of the ranked entry, or of the file, that states the correct answers to the submitted queries;
            "" for a blind set, whose answers are unknown.
    """

    label: str
    description: str
    output: bytes
    meta: dict[str, Any]
    truth: AnyTruth | None = None
    answered_by: str = ""


def file_names(names: Names, label: str, edition: AnyEdition) -> Names:
    """Return the file names of a system: the patterns `names`, filled with the parts of the system's label."""
    author, institute, _, index = label.split("_")
    filled = {"label": label, "author": author, "institute": institute, "task": edition.task, "index": index}
    return Names(*(name.format(**filled) for name in names))


def write_archive(
    path: Path, systems: list[PackedSystem], edition: AnyEdition, style: str, report: bytes | None
) -> None:
    """Write an archive of the systems, files named by `style`, to a temporary file; rename it to `path` if correct.

    style: Naming style of the files, a key of the edition's `names`. report: Content of the technical report (PDF), or
    None. Raises SubmissionError with all problems that check_archive finds, one per line. Raises OSError when writing
    fails.
    """
    import yaml

    task = f"{path.name.split('.')[0]}/task{edition.task}"
    members: dict[str, bytes] = {}
    for system in systems:
        names = file_names(edition.names[style], system.label, edition)
        folder = f"{task}/{system.label}"
        members[f"{folder}/{names.output}"] = system.output
        members[f"{folder}/{names.meta}"] = yaml.safe_dump(system.meta, sort_keys=False, allow_unicode=True).encode()
    if report is not None:
        members[f"{task}/{file_names(edition.names[style], systems[0].label, edition).report}"] = report
    with writing(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _MEMBER_DATE), data, zipfile.ZIP_DEFLATED)
        file.flush()
        truths = {system.label: system.truth for system in systems}
        if problems := list(check_archive(Path(file.name), edition, truths.get, require_report=report is not None)):
            raise SubmissionError("\n".join(f"{path} is not written: {problem}" for problem in problems))


def check_archive(
    path: Path,
    edition: AnyEdition,
    truth_of: Callable[[str], AnyTruth | None] = lambda label: None,
    require_report: bool = True,
    shown: int | None = SHOWN_PROBLEMS,
) -> Iterator[str]:
    """Check a package (.zip); yield a message for each problem. truth_of: Function from a system's label to its truth.

    Args:
        truth_of: The truth has the queries that the system's submitted file should contain.
        require_report: Whether a technical report must exist.
        shown: Maximum number of messages per kind of problem.
    Raises OSError for a file that cannot be opened.
    """
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # for a damaged directory, zipfile raises BadZipFile, OSError, IndexError, and more
            yield f"the file is no zip archive ({error}); pack it again"
            return
        if problems := [*_container_problems(file, archive), *_size_problems(archive, edition)]:
            yield from problems  # without unpacking anything
            return
        try:
            damaged = archive.testzip()
        except Exception as error:  # every compression raises other errors
            yield f"a file in the archive cannot be read ({error}); pack it again"
            return
        if damaged:
            yield f"{damaged}: is damaged (wrong checksum); pack it again"
            return
        yield from _check_members(archive, edition, truth_of, require_report, shown)


def _container_problems(file: BinaryIO, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield a message for data before or after the archive, and for files that some programs cannot unpack."""
    file.seek(0)
    if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
        yield "other data comes before the archive, such as a script; pack it again"
    end = 22 + len(archive.comment)  # bytes of the archive's last record
    file.seek(-end, os.SEEK_END)
    if file.read(4) != b"PK\x05\x06":
        yield "other data comes after the archive; pack it again"
    for info in archive.infolist():
        if info.flag_bits & 1:
            yield f"{info.filename}: is encrypted; pack it without a password"
        elif info.compress_type not in METHODS:
            method = METHOD_NAMES.get(info.compress_type, f"method {info.compress_type}")
            yield f"{info.filename}: is compressed by {method}, which many programs cannot unpack; use deflate"


def _size_problems(archive: zipfile.ZipFile, edition: AnyEdition) -> Iterator[str]:
    """Yield a message for each file of a package that is too large, and one if the package has too many files."""
    limits = {".yaml": MAX_META_BYTES, ".pdf": MAX_REPORT_BYTES}
    for info in archive.infolist():
        largest = limits.get(PurePosixPath(info.filename).suffix, MAX_OUTPUT_BYTES)
        if info.file_size > largest:
            yield (
                f"{info.filename}: has {info.file_size:,} bytes unpacked, but at most {largest:,} are allowed; "
                "check its content"
            )
    if len(archive.infolist()) > (limit := 8 * edition.systems + 8):  # files and folders
        yield (
            f"the package has {len(archive.infolist()):,} files and folders, but at most {limit} are allowed for "
            f"{edition.systems} systems; remove the others"
        )


def fitting_editions(path: Path) -> list[AnyEdition]:
    """Return the editions whose rules allow the names of all files in an archive; [] if the archive cannot be read.

    Raises OSError for a file that cannot be opened.
    """
    with path.open("rb") as file:
        try:
            names = [name for name in zipfile.ZipFile(file).namelist() if not name.endswith("/")]
        except Exception:  # as in check_archive, which reports the problem
            return []
    return [edition for edition in all_editions() if names and all(_has_valid_name(name, edition) for name in names)]


def output_notes(
    path: Path, edition: AnyEdition, truth: AnyTruth | None, shown: int | None = SHOWN_PROBLEMS
) -> Iterator[str]:
    """Yield a message for each oddity of windows in a package of moments. shown: Limit per kind; None: no limit."""
    if not isinstance(edition, MomentsEdition):
        return
    assert not isinstance(truth, Truth)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".jsonl"):
                _, _, notes = check_moments(archive.read(name), edition, truth)
                yield from (f"{name}: {line}" for line in format_problems(notes, shown))


def _check_members(
    archive: zipfile.ZipFile,
    edition: AnyEdition,
    truth_of: Callable[[str], AnyTruth | None],
    require_report: bool,
    shown: int | None,
) -> Iterator[str]:
    """Yield a message for each problem of an archive's files and systems. shown: Limit per kind; None: no limit."""
    files = [info for info in archive.infolist() if not info.filename.endswith("/")]  # is_dir() fails on an empty name
    for info in files:
        mode = info.external_attr >> 16  # 0 for a file from a system without modes
        if stat.S_ISLNK(mode):
            yield f"{info.filename}: is a link; replace it by the file itself"
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield f"{info.filename}: is not a regular file ({stat.filemode(mode)}); replace it by a regular file"
    names = Counter(info.filename for info in files)
    for name in sorted(name for name, times in names.items() if times > 1):
        yield f"{name}: occurs twice in the archive; remove one of the files"
    wrong = {name for name in names if not _has_valid_path(name, edition)}
    actual_edition = next(
        (other for other in all_editions() if all(_has_valid_path(name, other) for name in names)), None
    )
    if wrong and actual_edition:
        actual = actual_edition.name
        yield f"this is a package of edition {actual}, not of {edition.name}; add --edition {actual}"
        return
    for name in sorted(wrong):
        task = f"<package>/task{edition.task}"
        yield f"{name}: is in the wrong place; a package has {task}/<label>/<file> and {task}/<report>.pdf"
    placed = [PurePosixPath(name) for name in names if name not in wrong]
    if len(tops := {path.parts[0] for path in placed}) > 1:
        yield f"the package has several top folders: {', '.join(sorted(tops))}; put all files into one top folder"
    reports = [path for path in placed if path.suffix == ".pdf"]
    for path in reports:
        if problem := pdf_problem(archive.read(str(path))):
            yield f"{path}: {problem}"
    if len(reports) > 1:
        yield f"the package has {len(reports)} technical reports; keep one report on all systems"
    if require_report and not reports:
        yield "the technical report (.pdf) is missing; add it"
    systems: dict[str, list[PurePosixPath]] = {}
    for path in placed:
        if len(path.parts) == 4 and path.suffix != ".pdf":
            systems.setdefault(path.parts[2], []).append(path)
    if not systems:
        yield "the package has no system; pack at least one system"
    if len(systems) > edition.systems:
        yield f"the package has {len(systems)} systems, but at most {edition.systems} are allowed; remove the others"
    for label, paths in systems.items():
        yield from _check_system(archive, label, paths, edition, truth_of(label), shown)


def pdf_problem(content: bytes) -> str | None:
    """Describe why a file is not a complete PDF; None for a PDF whose end leads to its cross-reference table.

    Source: ISO 32000-1, 7.5: header, and `startxref OFFSET %%EOF` at the end, which names a cross-reference table
    ("xref") or stream ("N 0 obj").
    """
    if not content.startswith(b"%PDF-"):
        return "is no PDF; export the report as a PDF"
    end = content[-1024:]
    if b"%%EOF" not in end:
        return "is an incomplete PDF (its end, %%EOF, is missing); export the report again"
    offsets = re.findall(rb"startxref\s+([0-9]{1,12})\s+%%EOF", end)
    if not offsets or not re.match(rb"\s*(xref\b|[0-9]+\s+[0-9]+\s+obj\b)", content[int(offsets[-1]) :][:64]):
        return "is a damaged PDF (its cross-reference table is not where its end says); export the report again"
    return None


def _has_valid_path(name: str, edition: AnyEdition) -> bool:
    """Return whether a path in a package is that of a file in a task or system folder, without .. or backslashes."""
    parts = name.split("/")
    sound = all(part not in ("", ".", "..") for part in parts) and "\\" not in name
    report = len(parts) == 3 and parts[-1].endswith(".pdf")
    return sound and (report or len(parts) == 4) and parts[1] == f"task{edition.task}"


def _has_valid_name(name: str, edition: AnyEdition) -> bool:
    """Return whether a path in a package is that of a report, a submitted file or a meta.yaml, named as required."""
    if not _has_valid_path(name, edition):
        return False
    *_, label, file = name.split("/")
    if file.endswith(".pdf"):
        return True
    if not re.fullmatch(edition.label, label):
        return False
    styles = [file_names(names, label, edition) for names in edition.names.values()]
    return any(file in (names.output, names.meta) for names in styles)


def _check_system(
    archive: zipfile.ZipFile,
    label: str,
    paths: list[PurePosixPath],
    edition: AnyEdition,
    truth: AnyTruth | None,
    shown: int | None,
) -> Iterator[str]:
    """Yield a message for each problem of a system's folder in a package. shown: Limit per kind; None: no limit."""
    if not re.fullmatch(edition.label, label):
        expected = f"<last name>_<institute>_task{edition.task}_<1 to {edition.systems}>"
        yield f"{label}: is not a label of this task: expected {expected}, without blanks, dots or other underscores"
        return
    styles = [file_names(names, label, edition) for names in edition.names.values()]
    present = {path.name for path in paths}
    style = next((names for names in styles if names.output in present or names.meta in present), styles[0])
    for name in sorted({style.output, style.meta} - present):
        yield f"{label}: the file {name} is missing; add it"
    for path in paths:
        if path.name == style.output:
            problems = _output_problems(archive.read(str(path)), edition, truth)
            yield from (f"{path}: {line}" for line in format_problems(problems, shown))
        elif path.name == style.meta:
            try:
                faults = meta_faults(parse_yaml(archive.read(str(path))), label, edition)
            except DataError as error:
                faults = [str(error)]
            yield from (f"{path}: {line}" for line in faults)
        else:
            yield f"{path}: does not belong here; remove it ({label} must have only {style.output} and {style.meta})"


def _output_problems(data: bytes, edition: AnyEdition, truth: AnyTruth | None) -> list[Problem]:
    """Check the content of a submitted file by the rules of the edition, and return its problems.

    For moments, scores and a missing query or vid are problems too, because a package must not have them.
    """
    if isinstance(edition, MomentsEdition):
        assert not isinstance(truth, Truth)
        _, problems, notes = check_moments(data, edition, truth)
        return problems + [note for note in notes if note.kind in NOT_IN_PACKAGES]
    assert not isinstance(truth, MomentTruth)
    check = check_ranked_csv if edition.output == "ranked" else check_matrix_csv
    return check(data, edition, truth)[1]
