"""Write waves from memory to files.

Writes waves that a program has in memory to files, which the kit can read.
"""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError

Waves = np.ndarray | Sequence[np.ndarray]


def waves_of(audio: Any) -> list[np.ndarray] | None:
    """Return the waves in `audio`, an array, a tensor or a list of them; None if `audio` contains file names.

    Raises KitError for arrays that are not waves: other than (samples,) or (samples, channels) of finite floats.
    """
    arrays = [
        one.detach().cpu() if hasattr(one, "detach") else one
        for one in (audio if isinstance(audio, list | tuple) else [audio])
    ]
    if not any(hasattr(one, "__array__") and np.asarray(one).dtype.kind not in "UO" for one in arrays):
        return None
    waves = []
    for number, one in enumerate(map(np.asarray, arrays)):
        if one.dtype.kind != "f" or one.ndim not in (1, 2) or not one.size or one.shape[-1] > one.shape[0]:
            raise KitError(
                f"wave {number} has shape {one.shape} and type {one.dtype}; a wave must be (samples,) or (samples, "
                "channels), of floats with full scale 1"
            )
        with np.errstate(over="ignore"):
            waves.append(one.astype(np.float32))
        if not np.isfinite(waves[-1]).all():
            raise KitError(f"wave {number} has samples that are NaN, infinite or too large for 32 bits; correct them")
    return waves


def write_waves(waves: Sequence[np.ndarray], rate: int | None, folder: Path) -> list[Path]:
    """Write waves as 32-bit float WAV files; return their paths. Raises KitError for a missing or impossible rate."""
    import soundfile

    if not isinstance(rate, Integral) or not 1000 <= rate <= 768_000:
        raise KitError(f"the rate of the waves is {rate!r}; give a whole number from 1,000 to 768,000 Hz")
    paths = [folder / f"{number}.wav" for number in range(len(waves))]
    for path, wave in zip(paths, waves, strict=True):
        soundfile.write(path, wave, int(rate), "FLOAT")
    return paths
