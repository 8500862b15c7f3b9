"""Convert audio to one rate and format.

A smaller and faster copy of a data set, as mono files; ids, captions and licences stay.
"""

import argparse
import io
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from data_tools.audio.members import container_of, size_of
from data_tools.audio.read import (
    MIN_RATE,
    AudioError,
    encoded,
    mono_blocks,
    opened,
    require_file,
    resampled,
)
from data_tools.audio.resampling import Wave, resampler
from data_tools.cli import counted, progress
from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.files import MAX_NAME, absolute, format_size, remove_parts, replacing, short_name, write_text
from data_tools.locks import lock
from data_tools.manifest import Clip, read_manifest, write_manifest

Format = Literal["mp3", "flac", "ogg"]
SUBTYPES = {"mp3": ("MP3", "MPEG_LAYER_III"), "flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS")}
KBITS = {False: (8, 160), True: (32, 320)}  # lowest and highest bit rate of MP3, below 32 kHz and from there on
MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
SETTINGS, FINISHED = "transcode.json", "finished.jsonl"


class Encoding(NamedTuple):
    """Settings of the new files. rate: Sample rate in Hz. kbits: Bit rate of MP3 in kbit/s; None for other formats."""

    rate: int
    format: Format
    kbits: int | None

    def quality(self) -> dict[str, Any]:
        """Return the arguments of soundfile.write that set the bit rate."""
        if self.kbits is None:
            return {}
        low, high = KBITS[self.rate >= 32_000]
        return {"compression_level": (high - self.kbits) / (high - low), "bitrate_mode": "CONSTANT"}


def checked_encoding(rate: int, format: Format, kbits: int | None) -> Encoding:
    """Return the settings of the new files. Raises DataError if the format forbids them.

    To test the settings, noise is encoded with them.
    rate: Sample rate in Hz. kbits: Bit rate of MP3 files in kbit/s; None: 64, or the highest bit rate that the sample
    rate allows if this is lower.
    """
    if not MIN_RATE <= rate <= 192_000:
        raise DataError(f"--rate {rate}: give {MIN_RATE:,} to 192,000 Hz, such as 32000")
    if format == "mp3":
        if rate not in MP3_RATES:
            rates = ", ".join(map(str, MP3_RATES))
            raise DataError(f"--rate {rate}: MP3 supports only {rates} Hz; use one of these rates, or --format flac")
        low, high = KBITS[rate >= 32_000]
        kbits = min(high, 64) if kbits is None else kbits
        if not low < kbits <= high:
            raise DataError(f"--bitrate {kbits}: must be above {low} and at most {high} for MP3 at {rate} Hz")
    elif kbits is not None:
        raise DataError(f"--bitrate {kbits}: {format} has no bit rate to set; leave out --bitrate, or use --format mp3")
    encoding = Encoding(rate, format, kbits)
    _require_supported(encoding)
    return encoding


def _require_supported(encoding: Encoding) -> None:
    """Encode a second of noise in memory. Raises DataError if that fails, or if the result is longer or shorter."""
    import soundfile

    noise = np.random.default_rng(0).uniform(-0.5, 0.5, encoding.rate)
    container, subtype = SUBTYPES[encoding.format]
    try:
        content = encoded(noise, encoding.rate, container, subtype, **encoding.quality())
        is_exact = soundfile.info(io.BytesIO(content)).frames == encoding.rate
    except soundfile.LibsndfileError:
        raise DataError(
            f"--rate {encoding.rate}: {encoding.format} does not support this rate; use 32000 or 44100"
        ) from None
    if not is_exact:
        raise DataError(
            f"--bitrate {encoding.kbits}: at this bit rate, MP3 files of {encoding.rate} Hz are longer or shorter than "
            "the audio; "
            "use a higher bit rate, or a lower --rate"
        )


def new_file_names(clips: Sequence[Clip], format: Format) -> list[str]:
    """Return the path of each clip's new file, relative to the folder of new files.

    It is <source>/<split>/<old name>.<format>. If several clips would get the same path, 8 digits of the sha256 of a
    clip's id are added.
    """
    longest = MAX_NAME - 32  # for the digits, the ending, and the name of a temporary file
    stems = [short_name(PurePath(clip.file_name).stem, longest) for clip in clips]
    names = [f"{clip.source}/{clip.split}/{stem}" for clip, stem in zip(clips, stems, strict=True)]
    count: dict[str, int] = {}
    for name in names:
        count[name.casefold()] = count.get(name.casefold(), 0) + 1
    return [
        f"{name}.{format}"
        if count[name.casefold()] == 1
        else f"{name}.{sha256(clip.id.encode()).hexdigest()[:8]}.{format}"
        for name, clip in zip(names, clips, strict=True)
    ]


def transcode(clip: Clip, path: Path, encoding: Encoding) -> float:
    """Write a clip's audio to a new file, block by block; return its length in seconds.

    Audio of any length takes the memory of one block. Raises AudioError for audio that cannot be read, and DataError if
    the new file cannot be written.
    """
    import soundfile

    container, subtype = SUBTYPES[encoding.format]
    samples = 0
    with replacing(path) as temporary:
        try:
            with soundfile.SoundFile(
                temporary, "w", encoding.rate, 1, subtype, format=container, **encoding.quality()
            ) as file:
                for part in _resampled(clip.path, encoding.rate):
                    file.write(part)
                    samples += len(part)
            is_whole = soundfile.info(temporary).frames == samples
        except soundfile.LibsndfileError:
            is_whole = False  # libsndfile does not report why
        if not is_whole:
            raise DataError(f"{path} cannot be written; free disk space, and run the same command again")
    return samples / encoding.rate


