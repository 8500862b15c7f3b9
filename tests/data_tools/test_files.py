"""Tables, temporary names, and the order of writes to the disk."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio import content_key
from data_tools.documents.json_text import quick_sha256
from data_tools.errors import DataError
from data_tools.files import remove_parts, replacing, replacing_folder, short_name, write_text
from data_tools.locks import lock_of
from data_tools.tables import caption_columns, read_table

GONE = 9_999_999  # more than Linux has processes


def test_any_number_of_caption_columns_is_found_in_order() -> None:
    names = [f"caption_{number}" for number in range(1, 12_001)]
    row = dict.fromkeys(["file_name", *reversed(names), "caption_language"], "")
    assert caption_columns(Path("a.csv"), row) == names
    del row["caption_9"]
    with pytest.raises(DataError, match=r"needs the columns caption_1, caption_2 .. without a gap") as caught:
        caption_columns(Path("a.csv"), row)
    assert len(str(caught.value)) < 400
    with pytest.raises(DataError, match=r"^a.csv: the column caption_9{32}.. has a number of more than 9 digits"):
        caption_columns(Path("a.csv"), {"caption_1": "", "caption_" + "9" * 5_000: ""})


@pytest.mark.parametrize("columns", [[], ["caption"]])
def test_table_with_leading_blank_line_is_refused(tmp_path: Path, columns: list[str]) -> None:
    (tmp_path / "a.csv").write_text("\ncaption,number\ndog,1\n")
    with pytest.raises(DataError, match=r"a.csv, line 1: the line is blank; remove it$"):
        read_table(tmp_path / "a.csv", columns)


def test_only_temporary_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        kept = [
            tmp_path / ".mine.part", tmp_path / ".archive.part", tmp_path / ".7.part", tmp_path / ".a.12345678.part",
            tmp_path / "a.csv.9999999.part", tmp_path / f".a.csv.{alive.pid}.part", inner / ".a.csv.1.part",
        ]  # fmt: skip
        left = [tmp_path / f".a.csv.{GONE}.part", inner / f".b.{GONE}.part", inner / f".own.{os.getpid()}.part"]
        for path in (*kept, *left):
            path.touch()
        kept[1].unlink()
        kept[1].mkdir()
        left[1].unlink()
        (left[1] / "c").mkdir(parents=True)
        (tmp_path / f".link.{GONE}.part").symlink_to(kept[1])
        with replacing(inner / "new.txt") as temporary:
            temporary.write_text("half")
            remove_parts(tmp_path)
            assert temporary.is_file(), "this process writes it"
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file() or ".part" in path.name) == sorted(
            [*kept, inner / "new.txt"]
        )
        alive.communicate(b"\n", timeout=60)
    remove_parts(tmp_path)
    assert not kept[5].exists(), "its process is gone by now"


def test_writing_a_folder_keeps_the_temporary_folders_of_running_processes(tmp_path: Path) -> None:
    others = [tmp_path / f".model.{os.getppid()}.part", tmp_path / f".mode.{GONE}.part", tmp_path / ".model.part"]
    for path in (*others, tmp_path / f".model.{GONE}.part"):
        path.mkdir()
    with replacing_folder(tmp_path / "model") as temporary:
        assert temporary.name == f".model.{os.getpid()}.part"
        (temporary / "a").write_text("a")
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "model"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """fsync and replace in their order, with the name of the file."""
    found: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def spied_fsync(number: int) -> None:
        found.append(("fsync", Path(f"/proc/self/fd/{number}").readlink().name))
        fsync(number)

    def spied_replace(source: Path, target: Path) -> None:
        found.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spied_fsync)
    monkeypatch.setattr(os, "replace", spied_replace)
    return found


def test_replacing_a_file_syncs_the_new_file_then_renames_it_then_syncs_the_folder(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("a")
        assert calls == []
    assert calls == [("fsync", temporary.name), ("replace", "a.txt"), ("fsync", tmp_path.name)]


def test_folder_content_is_synced_before_the_folder_is_renamed(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    with replacing_folder(tmp_path / "model") as temporary:
        (temporary / "text").mkdir()
        (temporary / "text" / "b").write_text("b")
        (temporary / "a").write_text("a")
    *first, replaced, last = calls
    assert sorted(first) == [("fsync", name) for name in sorted([temporary.name, "a", "b", "text"])]
    assert (replaced, last) == (("replace", "model"), ("fsync", tmp_path.name))


@pytest.mark.parametrize("write", [replacing, replacing_folder])
def test_error_of_a_failed_write_names_the_target_file(
    tmp_path: Path, write: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").touch()

    def fill() -> None:
        with write(tmp_path / "a") as temporary:
            (temporary if write is replacing else temporary / "b").write_text("b")

    with pytest.raises(OSError, match=r"Is a directory|Directory not empty") as caught:
        fill()
    assert caught.value.filename == str(tmp_path / "a")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "full"]


@pytest.mark.parametrize("name", ["a" * 251, "a" * 255, "ä" * 127, "狗" * 85])
def test_files_with_the_longest_allowed_names_are_written(name: str, tmp_path: Path) -> None:
    with lock_of(tmp_path / name):
        write_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"
    with replacing_folder(tmp_path / "in" / name) as temporary:
        (temporary / "file").touch()
        assert len(os.fsencode(temporary.name)) <= 255
    assert (tmp_path / "in" / name / "file").exists()
    other = name[:-1] + "b"
    assert short_name(name, 200) != short_name(other, 200), "names that differ at their end stay apart"
    left = tmp_path / f".{short_name(name)}.{GONE}.part"
    left.touch()
    remove_parts(tmp_path)
    assert not left.exists()


def test_function_quick_sha256_hashes_the_start_and_the_end_and_the_size_of_a_file(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    content = draw.integers(0, 256, 300_000, np.uint8).tobytes()
    paths = {name: tmp_path / name for name in ("one", "same", "start", "end", "longer", "middle")}
    for path, data in zip(
        paths.values(),
        (
            content,
            content,
            b"x" + content[1:],
            content[:-1] + b"x",
            content + b"x",
            content[:150_000] + b"x" + content[150_001:],
        ),
        strict=True,
    ):
        path.write_bytes(data)
    found = {name: quick_sha256(path) for name, path in paths.items()}
    assert found["one"] == found["same"] == found["middle"] != content_key(paths["one"])
    assert len({found[name] for name in ("one", "start", "end", "longer")}) == 4


def test_function_quick_sha256_hashes_the_whole_file_if_the_start_and_the_end_are_silent(tmp_path: Path) -> None:
    for name, level in (("one", 1), ("other", 2)):
        wave = np.zeros(200_000, np.int16)
        wave[100_000] = level
        soundfile.write(tmp_path / f"{name}.wav", wave, 44_100)
    one, other = tmp_path / "one.wav", tmp_path / "other.wav"
    assert quick_sha256(one) == content_key(one)
    assert quick_sha256(one) != quick_sha256(other)
