"""Read a folder of audio without captions.

Reader of a folder of audio without captions, such as a challenge's blind evaluation set; makes a manifest.
"""

import argparse
import logging
from pathlib import Path

from data_tools.audio import readable_seconds
from data_tools.cli import add_manifest, counted
from data_tools.errors import DataError
from data_tools.files import require_folder
from data_tools.manifest import Clip, audio_clip, write_manifest
from data_tools.names import audio_tree, check_source

log = logging.getLogger(__name__)


def read_blind(folder: Path, source: str) -> tuple[list[Clip], int]:
    """Return a clip for every audio file of a folder and its subfolders, and the number of unreadable files."""
    clips, _ = folder_clips(folder, source)
    return clips, sum(clip.seconds is None for clip in clips)


def folder_clips(folder: Path, source: str) -> tuple[list[Clip], list[str]]:
    """Return a clip for every audio file of the folder and its subfolders, and the names of the other files.

    Clips are sorted. Their names are relative to the folder and exactly as on disk. Other files are counted and named
    in the log; hidden files are ignored. Raises DataError for a missing folder and one without audio.
    """
    require_folder(folder)
    names, others = audio_tree(folder)
    if others:
        log.warning("%s: skipped %d files that are not audio, such as %s", folder, len(others), others[0])
    if not names:
        raise DataError(f"{folder}: no audio files in this folder; unpack the data set, and give its folder")
    return [audio_clip(folder, name, source, "blind", [], readable_seconds(folder / name)) for name in names], others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `blind` to its parser."""
    parser.add_argument("folder", type=Path, help="the folder that holds the audio files")
    add_manifest(parser)
    parser.add_argument("--name", default="blind", help="name of the clips' source, for their ids (default: blind)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `blind`: make a manifest of a folder of audio without captions; return the exit status."""
    clips, unreadable = read_blind(arguments.folder, check_source(arguments.name))
    write_manifest(arguments.out, clips)
    note = f", {unreadable} with unreadable audio (`check` names them)" if unreadable else ""
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}{note}")
    return 0
