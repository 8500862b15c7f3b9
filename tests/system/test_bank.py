"""The bank of series: whole after kills, refused when something else made it, one writer at a time."""

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import store_all

from data_tools.errors import KitError
from system.features.bank import Bank, keys_in, open_bank
from system.features.shared_work import SharedWork, shared_work


def series(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(1 + n % 5, 6)).astype(np.float32)


def fill(bank: Bank, keys: range) -> list[str]:
    return store_all(bank, ((str(n), series(n)) for n in keys))


def first_row(bank: Bank, key: str) -> int:
    return bank.shards()[0].span(key)[0]


def test_series_stored_in_a_bank_are_returned_unchanged(tmp_path: Path) -> None:
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
def test_truncated_bank_keeps_complete_series(tmp_path: Path, cut: str) -> None:
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


def test_bank_of_other_settings_is_refused(tmp_path: Path) -> None:
    open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})
    for dim, dtype, identity in ((7, "float16", {"made by": "a"}), (6, "float16", {"made by": "b"})):
        with pytest.raises(KitError, match="computed"):
            open_bank(tmp_path / "b", dim, dtype, identity)
    (tmp_path / "b/bank.json").write_text("{")
    with pytest.raises(KitError, match="damaged"):
        open_bank(tmp_path / "b", 6, "float16", {"made by": "a"})


