"""Damaged files of a participant: accepted or refused, never a traceback, and quickly.

Each file gets one to three random changes of bytes, lines, numbers or brackets, and is checked again. The seed is
fixed, so that results depend only on the code.
"""

import json
import random
import re
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny
from ranked import write_truth

from data_tools.__main__ import main as data_tools
from submission.__main__ import main as submission
from system.__main__ import main as system

LONGEST = 20  # seconds of one reading
COUNT = 60
PIECES = [
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b'"', b"'", b",", b":", b"\n", b"\n\n", b"[", b"{", b"]", b"}", b"&a ",
    b"*a", b"- ", b"null", b"true", b"NaN", b"-1", b"0", b"1e999", b"9" * 5000, b"[" * 2000, b'{"a":' * 2000,
    "²".encode(), "٣".encode(), b"\\ud800", b"../../x", b"/dev/null", b"\xf0\x9f\x94\x8a",
]  # fmt: skip
NUMBERS = [b"0", b"-1", b"1e9", b"2147483648", b"1" + b"0" * 400, b"0.5", b"NaN", b'"x"', b"[]"]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to three changes of a file."""
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice([1, 2, 8, 64, 1000]))
        lines, numbers = data.split(b"\n"), list(re.finditer(rb"-?\d+(?:\.\d+)?", data))
        number = dice.choice(numbers) if numbers else None
        one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        swapped = [*lines]
        swapped[one], swapped[other] = lines[other], lines[one]
        data = dice.choice(
            [
                data[:at] + dice.randbytes(1) + data[at + 1 :],
                data[:at] + data[end:],
                data[:at],
                data[:at] + dice.choice(PIECES) + data[at:],
                data[:at] + data[at:end] * dice.choice([2, 50]) + data[end:],
                data[: number.start()] + dice.choice(NUMBERS) + data[number.end() :] if number else data,
                b"\n".join(swapped),
                b"\n".join([*lines[:one], lines[other], *lines[one:]]),
                data[:at] + dice.randbytes(end - at) + data[end:],
            ]
        )
    return data


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Checked = tuple[Path, Callable[[list[str]], int], list[str]]  # a file, and the command that reads it


@pytest.fixture
def files(unbroken, world, tmp_path):
    """The challenge's four files and a package, a manifest, captions and a recipe."""
    truth, scores = write_truth(tmp_path), unbroken / "scores/evaluation.npy"
    names = {"ranked": ("ranked.csv", "2022"), "matrix": ("matrix.csv", "2025")}
    found: dict[str, Checked] = {}
    for name, (file, edition) in names.items():
        path = tmp_path / file
        assert submission(["write", str(scores), "--out", str(path), "--edition", edition]) == 0
        found[name] = path, submission, ["check", str(path), "--edition", edition]
    for name, key in (("moments", "pred_relevant_windows"), ("moments_truth", "relevant_windows")):
        windows = [[0.0, 2.5], [3.0, 4.0]]
        lines = [{"qid": f"q{n}", "query": "a dog barks", "vid": f"v{n // 2}", key: windows} for n in range(6)]
        lines = [line | {"duration": 30} for line in lines] if key == "relevant_windows" else lines
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    moments = ["check", str(tmp_path / "moments.jsonl"), "--truth", str(tmp_path / "moments_truth.jsonl")]
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a_b_task6b_1/a_b_task6b_1.output.csv", "a_b_task6b_1/a_b_task6b_1.meta.yaml"):
            archive.writestr(f"p/task6b/{name}", "caption,file_name_1\n" * 40)
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("".join(world.read_text().splitlines(keepends=True)[:6]))
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    return found | {
        "moments": (tmp_path / "moments.jsonl", submission, moments),
        "moments_truth": (tmp_path / "moments_truth.jsonl", submission, moments),
        "package": (tmp_path / "p.zip", submission, ["check", str(tmp_path / "p.zip"), "--edition", "2022"]),
        "captions": (truth, submission, ["check", str(tmp_path / "ranked.csv"), "--truth", str(truth)]),
        "manifest": (manifest, data_tools, ["check", str(manifest)]),
        "recipe": (recipe, system, ["check", str(recipe)]),
    }


@pytest.mark.slow
def test_randomly_damaged_files_never_cause_a_traceback(files, tmp_path):
    for name, (path, main, command) in files.items():
        good, dice, begun = path.read_bytes(), random.Random(f"2022 {name}"), time.monotonic()
        statuses = []
        for number in range(COUNT):
            path.write_bytes(mutated(good, dice))
            try:
                with at_most(LONGEST):
                    statuses.append(main(command))
            except BaseException as error:
                raise AssertionError(f"{name}, mutation {number}: {type(error).__name__} for {path}") from error
        assert set(statuses) <= {0, 1, 2}
        assert statuses.count(1) > COUNT / 4, name
        path.write_bytes(good)
        print(f"{name}: {statuses.count(1)} of {COUNT} refused, {time.monotonic() - begun:.0f} s")
