"""Write sounds from memory to files, which the kit reads."""

import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from data_tools.errors import KitError

LOUDEST = 100.0  # full scale is 1


def is_path(sound: Any) -> bool:
    """Return whether a sound is a file's path."""
    return isinstance(sound, str | os.PathLike)


def sounds_of(audio: Any) -> Sequence[Any]:
    """Return a sequence of sounds, also for a single one."""
    is_array = hasattr(audio, "detach") or (hasattr(audio, "dtype") and audio.dtype.kind not in "UO")
    is_file = hasattr(audio, "read") or hasattr(audio, "get_all_samples")
    if is_array or is_file or is_path(audio) or isinstance(audio, dict):
        return [audio]
    if not isinstance(audio, Iterable) and not hasattr(audio, "__getitem__"):
        raise KitError(f"a sound is {audio!r}; give a file, samples, or a list of them")
    return audio if isinstance(audio, Sequence) else list(audio)


def as_files(sounds: Sequence[Any], rate: int | None, folder: Path) -> list[Path]:
    """Write sounds to files; return the paths of all.

    Args:
        sounds: Paths; arrays or tensors of samples; open files; the dicts and decoders of Hugging Face data sets, which
            have `array` and `sampling_rate`, or `bytes` and `path`, or these under `audio`.
        rate: Sample rate of arrays, in Hz.
    """
    return [_as_file(sound, rate, folder / str(number)) for number, sound in enumerate(sounds)]


def _as_file(sound: Any, rate: int | None, place: Path) -> Path:
    if is_path(sound):
        return Path(sound)
    if hasattr(sound, "get_all_samples"):  # a decoder of torchcodec
        samples = sound.get_all_samples()
        return _write_wave(samples.data.T, samples.sample_rate, place)
    if isinstance(sound, dict) and "audio" in sound:  # a row of a data set
        return _as_file(sound["audio"], rate, place)
    if isinstance(sound, dict) and "array" in sound:
        return _write_wave(sound["array"], sound.get("sampling_rate"), place)
    if isinstance(sound, dict) and (sound.get("bytes") or sound.get("path")):
        return _write_bytes(sound["bytes"], sound.get("path"), place) if sound.get("bytes") else Path(sound["path"])
    if hasattr(sound, "read"):
        try:
            content = sound.read()
        except ValueError:
            raise KitError("an open file is closed, or a text file; open it in binary mode") from None
        return _write_bytes(content, getattr(sound, "name", None), place)
    return _write_wave(sound, rate, place)


def _write_bytes(content: bytes, name: Any, place: Path) -> Path:
    """Write the bytes of an audio file, with its suffix."""
    if isinstance(content, str) or not content:
        raise KitError("an open file gives no bytes; open it in binary mode, or rewind it with seek(0)")
    path = place.with_suffix(PurePath(name).suffix if isinstance(name, str) else ".wav")
    path.write_bytes(content)
    return path


def _write_wave(samples: Any, rate: Any, place: Path) -> Path:
    """Write samples as a WAV file of 32-bit floats.

    Args:
        samples: (n,), (1, n) or (n, channels): floats with full scale 1, or signed integers of at most 32 bits.
    """
    import soundfile

    if hasattr(samples, "detach"):
        samples = (samples.float() if samples.is_floating_point() else samples).detach().cpu()
    wave = np.asarray(samples)
    wave = wave[0] if wave.ndim == 2 and len(wave) == 1 else wave
    is_number = wave.dtype.kind == "f" or (wave.dtype.kind == "i" and wave.dtype.itemsize <= 4)  # int64: of any scale
    if not is_number or wave.ndim not in (1, 2) or not wave.size or wave.shape[-1] > len(wave):
        hint = "give (samples,) or (samples, channels), floats or int16, several in a list; bytes as io.BytesIO"
        raise KitError(f"a wave has shape {wave.shape} and type {wave.dtype}; {hint}")
    if not isinstance(rate, Integral) or not 1000 <= int(rate) <= 768_000:
        raise KitError(f"the rate of a wave is {rate!r}; give rate=, or sampling_rate in a dict, in Hz")
    if wave.dtype.kind == "i":
        wave = wave / -float(np.iinfo(wave.dtype).min)
    with np.errstate(over="ignore"):
        wave = wave.astype(np.float32)
    if not np.abs(wave).max() < LOUDEST:  # NaN is not
        raise KitError("a wave has samples that are NaN or far above full scale, 1.0; divide those of 16 bits by 32768")
    path = place.with_suffix(".wav")
    soundfile.write(path, wave, int(rate), "FLOAT")
    return path
