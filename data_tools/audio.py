"""Read audio files of any format, whole or in parts.

libsndfile reads WAV, AIFF, FLAC and Vorbis, PyAV (FFmpeg) all other formats: each takes those in which its positions
are exact and it is the faster one, see tests/benchmarks. All audio is mixed to mono and resampled.
"""

import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from data_tools.errors import AudioError, located
from data_tools.files import checksum

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff", ".m4a", ".mp4", ".aac", ".webm", ".wma")
Resampling = Literal["soxr_hq", "kaiser_best", "kaiser_best_0.2"]
Wave = npt.NDArray[np.float32]

MARGIN = 400  # samples at the lower rate, decoded on both sides of an excerpt: the reach of all filters
VORBIS_LEAD = 2.0  # seconds decoded before an excerpt: libsndfile misses positions near the end of a file
# The same by PyAV's decoder. The state of an Opus decoder fades slowly; MP3 frames use bits of earlier ones.
# Other decoders, such as AAC, are not exact after a jump: they begin at the start of the file.
LEADS = {"opus": 6.0, "mp3float": 1.5}
BLOCK = 1 << 20  # samples per channel
RAW = ("mp3", "aac", "ac3", "eac3", "amr")  # FFmpeg's formats without a header; an MP3 file may have a tag instead
SHORT = 0.98  # a file with less than this share of its stated length is cut
STREAMED = 0x7F000000  # larger sizes are placeholders of programs that write to a pipe
MAX_STATED = 1 << 40  # libsndfile states about 2**63 samples for a FLAC stream without a length
END = 1 << 62  # after the last sample
MAX_PEAK = 2.0**32  # full scale is 1; higher values are not sound
SHORTEST = 0.01  # seconds: a shorter file is at most a click
STEPS = 2 / 2**15  # two 16-bit steps: samples of silence are rounded to one of two values
_SOUNDFILE = (b"RIFF", b"RF64", b"FORM", b"fLaC", b"OggS")  # first bytes of the files that libsndfile reads
# kaiser_best of resampy up to 0.2.2
_OLD_KAISER = {"filter": "sinc_window", "num_zeros": 64, "precision": 9, "rolloff": 0.9475937167399596}


class Sound(NamedTuple):
    """Length of an audio file in samples per channel, and its sample rate in Hz."""

    samples: int
    rate: int

    def samples_at(self, rate: int, how: Resampling) -> int:
        """Return the number of samples, at least 1, after resampling to `rate` Hz."""
        exact = Fraction(self.samples * rate, self.rate)
        return max(1, math.floor(exact + Fraction(1, 2) if how == "soxr_hq" and rate != self.rate else exact))


def audio_seconds(path: Path | str) -> float:
    """Return the length that an audio file states, in seconds.

    Raises:
        AudioError: The file is missing, is not audio, or is shorter than its header states.
    """
    with _opened(path) as file:
        if file.seconds:
            return file.seconds
    wave, rate = _decoded(path)
    return len(wave) / rate


def readable_seconds(path: Path | str) -> float | None:
    """Return the length of an audio file in seconds; None if it cannot be read."""
    try:
        return audio_seconds(path)
    except AudioError:
        return None


def sound_of(path: Path | str) -> Sound:
    """Return the exact length and the sample rate of an audio file; PyAV's formats are decoded for it."""
    with _opened(path) as file:
        if file.samples is not None:
            return Sound(file.samples, file.rate)
    wave, rate = _decoded(path)
    return Sound(len(wave), rate)


def read_audio(path: Path | str, rate: int, resampling: Resampling = "soxr_hq", seconds: float | None = None) -> Wave:
    """Read an audio file as mono.

    Args:
        path: Audio file of any format.
        rate: Sample rate of the result in Hz.
        resampling: Method if the file has another rate. The Kaiser filters are those of resampy from 0.3 on, and up to
            0.2.2.
        seconds: Length to read from the beginning. None: all.

    Returns:
        Samples, (N,) float32, N >= 1, full scale 1.

    Raises:
        AudioError: The file is missing, not audio, cut, or has samples that are NaN or infinite.
    """
    wave, old = _decoded(path, seconds)
    return _resampled(wave, old, rate, resampling)


