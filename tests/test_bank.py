"""The bank of series: whole after kills, refused when something else made it, one writer at a time."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from system.bank import Bank, open_bank
from system.errors import KitError


def series(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(1 + n % 5, 6)).astype(np.float32)


def fill(bank: Bank, keys: range) -> list[str]:
    return list(bank.add((str(n), series(n)) for n in keys))


def test_bank_gives_back_what_was_stored(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {"a": 1})
    assert fill(bank, range(20)) == [str(n) for n in range(20)]
    assert fill(bank, range(10, 25)) == [str(n) for n in range(20, 25)]
    for again in (bank, open_bank(tmp_path / "b", 6, "float16", {"a": 1})):
        assert len(again) == 25
        for n in range(25):
            assert np.array_equal(again.read(str(n)), series(n).astype(np.float16))
    with pytest.raises(KeyError):
        bank.read("none")


@pytest.mark.parametrize("cut", ["index", "index line", "frames", "both"])
def test_a_half_written_bank_keeps_what_is_whole(tmp_path: Path, cut: str) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {})
    fill(bank, range(10))
    index, frames = tmp_path / "b/index.jsonl", tmp_path / "b/frames.bin"
    kept = 9
    if cut == "index":
        index.write_bytes(index.read_bytes()[:-5])
    elif cut == "index line":
        index.write_bytes(index.read_bytes() + b'{"key": "x", "fi')
        frames.write_bytes(frames.read_bytes() + b"123456789")
        kept = 10
    else:
        frames.write_bytes(frames.read_bytes()[:-3])
        if cut == "both":
            index.write_bytes(index.read_bytes()[:-1])
    again = open_bank(tmp_path / "b", 6, "float16", {})
    assert len(again) == kept
    assert all(np.array_equal(again.read(str(n)), series(n).astype(np.float16)) for n in range(kept))
    assert fill(again, range(12)) == [str(n) for n in range(kept, 12)]
    final = open_bank(tmp_path / "b", 6, "float16", {})
    assert all(np.array_equal(final.read(str(n)), series(n).astype(np.float16)) for n in range(12))


def test_bank_refuses_what_something_else_made(tmp_path: Path) -> None:
    open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})
    for dim, dtype, identity in ((7, "float16", {"made by": "a"}), (6, "float16", {"made by": "b"})):
        with pytest.raises(KitError, match="was made by"):
            open_bank(tmp_path / "b", dim, dtype, identity)
    (tmp_path / "b/bank.json").write_text("{")
    with pytest.raises(KitError, match="is damaged; delete"):
        open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})


def test_bank_refuses_frames_of_another_shape_and_keeps_the_rest(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {})
    fill(bank, range(3))
    for wrong in (np.zeros((2, 5)), np.zeros((0, 6)), np.zeros(6)):
        with pytest.raises(KitError, match="do not fit"):
            list(bank.add([("w", wrong)]))
    assert len(open_bank(tmp_path / "b", 6, "float16", {})) == 3


def test_a_second_writer_waits_and_sees_what_the_first_stored(tmp_path: Path) -> None:
    bank, second = (open_bank(tmp_path / "b", 6, "float16", {}) for _ in range(2))
    asked: list[int] = []

    def offered() -> Iterator[tuple[str, np.ndarray]]:
        for n in range(5):
            asked.append(n)
            yield str(n), series(n)

    writing = bank.add((str(n), series(n)) for n in range(3))
    next(writing)
    added: list[str] = []
    thread = threading.Thread(target=lambda: added.extend(second.add(offered())))
    thread.start()
    time.sleep(0.2)
    assert asked == [], "the second writer did not wait"
    assert list(writing) == ["1", "2"]
    thread.join()
    assert added == ["3", "4"]
    final = open_bank(tmp_path / "b", 6, "float16", {})
    assert all(np.array_equal(final.read(str(n)), series(n).astype(np.float16)) for n in range(5))
