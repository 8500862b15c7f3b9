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
    listed = audio if isinstance(audio, list | tuple) else [audio]
    if not any(hasattr(one, "__array__") and np.asarray(one).dtype.kind not in "UO" for one in map(_on_cpu, listed)):
        return None
    return [_require_wave(one, number) for number, one in enumerate(listed)]


def _require_wave(one: Any, number: int) -> np.ndarray:
    """Convert an array or tensor to a float32 wave. Raises KitError for a wrong shape or type, NaN or infinity.

    number: Index of the wave, for the error message.
    """
    wave = np.asarray(_on_cpu(one))
    if wave.dtype.kind != "f" or wave.ndim not in (1, 2) or not wave.size:
        raise KitError(
            f"wave {number} has shape {wave.shape} and type {wave.dtype}; a wave must be (samples,) or (samples, "
            "channels), of floats with full scale 1"
        )
    if wave.ndim == 2 and wave.shape[1] > wave.shape[0]:
        raise KitError(
            f"wave {number} has shape {wave.shape}, more channels than samples; transpose it to (samples, channels)"
        )
    with np.errstate(over="ignore"):
        samples = wave.astype(np.float32)
    if not np.isfinite(samples).all():
        raise KitError(f"wave {number} has samples that are NaN, infinite or too large for 32 bits; correct them")
    return samples


def _on_cpu(one: Any) -> Any:
    """Return a tensor without its gradient graph, in the memory that numpy reads; anything else unchanged."""
    return one.detach().cpu() if hasattr(one, "detach") else one


def write_waves(waves: Sequence[np.ndarray], rate: int | None, folder: Path) -> list[Path]:
    """Write waves as 32-bit float WAV files; return their paths. Raises KitError for a missing or impossible rate."""
    import soundfile

    if not isinstance(rate, Integral) or not 1000 <= rate <= 768_000:
        raise KitError(f"the rate of the waves is {rate!r}; give a whole number from 1,000 to 768,000 Hz")
    paths = [folder / f"{number}.wav" for number in range(len(waves))]
    for path, wave in zip(paths, waves, strict=True):
        soundfile.write(path, wave, int(rate), "FLOAT")
    return paths