def read_excerpt(
    path: Path | str, sound: Sound, rate: int, first: int, count: int, resampling: Resampling = "soxr_hq"
) -> Wave:
    """Read part of a resampled audio file without decoding the rest.

    Args:
        path: Audio file.
        sound: Its length and rate, from sound_of.
        rate: Sample rate of the result in Hz.
        first: First sample of the part, at `rate`.
        count: Samples of the part, at `rate`; it must end within the file.
        resampling: Method, as for read_audio.

    Returns:
        Samples, (count,) float32, equal to that part of the whole file within 1e-6.

    Raises:
        AudioError: The part cannot be read.
    """
    factor = math.gcd(sound.rate, rate)
    new, old = rate // factor, sound.rate // factor  # `new` samples of the result take `old` of the file
    margin = math.ceil(MARGIN * max(1.0, old / new))
    begin = max(0, (first * old // new - margin) // old) * old
    end = min(sound.samples, (first + count) * old // new + margin + 1)
    with _opened(path) as file:
        is_same = file.samples in (None, sound.samples) and file.rate == sound.rate
        wave = np.concatenate([*file.blocks(begin, end), np.empty(0, np.float32)])
    if not is_same or len(wave) < end - begin:
        raise AudioError(f"{path}: damaged, or changed while it was in use; copy it again")
    skipped = first - begin // old * new
    return _resampled(wave, sound.rate, rate, resampling)[skipped : skipped + count]


def sound_problem(path: Path | str) -> str | None:
    """Decode a whole file; return why it has no sound, such as "silent"; None if it has some.

    Raises:
        AudioError: As read_audio.
    """
    wave, rate = _decoded(path)
    if len(wave) < SHORTEST * rate:
        return f"too short ({1000 * len(wave) / rate:.3g} ms)"
    return "silent" if np.ptp(wave) <= STEPS else None


def encoded(wave: np.ndarray, rate: int, format: str, subtype: str | None = None, **quality: Any) -> bytes:
    """Return the bytes of a mono audio file; format, subtype and quality are those of soundfile.write."""
    memory = io.BytesIO()  # libsndfile does not say why it cannot write to a disk
    with soundfile.SoundFile(memory, "w", rate, 1, subtype, format=format, **quality) as file:
        for start in range(0, len(wave), BLOCK):  # libvorbis overflows the stack with long blocks
            file.write(wave[start : start + BLOCK])
    return memory.getvalue()


def _decoded(path: Path | str, seconds: float | None = None) -> tuple[Wave, int]:
    """Return a whole file, or its first seconds, as mono, and its sample rate."""
    with _opened(path) as file:
        stop = END if seconds is None else round(seconds * file.rate)
        stated = min(stop, int(file.seconds * file.rate) if file.samples is None else file.samples)
        wave = np.concatenate([*file.blocks(0, stop), np.empty(0, np.float32)])
    if not len(wave) or len(wave) < SHORT * stated:
        checksum(Path(path))  # raises OSError if the disk fails: that is no damage of the file
        raise AudioError(f"{path}: cut, only {len(wave):,} of {stated:,} samples can be read; copy it again")
    return wave, file.rate


def _resampled(wave: Wave, old: int, new: int, how: Resampling) -> Wave:
    if old == new:
        return wave
    if how == "soxr_hq":
        import soxr

        made: Wave = soxr.resample(wave, old, new, "HQ")
    else:
        import resampy

        window = {"window": lambda points: np.kaiser(points, 14.769656459379492)}
        settings = {"filter": "kaiser_best"} if how == "kaiser_best" else {**_OLD_KAISER, **window}
        if len(wave) * new < old:
            return wave[:1]
        made = resampy.resample(wave.astype(np.float64), old, new, **settings).astype(np.float32)
    return made if len(made) else wave[:1]


def _mono(path: Path | str, block: Wave) -> Wave:
    """Return the mean of the channels of a block, (channels, n)."""
    peak = np.abs(block).max(initial=0)
    if not peak <= MAX_PEAK:  # NaN too
        raise AudioError(f"{path}: has samples that are NaN, infinite or too large; export it again")
    mono: Wave = block[0] if len(block) == 1 else block.mean(axis=0, dtype=np.float32)
    return mono


def _soundfile_blocks(path: Path | str, file: soundfile.SoundFile, start: int, stop: int) -> Iterator[Wave]:
    """Yield samples `start` to `stop` of an open file as mono blocks."""
    lead = min(start, round(VORBIS_LEAD * file.samplerate)) if file.format == "OGG" else 0
    if start - lead:
        file.seek(start - lead)
    if lead:
        file.read(lead, dtype="float32")
    left = stop - start
    while left > 0 and len(block := file.read(min(left, BLOCK), dtype="float32", always_2d=True)):
        left -= len(block)
        yield _mono(path, block.T)


def _av_blocks(path: Path | str, container: Any, stream: Any, start: int, stop: int) -> Iterator[Wave]:
    """Yield samples `start` to `stop` of an open file as mono blocks."""
    zero = stream.start_time or 0
    lead = LEADS.get(stream.codec_context.name)
    at: int | None = 0  # first sample of the next frame; None: the frame tells it
    if lead is not None and start > lead * stream.rate:
        container.seek(zero + int((start / stream.rate - lead) / stream.time_base), stream=stream)
        at = None
    for frame in container.decode(stream):
        if at is None:
            at = round(float((frame.pts - zero) * stream.time_base) * stream.rate)
        samples = frame.to_ndarray()
        if not frame.format.is_planar:
            samples = samples.reshape(-1, frame.layout.nb_channels).T
        part = samples[:, max(0, start - at) : max(0, stop - at)]
        if part.size:
            scale = 1.0 if part.dtype.kind == "f" else float(np.iinfo(part.dtype).max) + 1
            yield _mono(path, (part / scale).astype(np.float32, copy=False))
        at += samples.shape[1]
        if at >= stop:
            return


def _stated_seconds(path: Path | str, container: Any, stream: Any) -> float:
    """Return the length that a file states; 0 if it states none, and FFmpeg guesses it from the bit rate."""
    if container.format.name in RAW and not _has_length_tag(path):
        return 0.0
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return float((container.duration or 0) / 1_000_000)


def _has_length_tag(path: Path | str) -> bool:
    """Return whether the first frame of an MP3 file, behind its ID3 tag, is a tag with the number of frames."""
    with Path(path).open("rb") as file:
        head = file.read(10)
        size = sum(byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=False)) + 10
        file.seek(size if head[:3] == b"ID3" else 0)
        frame = file.read(2048)
    return any(tag in frame for tag in (b"Xing", b"Info", b"VBRI"))


def _by_soundfile(path: Path | str) -> bool:
    """Return whether libsndfile reads a file; PyAV reads the others."""
    with Path(path).open("rb") as file:
        head = file.read(36)  # of an Ogg file: the first page, which names the codec
    return head.startswith(_SOUNDFILE) and b"OpusHead" not in head


class _Open(NamedTuple):
    """An open file.

    Attributes:
        rate: Sample rate in Hz.
        seconds: Length that the file states; 0: none.
        samples: Exact number of samples per channel; None: unknown before the whole file is decoded.
        blocks: Function that yields samples from one number to another as mono blocks.
    """

    rate: int
    seconds: float
    samples: int | None
    blocks: Callable[[int, int], Iterator[Wave]]


@contextmanager
def _opened(path: Path | str) -> Iterator[_Open]:
    """Open a file by libsndfile or PyAV. Raises AudioError for one that is damaged, or cut as its header shows."""
    import av

    if not Path(path).is_file():
        raise AudioError(f"{path}: no such audio file; correct the path")
    try:
        if _by_soundfile(path):
            with soundfile.SoundFile(path) as file:
                # libsndfile's note, of 2,047 characters at most
                noted = re.search(r"(?:data|SSND) : (\d+) \(should be", file.extra_info)
                is_cut = noted and int(noted[1]) < STREAMED
                if is_cut or (len(file.extra_info) > 2046 and _is_shorter_than_stated(Path(path))):
                    raise AudioError(f"{path}: cut; copy it again")
                if not 0 < file.frames < MAX_STATED:
                    raise AudioError(f"{path}: contains no samples, or states no length; export it again")
                seconds = file.frames / file.samplerate
                yield _Open(file.samplerate, seconds, file.frames, partial(_soundfile_blocks, path, file))
            return
        # An absolute path, since FFmpeg takes the text before a colon for a protocol.
        absolute, options = str(Path(path).absolute()), {"protocol_whitelist": "file"}
        with av.open(absolute, options=options, metadata_errors="ignore") as container:
            if not container.streams.audio or not container.streams.audio[0].rate:
                raise AudioError(f"{path}: contains no audio")
            stream = container.streams.audio[0]
            seconds = _stated_seconds(path, container, stream)
            yield _Open(stream.rate, seconds, None, partial(_av_blocks, path, container, stream))
    except (soundfile.LibsndfileError, av.FFmpegError) as error:
        checksum(Path(path))  # raises OSError if the disk fails
        reason = getattr(error, "error_string", None) or getattr(error, "strerror", error)
        raise AudioError(f"{path}: cannot be decoded ({reason}); copy it again") from None
    except OSError as error:
        raise located(error, error.filename or path) from error


def _is_shorter_than_stated(path: Path) -> bool:
    """Return whether a WAV or AIFF file has fewer bytes than its first chunk states."""
    with path.open("rb") as file:
        kind, size = file.read(4), file.read(4)
    stated = int.from_bytes(size, "big" if kind == b"FORM" else "little")
    return kind in (b"RIFF", b"FORM") and path.stat().st_size < stated + 8 < STREAMED
