"""Make a smaller copy of a data set.

The audio becomes mono files of one rate and format; ids, captions and licences stay.
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Annotated, Literal

import soundfile
import typer

from data_tools.audio import encoded, read_audio, stated_rate
from data_tools.cli import counted, each
from data_tools.errors import AudioError, DataError
from data_tools.files import remove_parts, writing
from data_tools.manifest import Clip, read_manifest, write_manifest

SUBTYPES = {"flac": "PCM_16", "mp3": "MPEG_LAYER_III", "ogg": "VORBIS"}
RATES = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # Hz, of all three formats


def new_names(clips: Sequence[Clip], format: str) -> list[str]:
    """Return each clip's new file, SOURCE/SPLIT/NAME.FORMAT; digits of the id tell equal names apart."""
    stems = [f"{clip.source}/{clip.split}/{PurePath(clip.file_name).stem}" for clip in clips]
    count = Counter(map(str.casefold, stems))
    ends = [f".{sha256(clip.id.encode()).hexdigest()[:8]}.{format}" for clip in clips]
    return [stem + (end if count[stem.casefold()] > 1 else f".{format}") for stem, end in zip(stems, ends, strict=True)]


def convert(clip: Clip, path: Path, rate: int, format: str) -> Clip | AudioError:
    """Write a clip's audio to a file, unless it is there.

    Returns:
        The new clip, or why the audio cannot be read.
    """
    try:
        if not path.is_file():
            content = encoded(read_audio(clip.path, rate), rate, format.upper(), SUBTYPES[format])
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path) as out:
                out.write(content)
        return replace(clip, path=os.path.abspath(path), seconds=soundfile.info(path).duration)
    except AudioError as error:
        return error


def transcode(
    manifest: Annotated[Path, typer.Argument(help="Manifest with the audio to convert.")],
    out: Annotated[Path, typer.Option(help="Folder for the new files and their manifest.")],
    rate: Annotated[int, typer.Option(help=f"Sample rate of the new files: {', '.join(map(str, RATES))} Hz.")] = 32_000,
    format: Annotated[Literal["flac", "mp3", "ogg"], typer.Option(help="Format of the new files.")] = "flac",
) -> None:
    """Convert the audio of a manifest to mono of one rate."""
    if rate not in RATES:
        raise DataError(f"--rate {rate}: use one of {', '.join(map(str, RATES))}")
    clips = read_manifest(manifest)
    remove_parts(out)  # of a killed call
    paths = [out / f"{rate}" / name for name in new_names(clips, format)]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda clip, path: convert(clip, path, rate, format), clips, paths)
        found = list(each(results, "transcode", "clip", len(clips)))
    made = [one for one in found if isinstance(one, Clip)]
    errors = [one for one in found if isinstance(one, AudioError)]
    print(*(f"left out: {error}" for error in errors), sep="\n", end="\n" if errors else "")
    write_manifest(out / "manifest.jsonl", made)
    print(f"wrote {out / 'manifest.jsonl'}: {counted(len(made), 'clip')}, {len(errors)} left out")
    lower = sum(isinstance(one, Clip) and stated_rate(clip.path) < rate for clip, one in zip(clips, found, strict=True))
    if lower:
        print(f"note: {counted(lower, 'clip')} had a lower rate; a higher one adds nothing")
    if errors:
        raise typer.Exit(1)
