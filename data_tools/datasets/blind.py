"""A folder of audio without captions, such as a challenge's blind evaluation set, as a manifest."""

import argparse
from pathlib import Path

from data_tools.audio.read import readable_seconds
from data_tools.errors import DataError
from data_tools.manifest import Clip, audio_clip, write_manifest
from data_tools.names import audio_names, check_source


def read_blind(folder: Path, source: str) -> tuple[list[Clip], int]:
    """A clip for every audio file of the folder, names exactly as on disk, sorted; and how many are unreadable.

    Hidden files and subfolders are not looked at. Raises DataError for a missing folder and one without audio.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    clips = [
        audio_clip(folder, name, source, "blind", [], readable_seconds(folder / name)) for name in audio_names(folder)
    ]
    if not clips:
        raise DataError(f"{folder}: no audio files in this folder; unpack the set and name the folder that holds them")
    return clips, sum(clip.seconds is None for clip in clips)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder that holds the audio files")
    parser.add_argument("--out", type=Path, required=True, help="the manifest to write (.jsonl)")
    parser.add_argument("--name", default="blind", help="the clips' source name (default: blind)")


def run(arguments: argparse.Namespace) -> int:
    clips, unreadable = read_blind(arguments.folder, check_source(arguments.name))
    write_manifest(arguments.out, clips)
    note = f", {unreadable} with unreadable audio (`check` names them)" if unreadable else ""
    print(f"wrote {arguments.out}: {len(clips)} clips{note}")
    return 0
