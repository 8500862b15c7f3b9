"""Published frames (.npz, .npy) in place of audio."""

from pathlib import Path
from threading import Lock

import numpy as np

from data_tools.errors import AudioError

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
