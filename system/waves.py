"""Write sounds from memory to files, which the kit reads."""

import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from data_tools.errors import KitError


def is_path(sound: Any) -> bool:
    """Return whether a sound is a file's path."""
    return isinstance(sound, str | os.PathLike)


def sounds_of(audio: Any) -> Sequence[Any]:
    """Return a sequence of sounds, also for a single one."""
    is_array = hasattr(audio, "detach") or (hasattr(audio, "dtype") and audio.dtype.kind not in "UO")
    is_file = hasattr(audio, "read") or hasattr(audio, "get_all_samples")
    if is_array or is_file or is_path(audio) or isinstance(audio, dict):
        return [audio]
    return audio if isinstance(audio, Sequence) else list(audio)


def as_files(sounds: Sequence[Any], rate: int | None, folder: Path) -> list[Path]:
    """Write sounds to files; return the paths of all.

    Args:
        sounds: Paths; arrays or tensors of samples; open files; the dicts and decoders of Hugging Face data sets, which
            have `array` and `sampling_rate`, or `bytes` and `path`.
        rate: Sample rate of arrays, in Hz.
    """
    return [_as_file(sound, rate, folder / str(number)) for number, sound in enumerate(sounds)]


def _as_file(sound: Any, rate: int | None, place: Path) -> Path:
    if is_path(sound):
        return Path(sound)
    if hasattr(sound, "get_all_samples"):  # a decoder of torchcodec
        samples = sound.get_all_samples()
        return _write_wave(samples.data.T, samples.sample_rate, place)
    if isinstance(sound, dict) and "array" in sound:
        return _write_wave(sound["array"], sound.get("sampling_rate"), place)
    if isinstance(sound, dict) and (sound.get("bytes") or sound.get("path")):
        return _write_bytes(sound["bytes"], sound.get("path"), place) if sound.get("bytes") else Path(sound["path"])
    if hasattr(sound, "read"):
        return _write_bytes(sound.read(), getattr(sound, "name", None), place)
    return _write_wave(sound, rate, place)


def _write_bytes(content: bytes, name: Any, place: Path) -> Path:
    """Write the bytes of an audio file, with its suffix."""
    path = place.with_suffix(PurePath(name).suffix if isinstance(name, str) else ".wav")
    path.write_bytes(content)
    return path


def _write_wave(samples: Any, rate: Any, place: Path) -> Path:
    """Write samples as a WAV file of 32-bit floats.

    Args:
        samples: (n,), (1, n) or (n, channels): floats with full scale 1, or signed integers.
    """
    import soundfile

    wave = np.asarray(samples.detach().cpu() if hasattr(samples, "detach") else samples)
    wave = wave[0] if wave.ndim == 2 and len(wave) == 1 else wave
    if wave.dtype.kind not in "fi" or wave.ndim not in (1, 2) or not wave.size or wave.shape[-1] > len(wave):
        raise KitError(f"a wave has shape {wave.shape} and type {wave.dtype}; give (samples,), several in a list")
    if not isinstance(rate, Integral) or not 1000 <= int(rate) <= 768_000:
        raise KitError(f"the rate of a wave is {rate!r}; give rate=, or sampling_rate in a dict, in Hz")
    if wave.dtype.kind == "i":
        wave = wave / -float(np.iinfo(wave.dtype).min)
    with np.errstate(over="ignore"):
        wave = wave.astype(np.float32)
    if not np.isfinite(wave).all():
        raise KitError("a wave has samples that are NaN, infinite or too large for 32 bits; correct them")
    path = place.with_suffix(".wav")
    soundfile.write(path, wave, int(rate), "FLOAT")
    return path
