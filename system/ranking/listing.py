"""List the clips to rank.

List the clips of a folder or a manifest for ranking.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from data_tools.datasets.blind import folder_clips
from data_tools.manifest import Clip, of_split, read_manifest


class Listed(NamedTuple):
    """Files of a folder or a manifest. clips: The clips. others: Dict from each other file to the reason."""

    clips: Sequence[Clip]
    others: Mapping[str, str] = MappingProxyType({})


def list_clips(path: Path, split: str | None) -> Listed:
    """List the clips of a manifest (.jsonl), or every audio file of a folder.

    split: Split of the manifest; None for all splits.
    Raises KitError if there is no clip, and DataError if the manifest cannot be read.
    """
    if not path.is_dir():
        return Listed(of_split(read_manifest(path), split, path))
    clips, others = folder_clips(path, path.resolve().name)
    no_audio = {
        os.path.abspath(path / name): "the file name does not end in an audio format, such as .wav" for name in others
    }
    return Listed(of_split(clips, split, path), no_audio)
