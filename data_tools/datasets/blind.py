"""Read a folder of audio without captions."""

import logging
from pathlib import Path

from data_tools.cli import Manifest, counted
from data_tools.errors import KitError
from data_tools.files import require_folder
from data_tools.manifest import Clip, audio_clip, write_manifest
from data_tools.names import audio_tree, check_source

log = logging.getLogger(__name__)


def folder_clips(folder: Path, source: str) -> tuple[list[Clip], list[str]]:
    """Return a clip for every audio file of the folder and its subfolders, and the names of the other files.

    Clips are sorted. Their names are relative to the folder and exactly as on disk. Other files are counted and named
    in the log; hidden files are ignored. Raises KitError for a missing folder and one without audio.
    """
    require_folder(folder)
    names, others = audio_tree(folder)
    if others:
        log.warning("%s: skipped %d files that are not audio, such as %s", folder, len(others), others[0])
    if not names:
        raise KitError(f"{folder}: no audio files in this folder; unpack the data set, and give its folder")
    return [audio_clip(folder, name, source, "blind", []) for name in names], others


def blind(
    folder: Path,
    *,
    out: Manifest,
    name: str = "blind",
) -> None:
    """Make a manifest of a folder of audio without captions.

    Args:
        folder: The folder that holds the audio files.
        name: Name of the clips' source, for their ids.
    """
    clips, _ = folder_clips(folder, check_source(name))
    write_manifest(out, clips)
    unreadable = sum(clip.seconds is None for clip in clips)
    note = f", {unreadable} with unreadable audio (`check` names them)" if unreadable else ""
    print(f"wrote {out}: {counted(len(clips), 'clip')}{note}")
