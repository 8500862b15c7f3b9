"""Read and resample audio files.

Decodes an audio file, mixes it to mono and resamples it, or raises an error with the reason. Also encodes samples.
"""

import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from data_tools.audio.containers import refuse_partial, whole_sound
from data_tools.audio.flac import refuse_longer_flac
from data_tools.audio.members import container_of, member_of, on_disk, size_of
from data_tools.audio.parts import AudioError as AudioError  # re-exported for all readers of audio
from data_tools.audio.parts import FileWithNewHeader
from data_tools.audio.resampling import Resampling, Wave, resampler
from data_tools.documents.json_text import sha256_of
from data_tools.errors import located

if TYPE_CHECKING:
    import soundfile

# Formats that ffmpeg decodes and libsndfile does not.
FFMPEG_SUFFIXES = (".m4a", ".aac", ".mp4", ".webm", ".wma", ".mka", ".amr", ".ac3", ".ape", ".wv", ".3gp")
AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff", *FFMPEG_SUFFIXES)

Checks = Literal["all", "quick", "none"]  # of a file's completeness, before it is read

# Formats of libsndfile that are checked for completeness; in the others it reads cut files silently.
_FORMATS = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3")
# libsndfile reports about 2**63 samples for a FLAC stream without a stated length.
_MAX_STATED = 2**40
# A file takes at most a gigabyte of memory and a minute on one core: 3 hours of stereo at 96 kHz. The result holds 93
# minutes at 48 kHz, or all 3 hours at 16 kHz.
MAX_VALUES = 2**31  # samples x channels
MAX_SAMPLES = 2**28  # in one channel, at the requested rate
MIN_RATE, MAX_RATE = 1_000, 768_000  # Hz
MAX_PEAK = 2.0**32  # relative to full scale 1: 32-bit integers stored as floats are smaller
SHORTEST = 0.01  # seconds: a shorter file is at most a click
STEPS = 2 / 2**15  # two 16-bit steps: samples of silence are rounded to one of two values
CANCELS = 0.01  # 40 dB
PEAK_SAMPLES = 2**13  # read from each part of a file for its peak: a fifth of a second
_BLOCK = 2**20  # samples x channels per decoded block
_FFMPEG_SECONDS = 3 * 3600  # maximum to decode


FRAME_SUFFIXES = (".npz", ".npy")  # of files of published frames in place of audio


def require_file(path: Path | str) -> None:
    """Raise AudioError for a missing file, a folder, and a pipe or device, which cannot be read twice.

    For a member of a tar, zip or parquet file, that container must exist.
    """
    file = container_of(path)
    if file.exists() and not file.is_file() and not file.is_dir():
        raise AudioError(f"{path}: is a pipe or a device; give a regular file")
    if not file.is_file():
        raise AudioError(f"{path}: no such file; correct the path")


def holds_frames(path: Path | str) -> bool:
    """Return whether the suffix of a file's name shows that it contains published frames instead of audio."""
    return str(path).lower().endswith(FRAME_SUFFIXES)