def test_frames_of_wrong_shape_are_refused_and_others_kept(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float16", {})
    fill(bank, range(3))
    for wrong in (np.zeros((2, 5)), np.zeros((0, 6)), np.zeros(6)):
        with pytest.raises(KitError, match="stored"):
            store_all(bank, [("w", wrong)])
    assert len(open_bank(tmp_path / "b", 6, "float16", {})) == 3


def test_second_writer_of_a_bank_waits_and_skips_stored_series(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bank, second = (open_bank(tmp_path / "b", 6, "float16", {}) for _ in range(2))
    asked: list[int] = []

    def offered() -> Iterator[tuple[str, np.ndarray]]:
        for n in range(5):
            asked.append(n)
            yield str(n), series(n)

    added: list[str] = []
    thread = threading.Thread(target=lambda: added.extend(store_all(second, offered())))
    with bank.writing() as store:
        store("0", series(0))
        thread.start()
        time.sleep(0.2)
        assert asked == [], "the second writer did not wait"
        store("1", series(1))
        store("2", series(2))
    thread.join()
    assert caplog.messages == [f"waiting for another process that is adding to {tmp_path / 'b'}"]
    assert added == ["3", "4"]
    final = open_bank(tmp_path / "b", 6, "float16", {})
    assert all(np.array_equal(final.read(str(n)), series(n).astype(np.float16)) for n in range(5))


def rewrite_index(folder: Path, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    index = folder / "index.jsonl"
    index.write_bytes(b"".join(edit(index.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize(
    "line",
    [b"{\n", b"[]\n", b"3\n", b'{"key": "4", "first": -3, "rows": 2}\n',
     b'{"key": "4", "first": true, "rows": 2}\n', b'{"key": "4", "first": 0, "rows": 0}\n',
     b'{"key": 4, "first": 0, "rows": 1}\n', b'{"key": "4", "first": 0, "rows": 999999}\n'],
)  # fmt: skip
def test_damaged_index_line_is_refused_and_dropped_by_verify(tmp_path: Path, line: bytes) -> None:
    """A kill truncates only the end of the index, so a bad line before a complete one is damage."""
    fill(open_bank(tmp_path / "b", 6, "float32", {}), range(10))
    rewrite_index(tmp_path / "b", lambda lines: [*lines[:4], line, *lines[5:]])
    with pytest.raises(KitError, match="line 5"):
        open_bank(tmp_path / "b", 6, "float32", {})
    bank = open_bank(tmp_path / "b", 6, "float32", {}, verify=True)
    assert set(bank.keys()) == {str(n) for n in range(10) if n != 4}
    assert fill(bank, range(10)) == ["4"]
    again = open_bank(tmp_path / "b", 6, "float32", {})
    assert all(np.array_equal(again.read(str(n)), series(n)) for n in range(10))


def test_changed_rows_or_key_of_a_bank_entry_fail_its_checksum(tmp_path: Path) -> None:
    fill(open_bank(tmp_path / "b", 6, "float32", {}), range(10))  # series 5 and 10 have one row, 6 two
    item = json.loads((tmp_path / "b/index.jsonl").read_bytes().splitlines()[5])
    moved = json.dumps(item | {"first": item["first"] - 1}).encode() + b"\n"
    rewrite_index(tmp_path / "b", lambda lines: [*lines[:5], moved, *lines[6:]])
    with pytest.raises(KitError, match="damaged"):
        open_bank(tmp_path / "b", 6, "float32", {}).read("5")
    renamed = json.dumps(item | {"key": "50"}).encode() + b"\n"
    rewrite_index(tmp_path / "b", lambda lines: [*lines[:5], renamed, *lines[6:]])
    with pytest.raises(KitError, match="damaged"):
        open_bank(tmp_path / "b", 6, "float32", {}).read("50")


def test_bank_index_without_checksums_is_refused_as_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    bank = open_bank(folder, 6, "float32", {})
    fill(bank, range(4))
    bank.read("2")
    data = bytearray((folder / "frames.bin").read_bytes())
    data[first_row(bank, "2") * 24] ^= 1
    (folder / "frames.bin").write_bytes(data)
    bank.read("2")  # it was whole when it was read first
    with pytest.raises(KitError, match="frames"):
        open_bank(folder, 6, "float32", {}).read("2")

    def without_checksums(lines: list[bytes]) -> list[bytes]:
        items = [{key: value for key, value in json.loads(line).items() if key != "crc32"} for line in lines]
        return [json.dumps(item).encode() + b"\n" for item in items]

    rewrite_index(folder, without_checksums)
    verified = open_bank(folder, 6, "float32", {}, verify=True)
    assert len(verified) == 0
    assert fill(verified, range(6)) == [str(number) for number in range(6)]
    assert open_bank(folder, 6, "float32", {}).drop_damaged() == 0


def test_unwritten_frames_after_power_cut_are_computed_again(tmp_path: Path) -> None:
    """The index reached the disk, the last frames did not: the file is as long, and zero."""
    folder = tmp_path / "b"
    bank = open_bank(folder, 6, "float32", {})
    fill(bank, range(6))
    start = first_row(bank, "4") * 24
    data = (folder / "frames.bin").read_bytes()
    (folder / "frames.bin").write_bytes(data[:start] + b"\0" * (len(data) - start))
    bank = open_bank(folder, 6, "float32", {}, verify=True)
    assert fill(bank, range(6)) == ["4", "5"]
    assert all(np.array_equal(bank.read(str(n)), series(n)) for n in range(6))


@pytest.mark.parametrize("lost", ["frames cut", "no frames", "last line damaged"])
def test_last_series_lost_from_a_bank_are_reported_and_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    folder = tmp_path / "b"
    bank = open_bank(folder, 6, "float32", {})
    fill(bank, range(6))
    frames = folder / "frames.bin"
    if lost == "frames cut":
        frames.write_bytes(frames.read_bytes()[: first_row(bank, "4") * 24 + 5])
    elif lost == "no frames":
        frames.unlink()
    else:
        rewrite_index(folder, lambda lines: [*lines[:-1], lines[-1].replace(b"rows", b"r")])
    count = {"frames cut": 2, "no frames": 6, "last line damaged": 1}[lost]
    bank = open_bank(folder, 6, "float32", {})
    assert f"the last {count} of 6 series of frames are lost or damaged" in caplog.text
    assert len(fill(bank, range(6))) == count
    assert all(np.array_equal(bank.read(str(n)), series(n)) for n in range(6))


def test_temporary_files_of_killed_writer_are_removed(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float32", {})
    left = tmp_path / "b/.index.jsonl.9999999.part"  # no process has that number
    left.write_bytes(b"half")
    fill(bank, range(2))
    assert not left.exists()


def test_full_disk_writes_no_index_line_without_frames(tmp_path: Path) -> None:
    """A disk that is full at the frames leaves no line that tells of them."""

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    bank, index = open_bank(tmp_path / "b", 6, "float32", {}), io.BytesIO()
    with pytest.raises(OSError, match="No space left"):
        bank.shards()[0]._append(Full(), index, "1", series(1))
    assert index.getvalue() == b""
    assert "1" not in bank


def test_series_dropped_by_another_process_is_stored_again(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float32", {})
    fill(bank, range(6))
    rewrite_index(tmp_path / "b", lambda lines: [line for line in lines if b'"key": "4"' not in line])
    assert fill(bank, range(6)) == ["4"]


def test_concurrent_writers_use_two_shards_of_one_bank(tmp_path: Path) -> None:
    first, second, reader = (open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(3))
    with shared_work(first, {str(n): 1.0 for n in range(4)}, (2, 9.0)) as one:
        assert list(islice(one.take_keys(), 2)) == ["0", "1"]
        one.store("0", series(0))
        with shared_work(second, {str(n): 1.0 for n in range(4)}, (9, 9.0)) as other:
            assert list(islice(other.take_keys(), 1)) == ["2"], "one of two, for two work"
            other.store("2", series(2))
            assert "2" not in reader
            reader.read_new_lines()
            assert sorted(reader.keys()) == ["0", "2"]
            assert len(reader) == 2
            assert reader.rows_of("2") == 3
            assert np.array_equal(reader.read("2"), series(2))
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        "bank.json", "frames.bin", "index.jsonl", "lock", "dealing.lock", "shard-1"
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "b/shard-1").iterdir()} == {"frames.bin", "index.jsonl", "lock"}
    assert fill(open_bank(tmp_path / "b", 6, "float32", {}), range(4)) == ["1", "3"]
    assert keys_in(tmp_path / "b") == {"0", "1", "2", "3"}


def test_longest_series_are_computed_first_in_small_groups(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float32", {})
    seconds = {"a": 5.0, "b": 200.0, "c": 70.0, "d": 70.0, "e": 5.0}
    with shared_work(bank, seconds, (16, 120.0)) as work:
        given = []
        for key in work.take_keys():
            given.append((key, sorted(json.loads((tmp_path / "b/under_way.json").read_text()))))
            work.drop(key)
    assert given == [("b", ["b"]), ("c", ["c", "d"]), ("d", ["c", "d"]), ("a", ["a", "e"]), ("e", ["a", "e"])]


def test_unfinished_series_of_another_process_are_computed_by_the_waiting_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = (open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(2))
    wanted = {str(n): 1.0 for n in range(3)}
    found: list[str] = []

    def wait() -> None:
        with shared_work(second, wanted, (9, 9.0)) as work:
            while work.wait_for_keys():
                for key in work.take_keys():
                    found.append(key)
                    work.store(key, series(int(key)))
            assert work.stored_elsewhere() == 2

    thread = threading.Thread(target=wait)
    with shared_work(first, wanted, (9, 9.0)) as work:
        assert next(work.take_keys()) == "0"
        thread.start()
        time.sleep(0.3)
        work.store("0", series(0))
        assert found == []
        work.store("2", series(2))
    thread.join()
    assert found == ["1"], "the first ended without it"
    assert sum("waiting for another process that computes frames" in message for message in caplog.messages) == 1
    assert "waiting for another process that computes frames of 3 clips for " in caplog.text


def test_series_reserved_by_a_dead_process_are_computed_by_another(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b", 6, "float32", {})
    for notes in (b'["0", "1"]', b'["0", "1', b"3", b"[[]]"):
        (tmp_path / "b/under_way.json").write_bytes(notes)
        with shared_work(bank, {"0": 1.0, "1": 1.0}, (9, 9.0)) as work:
            assert list(islice(work.take_keys(), 2)) == ["0", "1"]


def test_series_dropped_by_one_process_is_computed_by_another_after_a_kill(tmp_path: Path) -> None:
    """It stays in the notes up to the process's next look at the bank."""
    wanted, notes = {str(n): 1.0 for n in range(3)}, tmp_path / "b/under_way.json"
    one, other, third = (open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(3))
    killed = SharedWork(one, wanted, (2, 9.0))
    assert next(killed.take_keys()) == "0"
    killed.drop("0")
    assert json.loads(notes.read_text()) == ["0", "1"]
    assert killed._release is not None
    killed._release()  # as the system does at a kill
    with shared_work(other, wanted, (2, 9.0)) as work:
        assert next(work.take_keys()) == "0", "tried again"
        work.drop("0")
        assert next(work.take_keys()) == "1"
        with shared_work(third, wanted, (9, 9.0)) as beyond:
            assert list(beyond.take_keys()) == ["2"]
            beyond.store("2", series(2))
            work.store("1", series(1))
            assert not list(work.take_keys())
            assert json.loads(notes.read_text()) == []
            assert beyond.wait_for_keys()
            assert list(beyond.take_keys()) == ["0"]
            beyond.drop("0")
            assert not beyond.wait_for_keys()
    assert sorted(open_bank(tmp_path / "b", 6, "float32", {}).keys()) == ["1", "2"]


def test_locked_shard_of_a_bank_does_not_block_other_writers(tmp_path: Path) -> None:
    one, other = (open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(2))
    fill(one, [0])
    (tmp_path / "b/under_way.json").write_text('["1"]')
    with one._wait_for_shard(one.shards()[0]), shared_work(other, {"0": 1.0, "1": 1.0}, (9, 9.0)) as work:
        assert list(islice(work.take_keys(), 1)) == ["1"]


def test_shard_of_a_dead_process_is_truncated_and_reused(tmp_path: Path) -> None:
    banks = [open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(3)]
    with shared_work(banks[0], {"0": 1.0}, (9, 9.0)) as one, shared_work(banks[1], {"1": 1.0}, (9, 9.0)) as other:
        for work in (one, other):
            key = next(work.take_keys())
            work.store(key, series(int(key)))
    shard = tmp_path / "b/shard-1"
    for name, half in (("index.jsonl", b'{"key": "9", "first": 1'), ("frames.bin", b"half a series")):
        (shard / name).write_bytes((shard / name).read_bytes() + half)
    with shared_work(banks[2], {"2": 1.0}, (9, 9.0)) as one, shared_work(banks[0], {"3": 1.0}, (9, 9.0)) as other:
        for work in (one, other):
            key = next(work.take_keys())
            work.store(key, series(int(key)))
    whole = open_bank(tmp_path / "b", 6, "float32", {}, verify=True)
    assert all(np.array_equal(whole.read(str(n)), series(n)) for n in range(4))
    assert not (tmp_path / "b/shard-2").exists()


@pytest.mark.parametrize("damage", ["frames", "line"])
def test_damage_in_any_shard_of_a_bank_is_refused_and_dropped_by_verify(tmp_path: Path, damage: str) -> None:
    banks = [open_bank(tmp_path / "b", 6, "float32", {}) for _ in range(2)]
    with shared_work(banks[0], {"0": 1.0}, (9, 9.0)) as work:
        work.store(next(work.take_keys()), series(0))
        fill_shard(banks[1], range(1, 5))
    if damage == "frames":
        frames = tmp_path / "b/shard-1/frames.bin"
        frames.write_bytes(b"\1" + frames.read_bytes()[1:])
        with pytest.raises(KitError, match="delete"):
            open_bank(tmp_path / "b", 6, "float32", {}).read("1")
    else:
        rewrite_index(tmp_path / "b/shard-1", lambda lines: [b"{}\n", *lines[1:]])
        with pytest.raises(KitError, match="line 1"):
            open_bank(tmp_path / "b", 6, "float32", {})
    mended = open_bank(tmp_path / "b", 6, "float32", {}, verify=True)
    assert sorted(mended.keys()) == ["0", "2", "3", "4"]
    assert fill(mended, range(5)) == ["1"]
    assert all(np.array_equal(mended.read(str(n)), series(n)) for n in range(5))


def fill_shard(bank: Bank, keys: range) -> None:
    with shared_work(bank, {str(n): 1.0 for n in keys}, (9, 9.0)) as work:
        while work.wait_for_keys():
            for key in work.take_keys():
                work.store(key, series(int(key)))


def test_index_lines_with_other_json_spacing_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces and order are as they please in JSON; the fast reading of many lines and that of one agree."""
    fill(open_bank(tmp_path / "b", 6, "float32", {}), range(30))
    expected = {str(n): len(series(n)) for n in range(30)}
    for block in (1 << 20, 300):
        monkeypatch.setattr("system.features.index.BLOCK", block)
        for foreign in (0, 7, 29):
            rewrite_index(
                tmp_path / "b",
                lambda lines, n=foreign: [
                    json.dumps(json.loads(line), separators=(",", ":")).encode() + b"\n" if index == n else line
                    for index, line in enumerate(lines)
                ],
            )
            bank = open_bank(tmp_path / "b", 6, "float32", {})
            assert {key: bank.rows_of(key) for key in bank.keys()} == expected  # noqa: SIM118
            assert all(np.array_equal(bank.read(str(n)), series(n)) for n in range(30))
            assert keys_in(tmp_path / "b") == expected.keys()
