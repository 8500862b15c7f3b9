"""Frames and embeddings that another program computed, in .npz and .npy files."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from data_tools.errors import AudioError, KitError, first_line
from data_tools.files import require_file
from data_tools.manifest import Clip

FRAME_SUFFIXES = (".npz", ".npy")
_PARSER = Lock()  # numpy reads headers by ast.literal_eval, which fails now and then in threads of Python 3.11
MAX_FRAME = 65_504.0  # greatest magnitude: that of float16, the type of banks


def holds_frames(path: Path | str) -> bool:
    """Return whether a file's name says that it has frames, not audio."""
    return str(path).lower().endswith(FRAME_SUFFIXES)


def read_frames(path: Path | str, array: str | None = None) -> np.ndarray:
    """Read published frames from a .npy or .npz file.

    Args:
        path: The file.
        array: Name of an array in an .npz file. None: the first.

    Returns:
        Frames, (T, D) float32, T and D >= 1, all finite.

    Raises:
        AudioError: The file is missing or damaged, or its arrays are not frames.
    """
    if not holds_frames(path) or not Path(path).is_file():
        raise AudioError(f"{path}: no such file of frames; name one that ends in {' or '.join(FRAME_SUFFIXES)}")
    try:
        with _PARSER, Path(path).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return _checked(path, loaded)
            return _checked(path, loaded[array or loaded.files[0]])
    except AudioError:
        raise
    except Exception as error:  # numpy raises many kinds for damaged files
        raise AudioError(f"{path}: cannot be read as frames ({error}); copy or save it again") from None


def _checked(path: Path | str, frames: np.ndarray) -> np.ndarray:
    if frames.ndim != 2 or not frames.size or frames.dtype.kind not in "fiu":
        raise AudioError(f"{path}: {frames.dtype} of shape {frames.shape}, not frames (time, dimension)")
    if not np.isfinite(frames).all():
        raise AudioError(f"{path}: has frames that are NaN or infinite; compute them again")
    if np.abs(frames).max() > MAX_FRAME:
        raise AudioError(f"{path}: has values above {MAX_FRAME:,.0f}, the range of float16; scale them down")
    return frames.astype(np.float32)


# N rows, D values of an embedding

Kind = Literal["clip", "caption"]
NAME_COLUMNS: dict[Kind, str] = {"clip": "id", "caption": "text"}  # the array that names the rows
HINT = "see Embeddings of another program in system/README.md"


class Vectors(dict[str, np.ndarray]):
    """Embeddings (D,) by name, with the methods of a bank of frames: each embedding is an array (1, D) float32."""

    threads = None  # reading takes no computation
    dtype = np.dtype(np.float32)

    @property
    def dim(self) -> int:
        """D."""
        return len(next(iter(self.values())))

    def name_of(self, clip: Clip) -> str | None:
        """Return the name of a clip's embedding: its id, or else its file name. None if it has no embedding."""
        return next((name for name in (clip.id, clip.file_name) if name in self), None)

    def require_dim(self, dim: int, files: Sequence[Path | str]) -> "Vectors":
        """Return these embeddings. Raises KitError if they do not have `dim` values."""
        if self.dim != dim:
            named = " and ".join(map(str, files))
            raise KitError(f"{named}: each embedding has {self.dim} values, but `dim` is {dim}; correct `dim`")
        return self

    def rows_of(self, name: str) -> int:
        """Return 1, the number of rows of any embedding."""
        return 1

    def read(self, name: str) -> np.ndarray:
        """Return the embedding (1, D) float32 of a name. Raises KeyError for an unknown name."""
        return self[name][None]

    def part(self, name: str, first: int, count: int) -> np.ndarray:
        """Return rows `first` to `first + count` (excluded) of the embedding (1, D) of a name, as Bank.part does."""
        return self.read(name)[first : first + count]


def read_vectors(files: Sequence[Path | str], kind: Kind, column: str | None = None) -> Vectors:
    """Read the embeddings of clips or captions from .npz files; those read last stay in memory.

    A file has the arrays `embedding` (N, D) and `id` (clips) or `text` (captions), and optionally `kind`, clip or
    caption, of each row, as `lbar embed` writes them.

    Args:
        files: Files of one model.
        kind: Rows to read, if a file has the array `kind`.
        column: Array with the names. None: `id` or `text`.

    Raises:
        KitError: Another file, values that are not finite, a name with two different embeddings.
    """
    for path in files:
        require_file(Path(path), HINT)
    states = tuple(Path(path).stat().st_mtime_ns for path in files)
    return _read(tuple(map(str, files)), states, kind, column or NAME_COLUMNS[kind])


@lru_cache(maxsize=4)
def _read(files: tuple[str, ...], states: tuple[int, ...], kind: Kind, column: str) -> Vectors:
    """Read embeddings. states: Time of change of each file, so that a changed file is read again."""
    rows = Vectors()
    for file in files:
        try:
            with Path(file).open("rb") as opened, np.load(opened, allow_pickle=False) as content:
                chosen = content["kind"] == kind if "kind" in content else slice(None)
                names, values = content[column][chosen].astype(str).tolist(), content["embedding"][chosen]
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
            if values.ndim != 2 or not np.isfinite(values).all():
                raise ValueError(f"embeddings of shape {values.shape}, or infinite or NaN ones")
            for name, row in zip(names, values, strict=True):
                if not np.array_equal(rows.setdefault(name, row), row):
                    raise ValueError(f"a second, different embedding of {name[:60]!r}, perhaps of another model")
        except Exception as error:  # numpy raises many kinds for damaged files
            raise KitError(f"{file}: cannot be read as embeddings ({first_line(error)}); {HINT}") from error
    widths = {len(row) for row in rows.values()}
    if len(widths) != 1:
        raise KitError(f"{' and '.join(files)}: no embeddings of one size, but of {sorted(widths)}; give one model's")
    return rows
