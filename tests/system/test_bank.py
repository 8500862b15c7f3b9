"""Banks of series: several writers, cut and damaged files, other settings, many series."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.errors import KitError
from system.features.bank import Bank


def opened(folder: Path, dim: int = 4, dtype: str = "float16", version: int = 1) -> Bank:
    return Bank(folder / "bank", dim, dtype, {"version": version, "kind": "x"})


def series(rows: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 4 * rows, dtype=np.float16).reshape(rows, 4)


def files(folder: Path, kind: str) -> list[Path]:
    return sorted((folder / "bank").glob(f"*.{kind}"))


def test_stored_series_are_read_by_all_processes(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path)
    one.store("a key with blanks", series(5))
    other.store("b", series(2, 7))
    assert "b" not in one
    one.refresh()
    for bank in (one, opened(tmp_path)):
        assert sorted(bank.places) == ["a key with blanks", "b"]
        assert np.array_equal(bank.read("a key with blanks"), series(5))
        assert np.array_equal(bank.read("b"), series(2, 7))
        assert np.array_equal(bank.part("a key with blanks", 1, 3), series(5)[1:4])
        assert (bank.rows_of("b"), "c" in bank) == (2, False)
    with pytest.raises(KeyError):
        one.read("c")
    one.store("c", series(3))
    assert np.array_equal(one.read("c"), series(3)), "the file grew after it was mapped"


def test_first_copy_of_a_key_counts_and_vectors_of_other_settings_are_refused(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path)
    one.store("a", series(1))
    other.store("a", series(2))
    one.store("a", series(3))
    assert len(one.read("a")) == 1
    assert len(opened(tmp_path).read("a")) in (1, 2)
    assert sum(len(path.read_bytes().splitlines()) for path in files(tmp_path, "index")) == 2
    opened(tmp_path)
    for other in ({"dim": 5}, {"dtype": "float32"}, {"version": 2}):
        with pytest.raises(KitError, match="settings"):
            opened(tmp_path, **other)  # type: ignore[arg-type]
    (tmp_path / "bank/bank.json").write_text("{")
    with pytest.raises(KitError, match="delete"):
        opened(tmp_path)


def test_cut_line_of_a_killed_process_is_ignored(tmp_path):
    bank = opened(tmp_path)
    bank.store("a", series(1))
    bank.store("b", series(2))
    (index,) = files(tmp_path, "index")
    whole = index.read_bytes()
    for cut in range(1, len(whole) - whole.index(b"\n")):
        index.write_bytes(whole[:-cut])
        again = opened(tmp_path)
        assert list(again.places) == ["a"]
    again.store("b", series(3))
    assert len(opened(tmp_path).read("b")) == 3
    index.write_bytes(whole)
    again.refresh()
    assert len(again.read("b")) == 3, "its own"


def test_damage_is_refused_with_the_folder_to_delete(tmp_path):
    bank = opened(tmp_path)
    bank.store("a", series(1))
    bank.store("b", series(2))
    (frames,), (index,) = files(tmp_path, "frames"), files(tmp_path, "index")
    whole = frames.read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-5]):
        frames.write_bytes(content)
        with pytest.raises(KitError, match="delete"):
            opened(tmp_path).read("b")
        assert np.array_equal(opened(tmp_path).read("a"), series(1))
    frames.unlink()
    with pytest.raises(KitError, match="delete"):
        opened(tmp_path).read("b")
    index.write_bytes(b"nothing\n")
    with pytest.raises(KitError, match="delete"):
        opened(tmp_path)


def test_series_of_another_form_are_refused(tmp_path):
    for values in (np.zeros((0, 4)), np.zeros((2, 3)), np.zeros(4)):
        with pytest.raises(KitError, match="form"):
            opened(tmp_path).store("a", values)


@pytest.mark.parametrize(
    ("suffix", "error"), [(".frames", OSError(28, "No space left on device")), (".index", KeyboardInterrupt())]
)
def test_series_after_a_full_disk_or_an_interrupt_go_to_another_file(tmp_path, monkeypatch, suffix, error):
    bank = opened(tmp_path)
    bank.store("a", series(1))
    real = Path.open

    def broken_off(path: Path, *mode: Any) -> Any:
        """Write a part of the frames, or only the frames."""
        if path.suffix != suffix:
            return real(path, *mode)
        with real(path, *mode) as file:
            file.write(b"abc")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", broken_off)
        with pytest.raises(type(error)):
            bank.store("b", series(2))
    bank.store("b", series(2))
    bank.store("c", series(3))
    again = opened(tmp_path)
    assert {key: again.read(key).tolist() for key in again.places} == {
        key: series(rows).tolist() for rows, key in enumerate("abc", 1)
    }


@pytest.mark.slow
def test_hundred_thousand_series_open_in_three_seconds(tmp_path):
    bank, row = opened(tmp_path, 1), np.ones((1, 1), np.float16)
    for number in range(100_000):
        bank.store(f"{number:064x}", row)
    began = time.process_time()
    assert len(opened(tmp_path, 1).places) == 100_000
    assert time.process_time() - began < 3
