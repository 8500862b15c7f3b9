"""Read a folder of audio without captions."""

from pathlib import Path

from data_tools.cli import Manifest, counted
from data_tools.manifest import folder_clips, write_manifest
from data_tools.names import check_source


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
    clips = folder_clips(folder, check_source(name))
    write_manifest(out, clips)
    unreadable = sum(clip.seconds is None for clip in clips)
    note = f", {unreadable} with unreadable audio (`check` names them)" if unreadable else ""
    print(f"wrote {out}: {counted(len(clips), 'clip')}{note}")