def read_audio(
    path: Path | str, sample_rate: int, resampling: Resampling = "soxr_hq", seconds: float | None = None
) -> Wave:
    """Read an audio file, or only its first `seconds`, as mono, resampled to `sample_rate` Hz.

    Args:
        path: The file. It may have 1 to 768 kHz and any number of channels, which are averaged.
        sample_rate: Sample rate of the result in Hz.
        resampling: Method if the file has another rate, such as `soxr_hq`.
        seconds: Length to read from the beginning; None: all.
    Returns (N,) float32, N >= 1, full scale = 1 (float files may exceed it). A file that is too short for one sample
    at a lower rate results in one sample.
    Raises AudioError for a missing, empty, undecodable or truncated file, and for samples that are NaN, infinite or
    above MAX_PEAK. Also for a file with more than MAX_VALUES values, or a result of more than MAX_SAMPLES samples.
    Raises OSError, with the file's name, for an existing file that the system cannot read (a failing disk, too many
    open files, no permission).
    """
    with opened(path) as file:
        max_frames = file.frames if seconds is None else min(file.frames, round(seconds * file.samplerate))
        if max_frames * file.channels > MAX_VALUES:
            raise AudioError(
                f"{path}: has {_describe_size(file)}, more than {MAX_VALUES:,} values (samples x channels); cut the "
                "file into shorter ones"
            )
        if max_frames * sample_rate > MAX_SAMPLES * file.samplerate:
            raise AudioError(
                f"{path}: has {_describe_size(file)}, but at most {MAX_SAMPLES:,} samples at {sample_rate:,} Hz "
                "can be read; cut the file into shorter ones"
            )
        try:
            resample = resampler(file.samplerate, sample_rate, resampling)
        except ValueError as error:
            raise AudioError(
                f"{path}: {_describe_size(file)} cannot be resampled to {sample_rate:,} Hz: {error}"
            ) from error
        wave = np.empty(max_frames * sample_rate // file.samplerate + 1, np.float32)
        made = 0
        for part in resampled(mono_blocks(file, max_frames), resample):
            wave[made : made + len(part)] = part
            made += len(part)
        return wave[:made]


def mono_blocks(file: "soundfile.SoundFile", length: int) -> Iterator[tuple[Wave, bool]]:
    """Yield the next `length` samples of an open file as pairs: a mono block, and whether it is the last block.

    Raises AudioError as decoded_blocks does.
    """
    done = 0
    for block in decoded_blocks(file, length):
        done += len(block)
        yield mixed_to_mono(block), done == length


def resampled(blocks: Iterable[tuple[Wave, bool]], resample: Callable[[Wave, bool], Wave]) -> Iterator[Wave]:
    """Resample mono blocks of an audio file and yield the results.

    A file that is too short for one sample at the new rate gives its first sample instead.
    blocks: Pairs of a block of samples, and whether it is the last block.
    resample: Function that gets such a pair and returns the resampled block; made by `resampler`.
    """
    made, first = 0, None
    for block, is_last in blocks:
        first = block[:1] if first is None else first
        part = resample(block, is_last)
        made += len(part)
        yield part
    if not made and first is not None:
        yield first


def audio_seconds(path: Path | str) -> float:
    """Return the length of an audio file in seconds from its header, without decoding.

    Raises AudioError as read_audio, but not for faulty samples, which it does not read.
    """
    with opened(path) as file:
        return float(file.frames / file.samplerate)


def readable_seconds(path: Path | str) -> float | None:
    """Return the length of an audio file in seconds; None for a missing or unreadable file (`check` lists it)."""
    try:
        return audio_seconds(path)
    except AudioError:
        return None


def decode(path: Path | str) -> None:
    """Decode a whole audio file to find damage; return nothing. Raises as read_audio, but allows any length."""
    with opened(path) as file:
        for _ in decoded_blocks(file, file.frames):
            pass


def check_audio(path: Path | str) -> str | None:
    """Decode a whole audio file; return the reason why it has no sound, such as "silent"; None if it has sound.

    A file has no sound if one of these is true:

    * It is shorter than SHORTEST, a hundredth of a second.
    * In every channel, the difference between the highest and the lowest sample is at most STEPS, two steps of 16 bits.
    * Its channels cancel each other: in their mean, the difference between the highest and the lowest sample is at most
      STEPS, or at most 1 % (CANCELS) of the greatest difference in a channel.

    Raises the same errors as read_audio.
    """
    with opened(path) as file:
        low, high = mono_low, mono_high = np.inf, -np.inf
        for block in decoded_blocks(file, file.frames):
            mono = mixed_to_mono(block)
            low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
            mono_low, mono_high = min(mono_low, mono.min()), max(mono_high, mono.max())
        if file.frames < SHORTEST * file.samplerate:
            return f"too short ({1000 * file.frames / file.samplerate:.3g} ms)"
        each, together = float(np.max(high - low)), float(mono_high - mono_low)
    if each <= STEPS:
        return "silent" if max(abs(mono_low), abs(mono_high)) <= STEPS else "one constant value"
    if together <= max(STEPS, CANCELS * each):
        return "channels cancel each other when they are mixed to mono"
    return None


def peaks(path: Path | str, parts: int) -> Wave:
    """Return the peak level of each of `parts` equal parts of a file, to draw its waveform.

    Returns (parts,) float32: the greatest magnitude in any channel, full scale = 1; 0 for a part without a sample. Of
    each part, at most the first PEAK_SAMPLES samples are read, so that the time does not grow with the length of a long
    file.
    Raises AudioError as read_audio does.
    """
    maxima = np.zeros(parts, np.float32)
    with opened(path) as file:
        for part in range(parts):
            start, end = part * file.frames // parts, (part + 1) * file.frames // parts
            if start != file.tell():
                file.seek(start)
            samples = file.read(min(end - start, PEAK_SAMPLES), dtype="float32", always_2d=True)
            maxima[part] = np.abs(samples).max(initial=0)
    if not np.isfinite(maxima).all():
        raise AudioError(f"{path}: has NaN or infinite samples; export the file again")
    return maxima


def content_key(path: Path | str) -> str:
    """Return the SHA-256 of the file's bytes, in hexadecimal. Raises AudioError for a missing file."""
    require_file(path)
    with on_disk(path) as file:
        return sha256_of(file)


def encoded(samples: np.ndarray, rate: int, format: str, subtype: str, **quality: Any) -> bytes:
    """Encode samples; return the bytes of the audio file. format, subtype: Names in libsndfile.

    The bytes are made in memory, because libsndfile does not report why it cannot write to disk.
    """
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, subtype, format=format, **quality)
    return file.getvalue()


