"""Audio files in: decoded, mixed to mono and resampled, or refused with a reason."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from data_tools.errors import DataError

if TYPE_CHECKING:
    import soundfile

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff")

# Streaming writers put one of these where the size of the sound data belongs; it then runs to the end of the file.
_UNKNOWN_SIZES = (0x7FFFFFFF, 0xFFFFFFFF)
# No real file is longer; libsndfile reports about 2**63 frames for a FLAC stream that does not state its length.
_MAX_FRAMES = 2**31


class AudioError(DataError):
    """An audio file that cannot be used."""


def read_audio(path: Path | str, sample_rate: int) -> npt.NDArray[np.float32]:
    """The whole file as mono.

    sample_rate: Hz of the result; the file may have any rate and any number of channels.
    Returns (N,) float32, N >= 1, full scale = 1 (float files may exceed it). Channels are averaged, then resampled by
    soxr (HQ); a file so short that nothing is left at the lower rate keeps one sample.
    Raises AudioError for a missing, empty, undecodable or truncated file, and for NaN or infinite samples.
    """
    import soxr

    samples, rate = _decode(path)
    mono = samples.mean(axis=1)
    if rate == sample_rate:
        return mono
    resampled = soxr.resample(mono, rate, sample_rate, quality="HQ")
    return resampled if len(resampled) else mono[:1]


def audio_seconds(path: Path | str) -> float:
    """Length in seconds by the file's header; nothing is decoded. Raises AudioError as read_audio does, bar samples."""
    with _opened(path) as file:
        return file.frames / file.samplerate


def check_audio(path: Path | str) -> None:
    """Decode the whole file. Raises AudioError as read_audio does."""
    _decode(path)


def content_key(path: Path | str) -> str:
    """SHA-256 of the file's bytes, in hexadecimal. Raises AudioError for a missing file."""
    if not os.path.isfile(path):
        raise AudioError(f"{path}: no such file")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _decode(path: Path | str) -> tuple[npt.NDArray[np.float32], int]:
    """Samples (N, channels) and their rate in Hz."""
    with _opened(path) as file:
        samples = file.read(dtype="float32", always_2d=True)
        if len(samples) < file.frames:
            raise AudioError(
                f"{path}: truncated, {len(samples)} of {file.frames} samples can be read; fetch the file again"
            )
        if not np.isfinite(samples).all():
            raise AudioError(f"{path}: has NaN or infinite samples; export the file again")
        return samples, file.samplerate


@contextmanager
def _opened(path: Path | str) -> Iterator["soundfile.SoundFile"]:
    import soundfile

    if not os.path.isfile(path):
        raise AudioError(f"{path}: no such file")
    if not os.path.getsize(path):
        raise AudioError(f"{path}: the file is empty (0 bytes); fetch it again")
    try:
        _refuse_truncated(path)
        with soundfile.SoundFile(path) as file:
            if not file.frames:
                raise AudioError(f"{path}: has no samples; fetch the file again")
            if file.frames > _MAX_FRAMES:
                raise AudioError(f"{path}: its header states no length, or one that cannot be; export the file again")
            yield file
    except soundfile.LibsndfileError:
        raise AudioError(f"{path}: cannot be decoded; fetch it again, or convert it to WAV or FLAC") from None
    except OSError as error:
        raise AudioError(f"{path}: cannot be read ({error.strerror})") from None


def _refuse_truncated(path: Path | str) -> None:
    """Raise AudioError for a WAV or AIFF file that ends before its sound data does: libsndfile reads on silently."""
    with open(path, "rb") as file:
        kind = file.read(12)[:4]
        while kind in (b"RIFF", b"FORM") and len(chunk := file.read(8)) == 8:
            size = int.from_bytes(chunk[4:], "little" if kind == b"RIFF" else "big")
            if chunk[:4] not in (b"data", b"SSND"):
                file.seek(size + size % 2, os.SEEK_CUR)  # chunks are padded to even length
                continue
            present = os.path.getsize(path) - file.tell()
            if size > present and size not in _UNKNOWN_SIZES:
                raise AudioError(
                    f"{path}: truncated, the header promises {size} bytes of sound and {present} are there; "
                    "fetch the file again"
                )
            return
