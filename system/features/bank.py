"""A bank: a folder of series of vectors by key.

    <folder>/bank.json        the settings that determine the vectors
             3f9a....frames   series, one after the other: every process writes a file of its own
             3f9a....index    a line per finished series: key, first row, rows, checksum

A series is stored once its line is complete, so that a process may be killed at any time. Nothing is locked: if two
processes compute the same series, the first one that is read counts.
"""

import json
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError, located
from data_tools.files import read_json, write_text


class Bank:
    """Series (T, D) by key on disk, T >= 1."""

    threads = None  # reading takes no computation

    def __init__(self, folder: Path, dim: int, dtype: str, identity: dict[str, Any]) -> None:
        """Open or create a bank.

        Raises:
            KitError: Its vectors were computed in another way.
        """
        self.folder, self.dim, self.dtype = folder, dim, np.dtype(dtype)
        wanted, file = {"dim": dim, "dtype": dtype, "identity": identity}, folder / "bank.json"
        self._again = f"delete {folder} and run the same command again, which computes its series again"
        if not file.exists():
            write_text(file, json.dumps(wanted, indent=1) + "\n")
        try:
            found = read_json(file)
        except KitError as error:
            raise KitError(f"{error}; {self._again}") from error
        if found != json.loads(json.dumps(wanted)):
            raise KitError(f"{folder}: computed with other settings, {found}, not {wanted}; {self._again}")
        self.places: dict[str, tuple[Path, int, int, int]] = {}  # file, first row, rows, checksum
        self._read: dict[Path, int] = {}  # bytes of each index
        self._maps: dict[Path, np.ndarray] = {}
        self._checked: set[str] = set()
        self._begin_file()
        self.refresh()

    def _begin_file(self) -> None:
        """Let this process write to a new file."""
        self._file, self._rows = self.folder / f"{uuid.uuid4().hex}.frames", 0

    def refresh(self) -> None:
        """Find what other processes have stored meanwhile."""
        for index in sorted(self.folder.glob("*.index")):
            frames, read = index.with_suffix(".frames"), self._read.get(index, 0)
            with index.open("rb") as file:
                file.seek(read)
                try:
                    for line in file:
                        if not line.endswith(b"\n"):  # of a process that was killed, or still writes
                            break
                        key, first, rows, checksum = line.decode().rsplit(" ", 3)
                        self.places.setdefault(key, (frames, int(first), int(rows), int(checksum)))
                        read += len(line)
                except ValueError as error:
                    raise KitError(f"{index} is damaged; {_cure(frames)}") from error
            self._read[index] = read

    def __contains__(self, key: str) -> bool:
        return key in self.places

    def rows_of(self, key: str) -> int:
        return self.places[key][2]

    def read(self, key: str) -> np.ndarray:
        """Return a series, a view of its file.

        Raises:
            KitError: It does not match its checksum.
        """
        file, first, rows, checksum = self.places[key]
        if len(self._maps.get(file, ())) < first + rows:
            stored = file.stat().st_size // (self.dim * self.dtype.itemsize) if file.exists() else 0
            self._maps[file] = np.memmap(file, self.dtype, "r", shape=(stored, self.dim)) if stored else np.empty(0)
        found = self._maps[file][first : first + rows]
        if key not in self._checked and (len(found) < rows or zlib.crc32(found.data) != checksum):
            raise KitError(f"{file} is damaged; {_cure(file)}")
        self._checked.add(key)
        return found

    def part(self, key: str, first: int, count: int) -> np.ndarray:
        """Return `count` rows of a series, from row `first` on."""
        return self.read(key)[first : first + count]

    def store(self, key: str, values: np.ndarray) -> None:
        """Store a series (T, D), unless its key is known."""
        if key in self:
            return
        rows = np.ascontiguousarray(values, self.dtype)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != self.dim:
            raise KitError(f"{self.folder}: a series of shape {rows.shape} has not the form (T, {self.dim})")
        file = self._file
        place = (file, self._rows, len(rows), zlib.crc32(rows.data))
        line = f"{key} {place[1]} {place[2]} {place[3]}\n".encode()
        try:
            for path, content in ((file, rows.tobytes()), (file.with_suffix(".index"), line)):
                with path.open("ab") as out:
                    out.write(content)
        except BaseException as error:  # of a full disk, or Ctrl-C; what follows goes to another file
            self._begin_file()
            if isinstance(error, OSError):
                raise located(error, file) from error
            raise
        self._rows += len(rows)
        self.places[key] = place


def _cure(file: Path) -> str:
    return f"delete it and {file.with_suffix('.index').name}, and run the same command again"
