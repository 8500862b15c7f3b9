"""Read one of WavCaps' four parts.

AudioSet_SL, BBC, FreeSound or SoundBible.

Mei et al., "WavCaps: A ChatGPT-Assisted Weakly-Labelled Audio Captioning Dataset for Audio-Language Multimodal
Research", 2023; https://github.com/XinhaoMei/WavCaps. Its README restricts it to academic use.
"""

import re
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field

from data_tools.audio import AUDIO_SUFFIXES, readable_seconds
from data_tools.cli import Manifest, counted
from data_tools.errors import DataError
from data_tools.exclusion import Lists, read_exclusions
from data_tools.files import require_folder
from data_tools.manifest import Clip, audio_clip, check_caption, write_manifest
from data_tools.names import audio_names, check_source, plain_id
from data_tools.settings import read_shaped

# Form of the page links that only FreeSound items have. The ids of other parts are numbers too.
_FREESOUND_LINK = re.compile(r"freesound\.org/|^/people/[^/]+/sounds/\d+")
# Folders with the audio beside json_files/: of aac-datasets, of the baseline of 2025, of the Hugging Face hub.
_AUDIO_FOLDERS = ("Audio", "WavCaps_mp3/Audio", "Zip_files")


class _Item(BaseModel):
    model_config = ConfigDict(strict=True)
    id: Annotated[str, Field(min_length=1)]
    caption: str
    audio: str | None = None
    author: str | None = None
    download_link: str | None = None
    href: str | None = None

    def names(self) -> list[str]:
        """Possible names of the audio file, the most certain first."""
        stem = self.id.removesuffix(".wav")  # AudioSet's ids end in .wav
        return [*([Path(self.audio).name] if self.audio else []), *(stem + suffix for suffix in AUDIO_SUFFIXES)]


class _File(BaseModel):
    data: Annotated[list[_Item], Field(min_length=1)]


def read_wavcaps(path: Path, audio: Path, source: str, exclude: list[Path]) -> tuple[list[Clip], str]:
    """Read the clips of a WavCaps JSON file that have audio and are on no exclusion list.

    Args:
        path: File of the form {"num_captions_per_audio": 1, "data": [{"id", "caption", ...}]}.
        audio: Folder with the audio files, <id>.flac, .mp3 or .wav, or as an item's `audio` says.
        source: Source of the clips. Each part of WavCaps needs its own, because the parts use the same ids.
        exclude: Lists of forbidden Freesound ids.

    Returns:
        The clips, and a line of text on those that are left out.

    Raises:
        DataError: Another file or folder, a bad item or caption, two items of one file, no clip left.
    """
    require_folder(audio, "name the folder that holds the audio by --audio")
    exclusions, present = read_exclusions(exclude), {*audio_names(audio)}
    clips: dict[str, Clip] = {}
    missing = excluded = 0
    for number, item in enumerate(read_shaped(path, _File, "give a file of WavCaps, such as fsd_final.json").data, 1):
        check_caption(item.caption, f"{path}, item {number}")
        on_freesound = any(_FREESOUND_LINK.search(link or "") for link in (item.download_link, item.href))
        freesound_id = item.id if on_freesound else None
        name = next((name for name in item.names() if name in present), None)
        if freesound_id and plain_id(freesound_id) in exclusions:
            excluded += 1
        elif name is None:
            missing += 1
        elif name in clips:
            raise DataError(f"{path}, item {number}: {name} is the audio of an earlier item too; keep one of them")
        else:
            facts = readable_seconds(audio / name), freesound_id, None, item.author
            clips[name] = audio_clip(audio, name, source, "train", [item.caption], *facts)
    if not clips:
        raise DataError(f"{audio}: no audio of an allowed item of {path.name}; give its folder by --audio")
    return list(clips.values()), f"left out: {missing} without audio, {excluded} on exclusion lists"


def audio_folder(path: Path) -> Path:
    """Return the folder with the audio of <root>/json_files/<part>/<name>.json. Raises DataError for none."""
    lists, part = path.absolute().parent.parent, path.absolute().parent.name
    for above in _AUDIO_FOLDERS:
        if lists.name == "json_files" and (folder := lists.parent / above / part).is_dir():
            return folder
    raise DataError(f"{path}: the folder with the audio of this file is unknown; name it by --audio")


def wavcaps(
    json: Annotated[Path, typer.Argument(help="JSON file of a part of WavCaps, such as fsd_final.json.")],
    out: Manifest,
    audio: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder with the audio of that part; default: {', '.join(_AUDIO_FOLDERS)} next to json_files/."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the clips' source, for their ids; default: JSON's name.")] = "",
    exclude: Lists = None,
) -> None:
    """Make a manifest of one of WavCaps' four parts."""
    source = check_source(name or json.stem)
    clips, left_out = read_wavcaps(json, audio or audio_folder(json), source, exclude or [])
    write_manifest(out, clips)
    freesound = sum(clip.freesound_id is not None for clip in clips)
    print(left_out, f"wrote {out}: {counted(len(clips), 'clip')}, {freesound} with a Freesound id", sep="\n")
