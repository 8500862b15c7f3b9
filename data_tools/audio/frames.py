"""Files of published frames (.npz, .npy) in place of audio."""

import errno
import math
import zipfile
from pathlib import Path
from threading import Lock
from typing import IO

import numpy as np

from data_tools.audio.members import on_disk
from data_tools.audio.parts import AudioError
from data_tools.audio.read import FRAME_SUFFIXES, holds_frames, require_file
from data_tools.errors import located

MAX_FRAME_VALUES = 2**28  # per array: 1 GiB as float32; 4 days of a frame per second with 768 values
_PARSER = Lock()  # numpy parses headers by ast, which up to Python 3.11 may fail in concurrent threads
MAX_FRAME = 65_504.0  # greatest magnitude: that of float16, the type of banks
_SAVE_AGAIN = "copy, download or save the file again"


def read_frames(path: Path | str, array: str | None = None) -> np.ndarray:
    """Read published frames, (T, D) embeddings over time, from a .npy file or from the array `array` of a .npz file.

    Sizes in the headers are compared with the number of bytes before any array is read, so that no header can claim
    more than the file's size.

    Args:
        array: Name of the array to read from an .npz file; None: check all arrays of the file, and return the first.
    Returns: (T, D) float32, T and D >= 1, all finite, at most MAX_FRAME.
    Raises AudioError for a missing or damaged file, a pipe or device, more than MAX_FRAME_VALUES values, and arrays
        that are not frames.
    """
    if not holds_frames(path):
        raise AudioError(f"{path}: not a file of published frames; use one that ends in {' or '.join(FRAME_SUFFIXES)}")
    require_file(path)
    with on_disk(path) as file:
        return _read_frames_file(file, array)


def _read_frames_file(path: Path, array: str | None) -> np.ndarray:
    """Read published frames from an .npz or .npy file on disk; see read_frames."""
    try:
        if zipfile.is_zipfile(path):
            return _read_npz(path, array)
        with path.open("rb") as file:
            return _read_npy(path, file, path.stat().st_size)
    except AudioError:
        raise
    except Exception as error:  # parsers of damaged headers raise anything: TokenError, SyntaxError, RuntimeError, ...
        # A file that ends too early, or with an offset before its start, gives an OSError without a cause.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise located(error, path) from error  # an error of the disk: the file may be intact
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise AudioError(f"{path}: cannot be read as frames ({reason}); {_SAVE_AGAIN}") from None


def _read_npz(path: Path | str, array: str | None) -> np.ndarray:
    """Read published frames from an .npz file. array: Name of the array; None: check all, and return the first."""
    first = None
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise AudioError(f"{path}: has two arrays of the same name ({', '.join(names)[:200]}); {_SAVE_AGAIN}")
        if array is not None and f"{array}.npy" not in names:
            raise AudioError(f"{path}: has no array {array!r}; correct the key `array` of the expert in the recipe")
        for name in names if array is None else [f"{array}.npy"]:
            if not name.endswith(".npy"):
                raise AudioError(f"{path}: contains {name!r}, which is not an array (.npy); {_SAVE_AGAIN}")
            with archive.open(name) as file:
                frames = _read_npy(path, file, archive.getinfo(name).file_size)
            first = frames if first is None else first
    if first is None:
        raise AudioError(f"{path}: contains no array; {_SAVE_AGAIN}")
    return first


def _read_npy(path: Path | str, file: IO[bytes], size: int) -> np.ndarray:
    """Read published frames from an open .npy file of `size` bytes, or from a member of an .npz file."""
    version = np.lib.format.read_magic(file)
    if size > MAX_FRAME_VALUES * 8:
        raise _too_many_error(path, f"{size:,} bytes")
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise AudioError(f"{path}: has .npy version {version}, only 1 to 3 can be read; save it again with numpy.save")
    newer = np.lib.format.read_array_header_2_0
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else newer
    with _PARSER:
        shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise AudioError(f"{path}: contains pickled objects, not frames; save it as an array of numbers")
    if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu":
        raise AudioError(
            f"{path}: contains {dtype} of shape {shape}, not frames of numbers; save the frames as numbers of "
            "shape (time, dimension)"
        )
    if math.prod(shape) > MAX_FRAME_VALUES:
        raise _too_many_error(path, f"{dtype} of shape {shape}")
    stated, present = math.prod(shape) * dtype.itemsize, size - file.tell()
    if stated != present:
        raise AudioError(
            f"{path}: its header states {dtype} of shape {shape}, {stated:,} bytes, but {present:,} are present; "
            f"{_SAVE_AGAIN}"
        )
    frames = np.frombuffer(file.read(stated), dtype).reshape(shape, order="F" if is_fortran else "C")
    file.read(1)  # reads up to the end, so that zipfile compares the checksum
    if not np.isfinite(frames).all():
        raise AudioError(f"{path}: has frames that are not finite (NaN or infinity); compute them again")
    if (peak := max(float(frames.max()), -float(frames.min()))) > MAX_FRAME:
        raise AudioError(
            f"{path}: contains a value of {peak:.0e}, above the maximum of {MAX_FRAME:,.0f} (float16); scale them down"
        )
    return frames.astype(np.float32)


def _too_many_error(path: Path | str, size: str) -> AudioError:
    """Return the error for a file with more values than may be read. size: Its size as text, for the message."""
    return AudioError(
        f"{path}: the array is too large ({size}), at most {MAX_FRAME_VALUES:,} values can be read; split the file"
    )
