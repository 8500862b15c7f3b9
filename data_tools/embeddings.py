"""Embeddings of clips or texts in files.

Embeddings that a program computed, one per clip or text, in .npz, .parquet or .npy files.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_tools.errors import KitError, first_line
from data_tools.files import read_text, require_file
from data_tools.manifest import Clip

# N rows, D values of an embedding

Kind = Literal["clip", "caption"]
NAME_COLUMNS: dict[Kind, str] = {"clip": "id", "caption": "text"}  # the column that names a row
HINT = "see the section Embeddings of another model in system/GUIDE.md"


class Vectors:
    """Embeddings by name, with the methods of a bank of frames: each embedding is an array (1, D) float32."""

    threads = None  # reading takes no computation
    dtype = np.dtype(np.float32)

    def __init__(self, rows: Mapping[str, np.ndarray], dim: int) -> None:
        """Store embeddings. rows: Dict from name to embedding (D,). dim: D."""
        self._rows, self.dim = rows, dim

    def __contains__(self, name: str) -> bool:
        """Return whether there is an embedding with this name."""
        return name in self._rows

    def name_of(self, clip: Clip) -> str | None:
        """Return the name of a clip's embedding: its id, or else its file name. None if it has no embedding."""
        return next((name for name in (clip.id, clip.file_name) if name in self._rows), None)

    def require_dim(self, dim: int, files: Sequence[Path | str]) -> "Vectors":
        """Return these embeddings unchanged. Raises KitError if an embedding does not have `dim` values."""
        if self.dim != dim:
            named = " and ".join(map(str, files))
            raise KitError(f"{named}: each embedding has {self.dim} values, but `dim` is {dim}; correct `dim`")
        return self

    def rows_of(self, name: str) -> int:
        """Return 1, the number of rows of any embedding."""
        return 1

    def read(self, name: str) -> np.ndarray:
        """Return the embedding (1, D) float32 of a name. Raises KeyError for an unknown name."""
        return self._rows[name][None].astype(np.float32)

    def part(self, name: str, first: int, count: int) -> np.ndarray:
        """Return rows `first` to `first + count` (excluded) of the embedding (1, D) of a name, as Bank.part does."""
        return self.read(name)[first : first + count]


def read_vectors(files: Sequence[Path | str], kind: Kind, column: str | None = None) -> Vectors:
    """Read the embeddings of clips or captions from files. column: Array or column with their names.

    The files read last stay in memory.
    .npz: Arrays `embedding`, (N, D) for N clips or captions, and `id` (for clips) or `text` (for captions), and
    optionally `kind`, clip or caption; `lbar embeddings` writes such a file. .parquet: The same columns.
    .npy: The array (N, D); the file NAME.txt next to it has a name per line.

    kind: "clip" or "caption". If a file has the array `kind`, only its rows of this kind are read.
    column: If None, the names are in `id` for clips, and in `text` for captions.
    Raises KitError for other files, values that are not finite, files of different D, and a name with two different
    embeddings.
    """
    for path in all_files(files):
        require_file(path, HINT)
    states = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in all_files(files))
    return _read(tuple(map(str, files)), states, kind, column or NAME_COLUMNS[kind])


def all_files(files: Sequence[Path | str]) -> list[Path]:
    """Return the paths of files of embeddings, and after each .npy file the path of the .txt file with its names."""
    paths = [Path(file) for file in files]
    return [one for path in paths for one in ([path, path.with_suffix(".txt")] if path.suffix == ".npy" else [path])]


@lru_cache(maxsize=4)
def _read(files: tuple[str, ...], states: tuple[tuple[int, int], ...], kind: Kind, column: str) -> Vectors:
    """Read the embeddings of clips or captions. column: Name of the array or column with their names.

    Results are cached. states: Size and time of change of each file, so that a changed file is read again.
    """
    rows: dict[str, np.ndarray] = {}
    widths: dict[int, str] = {}
    for file in files:
        if (read := _READERS.get(Path(file).suffix)) is None:
            raise KitError(f"{file}: is not a .npz, .parquet or .npy file of embeddings; {HINT}")
        try:
            names, values = read(Path(file), kind, column)
            _require_matrix(names, values)
        except KitError:
            raise
        except Exception as error:  # readers of damaged files raise many kinds
            raise KitError(f"{file}: cannot be read as embeddings ({first_line(error)}); {HINT}") from error
        widths[values.shape[1]] = file
        for name, row in zip(names, values, strict=True):
            if not np.array_equal(rows.setdefault(name, row), row):
                cure = (
                    "name the rows by the clips' ids in the manifest"
                    if kind == "clip"
                    else "give each text one embedding"
                )
                raise KitError(f"{file}: has a second, different embedding of {name[:60]!r}; {cure}")
    if len(widths) > 1:
        sizes = " and ".join(f"{file} ({size} values)" for size, file in widths.items())
        raise KitError(f"the files have embeddings of different sizes: {sizes}; give files of one model")
    return Vectors(rows, *widths)


def _require_matrix(names: Sequence[str], values: np.ndarray) -> None:
    """Raise ValueError unless the values are a matrix of finite numbers with a row per name."""
    if not len(values):
        raise ValueError("the file has no embedding")
    if values.ndim != 2 or values.dtype.kind not in "fiu" or 0 in values.shape:
        raise ValueError(
            f"the array of embeddings is {values.dtype} of shape {values.shape}, but must be a matrix of numbers"
        )
    if len(names) != len(values):
        raise ValueError(f"the file has {len(names):,} names for {len(values):,} embeddings; each embedding needs one")
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32)).all():
            raise ValueError("some embeddings have infinite or NaN values")


def _read_npz(path: Path, kind: Kind, column: str) -> tuple[list[str], np.ndarray]:
    """Read the names and embeddings of clips or captions (`kind`) from a .npz file. column: Array with the names."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        if missing := {column, "embedding"} - set(content.files):
            raise ValueError(f"the file has no array {min(missing)}")
        names, values = content[column], content["embedding"]
        chosen = content["kind"] == kind if "kind" in content else slice(None)
    return _row_names(names[chosen].tolist()), values[chosen]


def _read_parquet(path: Path, kind: Kind, column: str) -> tuple[list[str], np.ndarray]:
    """Read the names and embeddings of clips or captions (`kind`) from a .parquet file. column: Column of the names."""
    import pyarrow.compute
    from pyarrow import parquet

    present = parquet.read_schema(path).names
    if missing := {column, "embedding"} - set(present):
        raise ValueError(f"the file has no column {min(missing)}")
    table: Any = parquet.read_table(path, columns=[column, "embedding", *(["kind"] if "kind" in present else [])])
    if "kind" in present:
        table = table.filter(pyarrow.compute.equal(table["kind"], kind))
    return _row_names(table[column].to_pylist()), np.stack(table["embedding"].to_numpy())


def _read_npy(path: Path, kind: Kind, column: str) -> tuple[list[str], np.ndarray]:
    """Return the names in the .txt file next to a .npy file, and the .npy file's embeddings. kind, column: Not used."""
    lines = read_text(path.with_suffix(".txt")).replace("\r\n", "\n").removesuffix("\n").split("\n")
    return lines, np.load(path, allow_pickle=False)


def _row_names(names: Sequence[Any]) -> list[str]:
    """Convert the names of embeddings to texts. Raises ValueError for a name that is not a text or whole number."""
    if other := next((name for name in names if not isinstance(name, str | int)), None):
        raise ValueError(f"the name of a row is {other!r}, not text")
    if None in names:
        raise ValueError("a row of embeddings has no name")
    return list(map(str, names))


_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".npy": _read_npy}