def mixed_to_mono(block: Wave) -> Wave:
    """Return the mean of the channels, (n,), of a block (n, channels).

    Two channels are added directly, which is twenty times as fast as numpy's mean.
    """
    if block.shape[1] == 1:
        return block[:, 0]
    return np.asarray((block[:, 0] + block[:, 1]) / 2 if block.shape[1] == 2 else block.mean(axis=1), np.float32)


def decoded_blocks(file: "soundfile.SoundFile", length: int) -> Iterator[Wave]:
    """Yield the next `length` samples of an open file in blocks of shape (n, channels).

    Raises AudioError if the file has fewer samples, and for NaN, infinite or absurd samples (above MAX_PEAK).
    """
    path, done = file.path, 0
    while done < length:
        count = min(length - done, max(1, _BLOCK // file.channels))
        samples = file.read(count, dtype="float32", always_2d=True)
        if len(samples) < count:
            _require_readable(path)
            done += len(samples)
            raise AudioError(
                f"{path}: truncated, only {done} of {file.frames} samples can be read; copy or download the file again"
            )
        peak = np.abs(samples).max()
        if not np.isfinite(peak):
            raise AudioError(f"{path}: has NaN or infinite samples; export the file again")
        if peak > MAX_PEAK:
            raise AudioError(f"{path}: has samples of {peak:.0e} times full scale, too large; export the file again")
        done += len(samples)
        yield samples
    if done == file.frames and file.format == "FLAC":
        refuse_longer_flac(path)


def _describe_size(file: "soundfile.SoundFile") -> str:
    """Return the size of an open audio file as text: its samples, channels and sample rate."""
    return f"{file.frames:,} samples of {file.channels} channel{'s' * (file.channels > 1)} at {file.samplerate:,} Hz"


@cache
def _sequential_file() -> type["soundfile.SoundFile"]:
    """Return a subclass of soundfile.SoundFile that does not jump between calls of `read`.

    After each call, soundfile jumps to the end of the samples that it has returned. In an MP3 file with few bits per
    frame, libmpg123 then loses bits of earlier frames, and decodes up to 4,000 samples to other values.
    """
    import soundfile

    class SequentialFile(soundfile.SoundFile):  # type: ignore[misc]
        """Audio file without jumps between calls of `read`; `seek` still works. path: See `opened`."""

        path: Path

        def seekable(self) -> bool:
            """Return False, so that soundfile does not jump between calls of `read`."""
            return False

    return SequentialFile


@contextmanager
def opened(path: Path | str, checks: Checks = "all") -> Iterator["soundfile.SoundFile"]:
    """Open an audio file, check by default that no sound is missing, and yield the file as a SoundFile.

    The attribute `path` of the SoundFile is the file on disk: the given one, or a temporary copy of a member of a tar,
    zip or parquet file.

    checks: "all": Refuse files whose end is missing, and files that consist of several files in sequence; read files
    with a wrong header through a corrected copy of the header. "quick": The same, but trust the number of frames in an
    MP3 file's tag. "none": Open the file without checks and without correction. Use "none" only for a file that was
    opened with checks before and needed no correction. To find out whether
    it needed one, compare the attributes of the earlier SoundFile: `name`, the file that libsndfile read, equals `path`
    if there was no correction.

    Raises AudioError if the file is missing, empty, damaged or in another format.
    """
    import soundfile

    require_file(path)
    if not size_of(path):
        raise AudioError(f"{path}: the file is empty (0 bytes); copy or download it again")
    try:
        with on_disk(path) as whole, _playable_source(whole, checks) as source, _sequential_file()(source) as file:
            file.path = whole
            if file.format not in _FORMATS:
                raise AudioError(f"{path}: the format {file.format_info} is not supported; convert it to WAV or FLAC")
            if not file.frames:
                raise AudioError(f"{path}: contains no samples; copy or download the file again")
            if file.frames > _MAX_STATED:
                raise AudioError(f"{path}: its header states no length, or an impossible one; export the file again")
            if not MIN_RATE <= file.samplerate <= MAX_RATE:
                raise AudioError(
                    f"{path}: its sample rate is {file.samplerate:,} Hz, not {MIN_RATE:,} to {MAX_RATE:,} Hz; "
                    "export it again"
                )
            if file.format == "OGG":
                file.seek(0)  # without it, libsndfile reads the encoder's delay of Opus that starts late
            yield file
    except soundfile.LibsndfileError:
        if member_of(path) is None:  # a member's bytes were read to their end
            _require_readable(Path(path))
        if holds_frames(path):
            raise AudioError(
                f"{path}: contains published frames, not audio; use the expert feature_files in the recipe"
            ) from None
        raise AudioError(f"{path}: cannot be decoded; download it again, or convert it to WAV or FLAC") from None
    except OSError as error:
        raise located(error, error.filename or path) from error


def _require_readable(path: Path) -> None:
    """Raise OSError if the system cannot read a file to its end; libsndfile would report it as damaged or shorter."""
    sha256_of(path)


@contextmanager
def _playable_source(path: Path, checks: Checks) -> Iterator[Path | str | FileWithNewHeader]:
    """Yield the input for libsndfile: the path, a file object with a corrected header, or ffmpeg's WAV file."""
    source: Path | FileWithNewHeader | None = path
    if checks != "none":
        is_known = not str(path).lower().endswith(FFMPEG_SUFFIXES)
        source = whole_sound(path, quick=checks == "quick") if is_known else None
    if source:
        with nullcontext() if isinstance(source, Path) else source:
            yield source
    else:
        with _decoded_by_ffmpeg(path) as wav:
            refuse_partial(path)
            yield wav


@contextmanager
def _decoded_by_ffmpeg(path: Path) -> Iterator[str]:
    """Decode the first audio stream of a file into a temporary WAV file, at its sample rate; yield the WAV's path.

    Raises AudioError if ffmpeg is not installed, and for every error that ffmpeg reports. (ffmpeg itself continues.)
    ffmpeg may open this file only, because some formats contain the names of other files to open.
    """
    if not shutil.which("ffmpeg"):
        raise AudioError(
            f"{path}: this format needs the program ffmpeg, which is not installed; install ffmpeg, or convert "
            "the file to FLAC on another machine"
        )
    with tempfile.TemporaryDirectory() as folder:
        wav = f"{folder}/decoded.wav"
        source = ["-protocol_whitelist", "file", "-i", f"file:{path}", "-map", "0:a:0", "-t", str(_FFMPEG_SECONDS)]
        command = ["ffmpeg", "-nostdin", "-v", "error", *source, "-c:a", "pcm_f32le", "-rf64", "auto", wav]
        finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if finished.returncode or finished.stderr.strip():
            reason = (finished.stderr.strip() or "ffmpeg printed no reason").splitlines()[-1][:200]
            raise AudioError(f"{path}: cannot be decoded by ffmpeg ({reason}); copy it again, or convert it to FLAC")
        yield wav
