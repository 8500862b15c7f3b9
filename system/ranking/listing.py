"""The clips of a folder or a manifest that are to be ranked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from data_tools.datasets.blind import folder_clips
from data_tools.files import absolute
from data_tools.manifest import Clip, of_split, read_manifest


class Listed(NamedTuple):
    """clips: of a folder or a manifest. others: paths of files that are no clips, and the reason of each."""

    clips: Sequence[Clip]
    others: Mapping[str, str] = MappingProxyType({})


def list_clips(path: Path, split: str | None) -> Listed:
    """Return the clips of a manifest (.jsonl), or every audio file of a folder; of one split, or all.

    Raises KitError if there is no clip, and DataError as reading a manifest does.
    """
    if not path.is_dir():
        return Listed(of_split(read_manifest(path), split, path))
    clips, others = folder_clips(path, path.resolve().name)
    no_audio = {absolute(path / name): "its name is no audio's" for name in others}
    return Listed(of_split(clips, split, path), no_audio)
