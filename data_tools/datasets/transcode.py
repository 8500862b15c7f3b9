"""Make a smaller copy of a data set.

The audio becomes mono files of one rate and format; ids, captions and licences stay.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Annotated, Literal

import numpy as np
import soundfile
import typer

from data_tools.audio import encoded, read_audio
from data_tools.cli import counted, each
from data_tools.errors import AudioError, KitError
from data_tools.files import remove_parts, writing
from data_tools.manifest import Clip, read_manifest, write_manifest

SUBTYPES = {"flac": "PCM_16", "mp3": "MPEG_LAYER_III", "ogg": "VORBIS"}


def convert(clip: Clip, out: Path, rate: int, format: str) -> Clip | AudioError:
    """Write a clip's audio to OUT/RATE/SOURCE/SPLIT/NAME.DIGITS.FORMAT, unless it is there.

    The digits, of the id, tell equal names apart.

    Returns:
        The new clip, or why the audio cannot be read.
    """
    digits = sha256(clip.id.encode()).hexdigest()[:8]
    path = out / f"{rate}/{clip.source}/{clip.split}/{PurePath(clip.file_name).stem}.{digits}.{format}"
    try:
        if not path.is_file():
            content = encoded(read_audio(clip.path, rate), rate, format.upper(), SUBTYPES[format])
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path) as file:
                file.write(content)
        return replace(clip, path=os.path.abspath(path), seconds=soundfile.info(path).duration)
    except AudioError as error:
        return error


def transcode(
    manifest: Path,
    *,
    out: Path,
    rate: Annotated[int, typer.Option(min=1)] = 32_000,
    format: Literal["flac", "mp3", "ogg"] = "flac",
) -> None:
    """Convert the audio of a manifest to mono of one rate.

    Args:
        manifest: Manifest with the audio to convert.
        out: Folder for the new files and their manifest.
        rate: Sample rate of the new files in Hz.
        format: Format of the new files.
    """
    clips = read_manifest(manifest)
    try:
        encoded(np.zeros(rate), rate, format.upper(), SUBTYPES[format])
    except soundfile.LibsndfileError as error:
        raise KitError(f"--rate {rate}: {format} has no such rate ({error.error_string})") from None
    remove_parts(out)  # of a killed call
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda clip: convert(clip, out, rate, format), clips)
        made = []
        for one in each(found, "transcode", "clip", len(clips)):
            if isinstance(one, Clip):
                made.append(one)
            else:
                print(f"left out: {one}")
    write_manifest(out / "manifest.jsonl", made)
    print(f"wrote {out / 'manifest.jsonl'}: {counted(len(made), 'clip')}, {len(clips) - len(made)} left out")
    if len(made) < len(clips):
        raise typer.Exit(1)