def _resampled(path: str, rate: int) -> Iterator[Wave]:
    """Yield the samples of a file as mono blocks at `rate` Hz."""
    with opened(path) as file:
        yield from resampled(mono_blocks(file, file.frames), resampler(file.samplerate, rate, "soxr_hq"))


class Finished(NamedTuple):
    """Record of a file that was converted, to skip it in the next call if its source file is unchanged.

    The source file is the audio file that was converted.

    Attributes:
        path: Path of the source file.
        size: Number of bytes of the source file.
        changed: Time of the source file's last change, in nanoseconds.
        seconds: Length of the new file in seconds.
    """

    path: str
    size: int
    changed: int
    seconds: float


def _read_finished(record: Path) -> dict[str, Finished]:
    """Read the record of the files that earlier calls have written; return a dict from a new file's path to its data.

    The keys are relative to the folder of new files. A kill may leave a part of the last line, which is then removed.
    """
    whole, _, rest = record.read_bytes().rpartition(b"\n") if record.exists() else (b"", b"", b"")
    if rest:
        write_text(record, whole.decode() + "\n" * bool(whole))
    values = [parse_json(line, str(record)) for line in whole.splitlines()]
    return {one["new"]: Finished(*(one[name] for name in Finished._fields)) for one in values}


def transcode_all(clips: Sequence[Clip], out: Path, encoding: Encoding, workers: int) -> tuple[list[Clip], list[str]]:
    """Write the audio of all clips to a folder; return the clips with new files, and the errors of all other clips.

    The file finished.jsonl records every new file, with the size and time of change of its source file. If a call was
    stopped, the next call writes only the missing files, and those whose source has changed.
    """
    names = new_file_names(clips, encoding.format)
    before = _read_finished(out / FINISHED)

    def write_clip(index: int) -> Finished | AudioError:
        """Write the audio of one clip, unless its file is finished; return its record, or the error."""
        clip, path = clips[index], out / "audio" / names[index]
        try:
            require_file(clip.path)
            state = container_of(clip.path).stat()
            known = before.get(names[index])
            if known and path.is_file() and known[:3] == (clip.path, state.st_size, state.st_mtime_ns):
                return known
            return Finished(clip.path, state.st_size, state.st_mtime_ns, transcode(clip, path, encoding))
        except AudioError as error:
            return error

    new, errors = [], []
    busy = f"{out}: another process is writing to this folder; wait for its end or stop it"
    with (
        lock(out / "transcode.lock", busy),
        ThreadPoolExecutor(workers) as pool,
        progress("transcode", len(clips), "clip") as bar,
        (out / FINISHED).open("a", encoding="utf-8") as record,
    ):
        try:
            remove_parts(out)  # of a killed call
            for clip, name, found in zip(clips, names, pool.map(write_clip, range(len(clips))), strict=True):
                if isinstance(found, AudioError):
                    errors.append(str(found))
                else:
                    path = absolute(out / "audio" / name)
                    new.append(clip.model_copy(update={"path": path, "seconds": found.seconds}))
                    if before.get(name) != found:
                        record.write(json.dumps({"new": name, **found._asdict()}) + "\n")
                        record.flush()
                bar.advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return new, errors


def _require_same_settings(out: Path, manifest: Path, encoding: Encoding) -> None:
    """Write the settings into the folder `out`. Raises DataError if its files were made with other settings."""
    current = {"manifest": absolute(manifest), **encoding._asdict()}
    note = out / SETTINGS
    if note.exists():
        before = parse_json(note.read_bytes(), str(note))
        changed = [name for name, value in current.items() if before.get(name) != value]
        if changed:
            others = ", ".join(f"{name} was {before.get(name)}, but now is {current[name]}" for name in changed)
            raise DataError(
                f"{out} contains files of an earlier call with other settings ({others}); use another --out"
            )
        return
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out} is not empty, and was not written by this command (no {SETTINGS}); use another --out")
    write_text(note, json.dumps(current) + "\n")


def _audio_size(clips: Sequence[Clip]) -> str:
    """Return the total size of the clips' audio files as text, such as "1.2 GB"."""
    return format_size(sum(size_of(path) for path in {clip.path for clip in clips} if container_of(path).is_file()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `transcode` to its parser."""
    add = parser.add_argument
    add("manifest", type=Path, help="manifest whose audio is converted")
    add("--rate", type=int, default=32_000, metavar="HZ", help="sample rate of the new files (default: 32000)")
    add("--format", choices=list(SUBTYPES), default="mp3", help="format of the new files (default: mp3)")
    add("--bitrate", type=int, metavar="KBIT", help="bit rate of MP3 in kbit/s (default: 64)")
    add("--out", type=Path, required=True, help="folder for the new audio and manifest.jsonl")
    cores = os.cpu_count() or 1
    add("--workers", type=int, default=cores, metavar="N", help=f"threads (default: one per core, {cores})")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `transcode`: convert the audio of a manifest to one rate and format; return the exit status."""
    encoding = checked_encoding(arguments.rate, arguments.format, arguments.bitrate)
    if arguments.workers < 1:
        raise DataError(f"--workers {arguments.workers}: give at least 1")
    clips = read_manifest(arguments.manifest)
    _require_same_settings(arguments.out, arguments.manifest, encoding)
    new, errors = transcode_all(clips, arguments.out, encoding, arguments.workers)
    if not new:
        raise DataError(f"no audio of {arguments.manifest} can be converted; the first error: {errors[0]}")
    write_manifest(arguments.out / "manifest.jsonl", new)
    print(f"size of the audio before: {_audio_size(clips)}, after: {_audio_size(new)}")
    for error in errors:
        print(f"left out: {error}")
    print(f"wrote {arguments.out / 'manifest.jsonl'}: {counted(len(new), 'clip')}, {len(errors)} left out")
    return 1 if errors else 0
