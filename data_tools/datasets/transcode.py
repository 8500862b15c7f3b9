"""Convert audio to one rate and format.

A smaller and faster copy of a data set, as mono files; ids, captions and licences stay.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from data_tools.audio.read import MIN_RATE, AudioError, decoded_blocks, mixed_to_mono, opened
from data_tools.audio.resampling import resampler
from data_tools.cli import counted, progress
from data_tools.errors import DataError
from data_tools.files import absolute, replacing, write_text
from data_tools.manifest import Clip, read_manifest, write_manifest

Format = Literal["mp3", "flac", "ogg"]
SUBTYPES = {"mp3": ("MP3", "MPEG_LAYER_III"), "flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS")}
KBITS = {False: (8, 160), True: (32, 320)}  # lowest and highest bit rate of MP3, below 32 kHz and from there on
MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
SETTINGS = "transcode.json"


class Encoding(NamedTuple):
    """Form of the new files. rate: In Hz. kbits: Bit rate of MP3 in kbit/s; None for the other formats."""

    rate: int
    format: Format
    kbits: int | None

    def quality(self) -> dict[str, Any]:
        """Return the arguments of SoundFile for the bit rate."""
        if self.kbits is None:
            return {}
        low, high = KBITS[self.rate >= 32_000]
        return {"compression_level": (high - self.kbits) / (high - low), "bitrate_mode": "CONSTANT"}


def encoding_of(rate: int, format: Format, kbits: int | None) -> Encoding:
    """Return a checked encoding. Raises DataError for a rate or a bit rate that the format does not have."""
    if not MIN_RATE <= rate <= 192_000:
        raise DataError(f"--rate {rate}: give {MIN_RATE:,} to 192,000 Hz, such as 32000")
    if format != "mp3":
        if kbits is not None:
            raise DataError(f"--bitrate {kbits}: {format} has no bit rate to set; leave it out, or use --format mp3")
        return Encoding(rate, format, None)
    if rate not in MP3_RATES:
        raise DataError(
            f"--rate {rate}: MP3 has {', '.join(map(str, MP3_RATES))} Hz; use one of them, or --format flac"
        )
    low, high = KBITS[rate >= 32_000]
    kbits = kbits or min(high, 64)
    if not low < kbits <= high:
        raise DataError(f"--bitrate {kbits}: MP3 at {rate} Hz has more than {low}, and at most {high} kbit/s")
    return Encoding(rate, format, kbits)


def new_names(clips: Sequence[Clip], format: Format) -> list[str]:
    """Return the path of each clip's new file, below the new folder.

    It is <source>/<split>/<old name>.<format>, with 8 digits of its id's sha256 if two clips would share it.
    """
    names = [f"{clip.source}/{clip.split}/{PurePath(clip.file_name).stem}" for clip in clips]
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
    """Write a clip's audio to a new file, unless it has been written from the same file. Returns its seconds.

    The new file gets the modification time of the old one: a later call skips files with equal times. Audio of any
    length takes the memory of a block. Raises AudioError for audio that cannot be read or encoded.
    """
    import soundfile

    if not Path(clip.path).is_file():
        raise AudioError(f"{clip.path}: no such audio file")
    changed = Path(clip.path).stat()
    if path.is_file() and path.stat().st_mtime_ns == changed.st_mtime_ns:
        return float(soundfile.info(path).frames / encoding.rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    format_, subtype = SUBTYPES[encoding.format]
    samples = 0
    with replacing(path) as temporary:
        with soundfile.SoundFile(
            temporary, "w", encoding.rate, 1, subtype, format=format_, **encoding.quality()
        ) as file:
            for part in _resampled(clip.path, encoding.rate):
                file.write(part)
                samples += len(part)
        _require_length(temporary, samples, encoding)
        os.utime(temporary, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    return samples / encoding.rate


def _resampled(path: str, rate: int) -> Iterator[Any]:
    """Yield the samples of a file as mono blocks at `rate` Hz."""
    with opened(path) as file:
        resample, done = resampler(file.samplerate, rate, "soxr_hq"), 0
        for block in decoded_blocks(path, file, file.frames):
            done += len(block)
            yield resample(mixed_to_mono(block), done == file.frames)


def _require_length(path: Path, samples: int, encoding: Encoding) -> None:
    """Raise DataError if a new file has another number of samples than `samples`: MP3 of few bits has no length tag."""
    import soundfile

    if soundfile.info(path).frames != samples:
        problem = f"--bitrate {encoding.kbits}: MP3 at {encoding.rate} Hz has no room for its exact length"
        raise DataError(f"{problem}; use a higher bit rate, or a lower --rate")


def transcode_all(clips: Sequence[Clip], out: Path, encoding: Encoding, workers: int) -> tuple[list[Clip], list[str]]:
    """Write the audio of all clips below a folder. Returns the clips with new files, and the error of each other clip.

    Files that a stopped command has finished are not written again.
    """
    names = new_names(clips, encoding.format)

    def one(index: int) -> tuple[Clip | None, str]:
        """Write the audio of one clip."""
        path = out / "audio" / names[index]
        try:
            seconds = transcode(clips[index], path, encoding)
        except AudioError as error:
            return None, str(error)
        return clips[index].model_copy(update={"path": absolute(path), "seconds": seconds}), ""

    new, errors = [], []
    with ThreadPoolExecutor(workers) as pool, progress("transcode", len(clips), "clip") as bar:
        try:
            for clip, error in pool.map(one, range(len(clips))):
                new += [clip] if clip else []
                errors += [error] if error else []
                bar.advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return new, errors


def _require_same_settings(out: Path, manifest: Path, encoding: Encoding) -> None:
    """Record the settings in the folder. Raises DataError if its files were made with other settings."""
    current = {"manifest": absolute(manifest), **encoding._asdict()}
    note = out / SETTINGS
    if note.exists():
        before = json.loads(note.read_text(encoding="utf-8"))
        if before != current:
            raise DataError(
                f"{out} holds files made with {before}, not with {current}; use another --out, or delete it"
            )
        return
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out} is not empty, and holds no {SETTINGS} of an earlier call; use another --out")
    write_text(note, json.dumps(current) + "\n")


def _size(paths: Sequence[str]) -> str:
    """Format the size of files."""
    total = sum(os.stat(path).st_size for path in set(paths) if os.path.isfile(path))  # noqa: PTH113, PTH116
    return f"{total / 1e9:,.3f} GB"


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
    """Run this verb with its parsed arguments; return the exit status."""
    encoding = encoding_of(arguments.rate, arguments.format, arguments.bitrate)
    if arguments.workers < 1:
        raise DataError(f"--workers {arguments.workers}: give at least 1")
    clips = read_manifest(arguments.manifest)
    _require_same_settings(arguments.out, arguments.manifest, encoding)
    new, errors = transcode_all(clips, arguments.out, encoding, arguments.workers)
    if not new:
        raise DataError(f"no audio of {arguments.manifest} can be converted, first {errors[0]}")
    write_manifest(arguments.out / "manifest.jsonl", new)
    print(f"before: {_size([clip.path for clip in clips])}, after: {_size([clip.path for clip in new])}")
    for error in errors:
        print(f"left out: {error}")
    print(f"wrote {arguments.out / 'manifest.jsonl'}: {counted(len(new), 'clip')}, {len(errors)} left out")
    return 1 if errors else 0
