"""Files of frames that somebody has computed and published in place of audio (.npz, .npy)."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from data_tools.audio.read import FRAME_SUFFIXES, AudioError, holds_frames


def read_frames(path: Path | str, array: str | None = None) -> np.ndarray:
    """(T, D) float32, T and D >= 1, all finite.

    array: name of the frames in an .npz file; None: all arrays of the file are checked, and the first one is returned.
    Raises AudioError for a missing or damaged file, and for what are no frames.
    """
    if not holds_frames(path):
        raise AudioError(f"{path}: is no file of published frames ({' or '.join(FRAME_SUFFIXES)})")
    try:
        with Path(path).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                found = {"": loaded}
            else:
                found = {name: loaded[name] for name in (loaded.files if array is None else [array])}
    except KeyError:
        raise AudioError(f"{path}: has no array {array!r}; name it by the expert's setting array") from None
    except FileNotFoundError:
        raise AudioError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise AudioError(f"{path}: cannot be read as frames ({error}); fetch it again") from None
    if not found:
        raise AudioError(f"{path}: holds no array; fetch it again")
    for frames in found.values():
        if frames.ndim != 2 or not frames.size or frames.dtype.kind not in "fiu":
            raise AudioError(f"{path}: holds {frames.dtype} of shape {frames.shape}, not frames of numbers")
        if not np.isfinite(frames).all():
            raise AudioError(f"{path}: has frames that are not finite")
    first: np.ndarray = next(iter(found.values()))
    return first.astype(np.float32)
