"""Files: written whole, locked, hashed, and read with the place of a fault."""

import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from data_tools.errors import KitError
from data_tools.files import (
    checksum,
    is_locked,
    lock_of,
    quick_checksum,
    read_json,
    remove_parts,
    replacing,
    replacing_folder,
    write_json,
    write_text,
)
from data_tools.settings import parse, read_shaped

GONE = 9_999_999  # more than Linux has processes
HOLD = "import sys, pathlib\nfrom data_tools.files import lock_of\n"
HOLD += "with lock_of(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    input()"


def test_only_temporary_files_of_ended_processes_are_removed(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        kept = [tmp_path / ".mine.part", tmp_path / "a.csv.9999999.part", tmp_path / f".a.csv.{alive.pid}.part"]
        left = [tmp_path / f".a.csv.{GONE}.part", inner / f".b.{GONE}.part"]
        for path in (*kept, *left):
            path.touch()
        left[1].unlink()
        (left[1] / "c").mkdir(parents=True)
        with replacing(inner / "new.txt") as temporary:
            temporary.write_text("half")
            remove_parts(tmp_path)
            assert temporary.is_file(), "this process writes it"
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted([*kept, inner / "new.txt"])
        alive.communicate(b"\n", timeout=60)
    remove_parts(tmp_path)
    assert not kept[2].exists(), "its process is gone by now"


@pytest.mark.parametrize("write", [replacing, replacing_folder])
def test_error_of_a_failed_write_names_the_target_and_leaves_nothing(tmp_path, write):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").touch()

    def fill() -> None:
        with write(tmp_path / "a") as temporary:
            (temporary if write is replacing else temporary / "b").write_text("b")

    with pytest.raises(OSError, match=r"Is a directory|Directory not empty") as caught:
        fill()
    assert caught.value.filename == str(tmp_path / "a")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "full"]


def test_error_of_a_read_only_disk_names_the_file_that_was_asked_for(tmp_path, monkeypatch):
    def refuses(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_text", refuses)
    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_text(tmp_path / "a", "text")
    assert caught.value.filename == str(tmp_path / "a")


@pytest.mark.parametrize("name", ["a" * 255, "狗" * 85])
def test_files_with_the_longest_allowed_names_are_written(name, tmp_path):
    with lock_of(tmp_path / name):
        write_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_the_present_folder_is_locked_as_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with lock_of(Path()):
        assert is_locked(tmp_path / "out.lock")


def test_lock_keeps_other_processes_out_until_its_holder_ends_or_dies(tmp_path, root):
    path = tmp_path / "a.csv"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(KitError, match="another process"), lock_of(path):
                pass
        finally:
            holder.kill()
    for _ in range(2):
        with lock_of(path):
            pass


def test_two_threads_replace_one_file_at_once(tmp_path):
    def write(text: str) -> None:
        with replacing(tmp_path / "a") as part:
            part.write_text(text)

    with replacing(tmp_path / "a") as part, ThreadPoolExecutor(1) as threads:
        part.write_text("later")
        threads.submit(write, "earlier").result()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "later")]


def test_quick_checksum_reads_the_size_the_ends_and_short_blocks(tmp_path):
    content = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
    contents = {
        "one": content,
        "same": content,
        "start": b"x" + content[1:],
        "end": content[:-1] + b"x",
        "longer": content + b"x",
        "inner block": content[:150_000] + b"x" + content[150_001:],  # of 1 KiB from 149,984 on
        "elsewhere": content[:152_000] + b"x" + content[152_001:],
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    found = {name: quick_checksum(tmp_path / name) for name in contents}
    assert found["one"] == found["same"] == found["elsewhere"] != checksum(tmp_path / "one")
    assert len({found[name] for name in ("one", "start", "end", "longer")}) == 4
    for name, value in ("silence", 0), ("an event", 9):  # of .4 s in a recording of a minute
        (tmp_path / name).write_bytes(bytes(5_100_000) + bytes([value]) * 70_000 + bytes(5_000_000))
    assert quick_checksum(tmp_path / "silence") != quick_checksum(tmp_path / "an event")


class _Point(BaseModel):
    model_config = {"strict": True, "extra": "forbid"}
    x: int
    tags: list[str] = []


def test_json_survives_a_round_trip_and_its_faults_have_a_place(tmp_path):
    path = tmp_path / "p.json"
    write_json(path, {"x": 3, "tags": ["日本\n"]})
    assert read_json(path) == {"x": 3, "tags": ["日本\n"]}
    assert read_shaped(path, _Point, "") == _Point(x=3, tags=["日本\n"])
    for text, words in (
        ('{"x": 3,\n "tags": ["a", 1]}', r"tags\.1.*again"),
        ("{}", "x: .*again"),
        ('{"x":\n 3', "line 2: not JSON"),
        ("", "empty"),
    ):
        path.write_text(text)
        with pytest.raises(KitError, match=f"p.json.*{words}"):
            read_shaped(path, _Point, "make it again")
    with pytest.raises(KitError, match=r"none\.json"):
        read_json(tmp_path / "none.json")


YAML = 'rate: 1e-4\nanswer: yes\ntext: "7"\nnone: ~\nlist: [1, {deep: .5}]\nsame: &a [x]\nagain: *a\n'


def test_yaml_has_the_values_of_version_1_2_and_the_line_of_each():
    found = parse(YAML)
    assert not found.problems
    assert found.value == {
        "rate": 1e-4, "answer": "yes", "text": "7", "none": None, "list": [1, {"deep": 0.5}], "same": ["x"],
        "again": ["x"],
    }  # fmt: skip
    assert parse("seed: " + "9" * 5000).value["seed"] == float("inf"), "Python reads no whole number so long"
    assert (found.line(("list", 1, "deep")), found.line(("again", 0)), found.line(("same", "else"))) == (5, 6, 6)
    for text, line in (("a: 1\nb: 2\na: 3", 3), ("a: [1\nb: 2", 2)):
        ((_, found_line, _),) = parse(text).problems
        assert found_line == line, text
