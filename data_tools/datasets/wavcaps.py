"""Read WavCaps: AudioSet_SL, BBC, FreeSound or SoundBible.

Mei et al., "WavCaps: A ChatGPT-Assisted Weakly-Labelled Audio Captioning Dataset for Audio-Language Multimodal
Research", 2023; https://github.com/XinhaoMei/WavCaps. Its README restricts it to academic use.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from data_tools.cli import Manifest, counted
from data_tools.errors import KitError
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

    def stems(self) -> tuple[str, str]:
        """Possible names of the audio file without its suffix."""
        return Path(self.audio or "").stem, self.id.removesuffix(".wav")  # AudioSet's ids end in .wav


class _File(BaseModel):
    data: Annotated[list[_Item], Field(min_length=1)]


def audio_folder(path: Path) -> Path:
    """Return the folder with the audio of <root>/json_files/<part>/<name>.json. Raises KitError for none."""
    lists, part = path.absolute().parent.parent, path.absolute().parent.name
    for above in _AUDIO_FOLDERS:
        if lists.name == "json_files" and (folder := lists.parent / above / part).is_dir():
            return folder
    raise KitError(f"{path}: the folder with the audio of this file is unknown; name it by --audio")


def wavcaps(json: Path, *, out: Manifest, audio: Path | None = None, name: str = "", exclude: Lists = None) -> None:
    """Make a manifest of one of WavCaps' four parts.

    Each part needs a name of its own, because the parts use the same ids.

    Args:
        json: JSON file of a part of WavCaps, such as fsd_final.json.
        audio: Folder with the audio of that part, ID.flac, .mp3 or .wav; default: Audio/PART, WavCaps_mp3/Audio/PART or
            Zip_files/PART next to json_files/.
        name: Name of the clips' source, for their ids; default: JSON's name.
    """
    source, audio = check_source(name or json.stem), audio or audio_folder(json)
    require_folder(audio, "name the folder that holds the audio by --audio")
    exclusions, present = read_exclusions(exclude or []), {Path(name).stem: name for name in audio_names(audio)}
    clips: dict[str, Clip] = {}
    missing = excluded = 0
    for number, item in enumerate(read_shaped(json, _File, "give a file of WavCaps, such as fsd_final.json").data, 1):
        check_caption(item.caption, f"{json}, item {number}")
        on_freesound = any(_FREESOUND_LINK.search(link or "") for link in (item.download_link, item.href))
        freesound_id = item.id if on_freesound else None
        file = next((present[stem] for stem in item.stems() if stem in present), None)
        if freesound_id and plain_id(freesound_id) in exclusions:
            excluded += 1
        elif file is None:
            missing += 1
        elif file in clips:
            raise KitError(f"{json}, item {number}: {file} is the audio of an earlier item too; keep one of them")
        else:
            facts = {"freesound_id": freesound_id, "uploader": item.author}
            clips[file] = audio_clip(audio, file, source, "train", [item.caption], **facts)
    if not clips:
        raise KitError(f"{audio}: no audio of an allowed item of {json.name}; give its folder by --audio")
    write_manifest(out, clips.values())
    print(f"left out: {missing} without audio, {excluded} on exclusion lists")
    print(f"wrote {out}: {counted(len(clips), 'clip')}")
