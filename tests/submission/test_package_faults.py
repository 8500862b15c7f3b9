"""Damaged and malicious archives, unusual YAML, and runs that were edited by hand."""

import copy
import json
import shutil
import stat
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from outcomes import without_checksums
from pdf import PDF

from data_tools.errors import KitError
from submission.__main__ import main
from submission.editions import get_edition
from submission.formats.score_matrix import read_scores, write_scores
from submission.package import archive
from submission.package.archive import check_archive
from submission.runs.finished import open_finished

E2022 = get_edition(2022)
LABEL = "Doe_EX_task6b_1"
OUTPUT, META, REPORT = (
    f"mine/task6b/{name}"
    for name in (
        f"{LABEL}/{LABEL}.output.csv",
        f"{LABEL}/{LABEL}.meta.yaml",
        f"{LABEL}.technical_report.pdf",
    )
)
Members = dict[str, bytes]


def about(**author: Any) -> dict[str, Any]:
    affiliation = {"abbreviation": "EX", "institute": "Example Institute", "department": None, "location": "Town"}
    person = {"lastname": "Doe", "firstname": "Jo", "email": "jo@example.org", "corresponding": True}
    return {
        "authors": [person | {"affiliation": affiliation} | author],
        "systems": [{"name": "One", "abbreviation": "one"}],
        "sources": {"tones": {"url": None}},
    }


@pytest.fixture
def here(unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a finished run, the participant's facts, and a report."""
    (tmp_path / "run").symlink_to(unbroken)
    (tmp_path / "about.yaml").write_text(yaml.safe_dump(about()))
    (tmp_path / "report.pdf").write_bytes(PDF)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pack(run: str = "run") -> int:
    return main(["pack", run, "--about", "about.yaml", "--report", "report.pdf", "--out", "mine.zip"])


@pytest.fixture
def members(here: Path) -> Members:
    assert pack() == 0
    with zipfile.ZipFile("mine.zip") as made:
        found = {name: made.read(name) for name in made.namelist()}
    assert set(found) == {OUTPUT, META, REPORT}
    return found


def write_zip(members: Members, method: int = zipfile.ZIP_DEFLATED, mode: int = 0o644) -> Path:
    """Write an archive. mode: of the output member."""
    with zipfile.ZipFile("t.zip", "w", method) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode if name == OUTPUT else 0o644) << 16
            made.writestr(info, data, method)
    return Path("t.zip")


# --- archives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "name"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")])
def test_package_with_uncommon_compression_is_refused(members: Members, method: int, name: str) -> None:
    problems = list(check_archive(write_zip(members, method), E2022))
    assert len(problems) == 3
    assert all(f"is compressed by {name}, which many programs cannot unpack; use deflate" in one for one in problems)
    assert list(check_archive(write_zip(members, zipfile.ZIP_STORED), E2022)) == []


