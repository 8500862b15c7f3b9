"""Locks: one process at a time, a separate file, released whenever the holder ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from data_tools.errors import DataError
from data_tools.locks import lock_of

HOLD = "import sys, pathlib\nfrom data_tools.locks import lock_of\n"
HOLD += "with lock_of(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    input()"


def require_free(path: Path) -> None:
    with lock_of(path):
        pass


def test_lock_is_a_separate_file_next_to_the_locked_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2\n")
    with lock_of(path):
        assert {one.name for one in tmp_path.iterdir()} == {"a.csv", "a.csv.lock"}
        assert path.read_bytes() == b"a,b\n1,2\n"
        with pytest.raises(DataError) as error, lock_of(path):
            pass
        assert str(error.value) == f"{path}: another process is writing to it; wait for its end or stop it"
        require_free(tmp_path / "b.csv")
    assert path.read_bytes() == b"a,b\n1,2\n"
    require_free(path)


def test_lock_is_released_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filelock.BaseFileLock.__del__", lambda lock: None)  # the block's end frees it, no collection
    with pytest.raises(ZeroDivisionError), lock_of(tmp_path / "a.csv"):
        raise ZeroDivisionError
    require_free(tmp_path / "a.csv")


def test_lock_of_a_killed_process_is_free(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "a.csv"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(DataError, match="another process is writing to it"):
                require_free(path)
        finally:
            holder.kill()
    require_free(path)
