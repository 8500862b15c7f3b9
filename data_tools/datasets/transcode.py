"""Make a smaller copy of a data set.

The audio becomes mono files of one rate and format; ids, captions and licences stay.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath

import numpy as np
import soundfile

from data_tools.audio import encoded, read_audio
from data_tools.cli import counted, each
from data_tools.errors import AudioError, DataError
from data_tools.files import remove_parts, writing
from data_tools.manifest import Clip, read_manifest, write_manifest

SUBTYPES = {"flac": "PCM_16", "mp3": "MPEG_LAYER_III", "ogg": "VORBIS"}


def new_names(clips: Sequence[Clip], format: str) -> list[str]:
    """Return each clip's new file, SOURCE/SPLIT/NAME.FORMAT; digits of the id tell equal names apart."""
    stems = [f"{clip.source}/{clip.split}/{PurePath(clip.file_name).stem}" for clip in clips]
    count = Counter(map(str.casefold, stems))
    ends = [f".{sha256(clip.id.encode()).hexdigest()[:8]}.{format}" for clip in clips]
    return [stem + (end if count[stem.casefold()] > 1 else f".{format}") for stem, end in zip(stems, ends, strict=True)]


def transcode(clips: Sequence[Clip], folder: Path, rate: int, format: str) -> tuple[list[Clip], list[str]]:
    """Write the audio of clips to a folder; a file that is there is not written again.

    Returns:
        The clips with new paths and lengths, and the errors of clips that cannot be read.
    """
    paths = [folder / name for name in new_names(clips, format)]

    def convert(clip: Clip, path: Path) -> Clip | AudioError:
        try:
            if not path.is_file():
                content = encoded(read_audio(clip.path, rate), rate, format.upper(), SUBTYPES[format])
                path.parent.mkdir(parents=True, exist_ok=True)
                with writing(path) as out:
                    out.write(content)
            return replace(clip, path=os.path.abspath(path), seconds=soundfile.info(path).duration)
        except AudioError as error:
            return error

    with ThreadPoolExecutor() as pool:
        found = list(each(pool.map(convert, clips, paths), "transcode", "clip", len(clips)))
    made = [one for one in found if isinstance(one, Clip)]
    return made, [str(one) for one in found if isinstance(one, AudioError)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `transcode` to its parser."""
    add = parser.add_argument
    add("manifest", type=Path, help="manifest with the audio to convert")
    add("--rate", type=int, default=32_000, help="sample rate of the new files in Hz")
    add("--format", choices=SUBTYPES, default="flac", help="format of the new files")
    add("--out", type=Path, required=True, help="folder for the new files; one for each rate and format")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `transcode`: convert the audio of a manifest; return the exit status."""
    rate, format, note = arguments.rate, arguments.format, arguments.out / "transcode.txt"
    settings = f"{os.path.abspath(arguments.manifest)} as {format} at {rate} Hz\n"
    try:
        encoded(np.zeros(100, np.float32), rate, format.upper(), SUBTYPES[format])
    except (soundfile.LibsndfileError, ValueError):
        raise DataError(f"--rate {rate}: {format} does not have this rate; use 32000 or 44100") from None
    clips = read_manifest(arguments.manifest)
    if note.exists() and note.read_text() != settings:
        raise DataError(f"{arguments.out}: holds {note.read_text().strip()}; use another --out")
    arguments.out.mkdir(parents=True, exist_ok=True)
    note.write_text(settings)
    remove_parts(arguments.out)  # of a killed call
    made, errors = transcode(clips, arguments.out / "audio", rate, format)
    for error in errors:
        print(f"left out: {error}")
    if not made:
        raise DataError(f"{arguments.manifest}: no audio can be converted")
    write_manifest(arguments.out / "manifest.jsonl", made)
    print(f"wrote {arguments.out / 'manifest.jsonl'}: {counted(len(made), 'clip')}, {len(errors)} left out")
    return 1 if errors else 0