def test_check_reports_a_damaged_file_in_a_package_as_one_problem(
    members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(check_archive(write_zip(members), E2022)) == []
    data = bytearray(Path("t.zip").read_bytes())
    with zipfile.ZipFile("t.zip") as made:
        begin = made.getinfo(OUTPUT).header_offset + 30 + len(OUTPUT) + 20
    data[begin : begin + 40] = bytes(255 - byte for byte in data[begin : begin + 40])
    Path("t.zip").write_bytes(data)
    capsys.readouterr()
    assert main(["check", "t.zip", "--edition", "2022"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("a file in the archive cannot be read (")
    assert shown.err == "error: t.zip: the package is not ready to be submitted; its problems are listed above\n"


def test_check_reports_an_unreadable_zip_directory_as_one_problem(members: Members) -> None:
    data = bytearray(write_zip(members).read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 6] = 200  # needs version 20.0 of the format
    Path("t.zip").write_bytes(data)
    assert list(check_archive(Path("t.zip"), E2022)) == [
        "the file is no zip archive (zip file version 20.0); pack it again"
    ]


def test_links_and_special_files_and_bad_paths_and_bad_pdfs_in_a_package_are_reported(members: Members) -> None:
    (problem,) = check_archive(write_zip(members, mode=stat.S_IFLNK | 0o777), E2022)
    assert problem == f"{OUTPUT}: is a link; replace it by the file itself"
    for mode, shown in ((stat.S_IFIFO | 0o644, "prw-r--r--"), (stat.S_IFCHR | 0o600, "crw-------")):
        (problem,) = check_archive(write_zip(members, mode=mode), E2022)
        assert problem == f"{OUTPUT}: is not a regular file ({shown}); replace it by a regular file"
    for mode in (0, stat.S_IFREG | 0o600):
        assert list(check_archive(write_zip(members, mode=mode), E2022)) == []
    assert list(check_archive(write_zip(members | {"mine/task6b/notes/": b""}), E2022)) == []
    for name in ("mine/task6b/../x.csv", "mine/task6b/./x.csv", "../task6b/x.pdf", "mine/task6b//x.csv"):
        problems = list(check_archive(write_zip(members | {name: b""}), E2022))
        assert problems[0].startswith(f"{name}: is in the wrong place; a package has <package>/task6b/"), name
    for start in (b"%PDF", b"%PDF\n1.4", b"%pdf-1.4", b""):
        (problem,) = check_archive(write_zip(members | {REPORT: start}), E2022)
        assert problem == f"{REPORT}: is no PDF; export the report as a PDF"
    for cut in (b"%PDF-1.4\n", PDF + b"x" * 1024, PDF[: len(PDF) // 2]):
        (problem,) = check_archive(write_zip(members | {REPORT: cut}), E2022)
        assert problem.startswith(f"{REPORT}: is an incomplete PDF (its end, %%EOF, is missing)")
    for fake in (
        b"%PDF-1.4\n%%EOF\n",
        b"%PDF-1.4\nstartxref\n5\n%%EOF\n",
        PDF[:30] + PDF[60:],
        PDF[:-8] + b"999 %%EOF",
    ):
        (problem,) = check_archive(write_zip(members | {REPORT: fake}), E2022)
        assert problem.startswith(f"{REPORT}: is a damaged PDF")
    (problem,) = check_archive(write_zip(members | {"\0x": b""}), E2022)
    assert problem.startswith(": is in the wrong place")
    dotted = {name.replace("Doe_", "St.Doe_"): data for name, data in members.items()}
    assert any("St.Doe_EX_task6b_1: is not a label" in problem for problem in check_archive(write_zip(dotted), E2022))


@pytest.mark.parametrize("name", ["output", "meta", "report"])
def test_oversized_files_in_a_package_are_not_unpacked(
    name: str, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = {"output": OUTPUT, "meta": META, "report": REPORT}[name]
    key = {"output": "MAX_OUTPUT_BYTES", "meta": "MAX_META_BYTES", "report": "MAX_REPORT_BYTES"}[name]
    assert getattr(archive, key) < 2**28 + 1
    limit = 2**20
    monkeypatch.setattr(archive, key, limit)
    monkeypatch.setattr(zipfile.ZipFile, "testzip", None)  # unpacking would fail
    path = write_zip(members | {member: bytes(limit + 1)})
    assert path.stat().st_size < limit / 100
    (problem,) = check_archive(path, E2022)
    assert problem.startswith(f"{member}: has {limit + 1:,} bytes unpacked, but at most {limit:,} are allowed; check")


def test_package_with_too_many_files_is_refused(members: Members) -> None:
    (problem,) = check_archive(write_zip(members | {f"mine/task6b/{n}.pdf": b"" for n in range(50)}), E2022)
    assert (
        problem == "the package has 53 files and folders, but at most 40 are allowed for 4 systems; remove the others"
    )


def test_package_with_two_technical_reports_is_refused(members: Members) -> None:
    problems = list(check_archive(write_zip(members | {"mine/task6b/other.pdf": PDF}), E2022))
    assert problems == ["the package has 2 technical reports; keep one report on all systems"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_package_with_data_before_or_after_the_archive_is_refused(
    place: str, members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    path, script = write_zip(members), b"#!/bin/sh\necho no archive\n"
    data = path.read_bytes()
    path.write_bytes(script + data if place == "before" else data + script)
    (problem,) = check_archive(path, E2022)
    assert problem.startswith(f"other data comes {place} the archive")
    assert main(["check", str(path), "--edition", "2022"]) == 1


def test_package_with_encrypted_files_is_refused(members: Members) -> None:
    data = bytearray(write_zip(members).read_bytes())
    for record, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(record) + flags] |= 1
    Path("t.zip").write_bytes(data)
    (problem,) = check_archive(Path("t.zip"), E2022)
    assert problem.endswith("is encrypted; pack it without a password")


def test_package_for_other_queries_than_the_truth_is_refused(
    here: Path, members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = read_scores(here / "run/scores/evaluation.npy")
    write_scores(here / "same.npy", matrix)
    others = [f"other {text}" for text in matrix.query_texts]
    write_scores(here / "other.npy", replace(matrix, query_texts=others))
    write_scores(here / "most.npy", replace(matrix, query_texts=[*others[:-1], matrix.query_texts[-1]]))
    assert main(["check", "mine.zip", "--edition", "2022", "--scores", "same.npy"]) == 0
    capsys.readouterr()
    assert main(["check", "mine.zip", "--edition", "2022", "--scores", "other.npy"]) == 1
    assert (
        f"{OUTPUT}: whole file: no query of this file is known: the file belongs to another split"
        in capsys.readouterr().out
    )
    assert main(["check", "mine.zip", "--edition", "2022", "--scores", "most.npy"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{OUTPUT}: line 2: unknown query ")
    assert sum("unknown query" in line or "a query is unknown" in line for line in lines) == 21, "and one of the rest"
    assert main(["check", "mine.zip", "--edition", "2022", "--scores", "most.npy", "--all"]) == 1
    assert capsys.readouterr().out.count("unknown query") == 119
    assert main(["check", "mine.zip", "--edition", "2022", "--ranked"]) == 1
    assert "work" in capsys.readouterr().err
    assert main(["check", "none.zip"]) == 1
    assert capsys.readouterr().err == "error: none.zip: no such file; correct the path\n"


# --- runs edited by hand -----------------------------------------------------------------------------------------


def paths_of(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield from paths_of(content[key], (*path, key))


LEFT_OUT = object()


def edited(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = part = copy.deepcopy(content)
    for key in path[:-1]:
        part = part[key]
    if value is LEFT_OUT:
        part.pop(path[-1])
    else:
        part[path[-1]] = value
    return changed


@pytest.fixture
def copied(here: Path) -> Path:
    """A run with two files that a test can change; its scores are those of the original."""
    (here / "mine").mkdir()
    for name in ("result.json", "resolved.json"):
        shutil.copy(here / "run" / name, here / "mine")
    without_checksums(here / "mine")
    (here / "mine/scores").symlink_to(here / "run/scores")
    return here / "mine"


@pytest.mark.parametrize("name", ["result.json", pytest.param("resolved.json", marks=pytest.mark.slow)])
def test_edited_run_files_never_cause_a_traceback(copied: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every value that a package uses is removed, or replaced by null, text or a list; runs that open are packed."""
    content = json.loads((copied / name).read_text())
    used = {"rank", "parameters", "experts", "data"} if name == "result.json" else {"rank", "model", "stages"}
    opened = refused = 0
    for number, path in enumerate(path for path in paths_of(content) if path and path[0] in used):
        value = [None, "x", [[1]], LEFT_OUT][number % 4]
        (copied / name).write_text(json.dumps(edited(content, path, value)))
        try:
            open_finished(str(copied))
        except KitError:
            refused += 1
            continue
        opened += 1
        assert pack("mine") in (0, 1)
    assert min(opened, refused) >= 10
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        (
            "result.json",
            ("parameters",),
            None,
            "result.json is damaged (parameters: must be a mapping of keys to values); delete mine/",
        ),
        ("result.json", ("data", "train", "sets", "tones", "clips"), 0, "data.train.sets.tones.clips: must be"),
        ("result.json", ("parameters", "frozen"), {"gone": 3}, "parameters.frozen.gone: the run has no expert 'gone'"),
        (
            "result.json",
            ("rank",),
            {"other": {}},
            "result.json is damaged (rank.other.metric: is missing)\nerror: ",
        ),
        (
            "resolved.json",
            ("rank",),
            {},
            "mine: rank.evaluation: is in result.json, but not in resolved.json; make the run again",
        ),
        ("result.json", ("rank",), {}, "the run has no ranked entry"),
        (
            "result.json",
            ("broken",),
            ["a"],
            "result.json is damaged (broken: must be a mapping of keys to values); delete mine/",
        ),
        (
            "resolved.json",
            ("rank", "evaluation", "stage"),
            "gone",
            "rank.evaluation.stage: the recipe has no stage 'gone'",
        ),
        (
            "resolved.json",
            ("rank", "again"),
            {"kind": "mean", "of": ["again"]},
            "rank.again.of: the recipe has no earlier entry",
        ),
    ],
)
def test_pack_names_the_missing_or_wrong_part_of_a_run(
    copied: Path, name: str, path: tuple[str, ...], value: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((copied / name).read_text())
    (copied / name).write_text(json.dumps(edited(content, path, value)))
    assert pack("mine") == 1
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.startswith("error: mine")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"rank": '])
def test_pack_reports_a_damaged_result_json_on_one_line(
    copied: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "result.json").write_bytes(data)
    assert pack("mine") == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: mine/result.json")
    assert shown.err.count("\n") == 1
