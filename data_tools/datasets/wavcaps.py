"""Read WavCaps.

Reads one of WavCaps' four parts (AudioSet_SL, BBC, FreeSound, SoundBible); makes a manifest.

Mei et al., "WavCaps: A ChatGPT-Assisted Weakly-Labelled Audio Captioning Dataset for Audio-Language Multimodal
Research", 2023; https://github.com/XinhaoMei/WavCaps. Its README restricts it to academic use.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_tools.audio import AUDIO_SUFFIXES, readable_seconds
from data_tools.cli import add_manifest, counted
from data_tools.documents.json_text import parse_json
from data_tools.documents.strict import faults_of
from data_tools.errors import DataError
from data_tools.files import absolute, read_text, require_folder
from data_tools.leakage.exclusion import read_exclusions
from data_tools.manifest import Clip, audio_clip, check_caption, write_manifest
from data_tools.names import audio_names, check_source

# Form of the page links that only FreeSound items have. The ids of other parts are numbers too.
_FREESOUND_LINK = re.compile(r"freesound\.org/|^/people/[^/]+/sounds/\d+")


def read_wavcaps(path: Path, audio: Path, source: str, keep_missing: bool = False) -> tuple[list[Clip], int]:
    """Return the clips of a WavCaps JSON file, and the number of items without audio. keep_missing: Include them.

    Args:
        path: The file, of the form {"num_captions_per_audio": 1, "data": [{"id", "caption", ...}]}.
        audio: The folder with the audio files. A file is named by the item's `audio` or by its id: `<id>.flac` as
            distributed, or `<id>` for AudioSet, whose ids end in .wav.
        source: Source of the clips. Each part of WavCaps needs its own, because the parts use the same ids.
        keep_missing: Items without audio get the published duration.
    Raises DataError for a missing file or folder, other JSON, bad items and captions, two items of one file, and if no
    clip is left.
    """
    present = _audio_files(audio)
    clips = []
    missing = 0
    numbers: dict[str, int] = {}  # item numbers, by file
    for number, item in enumerate(_read_items(path), 1):
        where = f"{path}, item {number}"
        item_id, caption = item.get("id"), item.get("caption")
        if not isinstance(item_id, str) or not item_id.strip():
            raise DataError(f"{where}: the id is missing or not a string such as '180913'; correct it")
        if not isinstance(caption, str):
            raise DataError(f"{where}: the caption is missing or not a string; correct it")
        check_caption(caption, where)
        names = _possible_names(item_id, item.get("audio"))
        name = next((name for name in names if name in present), None)
        missing += name is None
        if name or keep_missing:
            if (before := numbers.setdefault(name or names[-1], number)) != number:
                raise DataError(_shared_file_message(path, item_id, before, number))
            try:
                clips.append(_make_clip(item, audio, name, names[-1], source, present.get(name or "")))
            except ValidationError as error:
                raise DataError(f"{where}: {faults_of(error)[0]}") from None
    if not clips:
        raise DataError(
            f"{audio}: no audio file of {path.name}, such as {names[-1]}, in this folder; give the right folder "
            "by --audio, or add --keep-missing to include items without audio"
        )
    return clips, missing


def _audio_files(audio: Path) -> dict[str, str]:
    """Return a dict from name to path of the audio files in a folder, or else in its tar and zip files."""
    if not audio.is_file():
        require_folder(audio, "name the folder that holds the audio by --audio")
    return {name: absolute(audio / name) for name in audio_names(audio)}


def audio_folder(path: Path, among: Sequence[str] = ("Audio", "WavCaps_mp3/Audio", "Zip_files")) -> Path | None:
    """Find the folder with the audio files of a JSON file of WavCaps; return None if no such folder exists.

    path: The JSON file, <root>/json_files/<part>/<name>.json.
    among: Names of folders in <root> that may contain the audio. The first existing folder <root>/<name>/<part>/ is
    returned. The default has the folders of aac-datasets (Audio/), of the baseline of 2025 (WavCaps_mp3/Audio/) and of
    the Hugging Face hub (Zip_files/).
    """
    lists, part = path.absolute().parent.parent, path.absolute().parent.name
    folders = (lists.parent / above / part for above in among)
    return next((folder for folder in folders if lists.name == "json_files" and folder.is_dir()), None)


def _shared_file_message(path: Path, item_id: str, before: int, number: int) -> str:
    """Return the error message on two WavCaps items with the same audio file. before, number: Numbers of the items.

    The message states the line of the second item in the JSON file, if its id is written in the usual form.
    """
    text = read_text(path)
    written = list(re.finditer(r'"id"\s*:\s*' + re.escape(json.dumps(item_id, ensure_ascii=False)), text))
    line = f" (line {text.count(chr(10), 0, written[min(1, len(written) - 1)].start()) + 1})" if written else ""
    return f"{path}, item {number}{line}: the id {item_id!r} has the same audio file as item {before}; keep one of them"


def _read_items(path: Path) -> list[dict[str, Any]]:
    """Read the list of items of a WavCaps JSON file. Raises DataError for other content."""
    try:
        content = parse_json(read_text(path), str(path))
    except DataError as error:
        raise DataError(f"{error}; give a JSON file of WavCaps, such as fsd_final.json") from None
    items = content.get("data") if isinstance(content, dict) else None
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise DataError(
            f"{path}: not a JSON file of WavCaps, which has the form {{'num_captions_per_audio': 1, 'data': "
            "[items]}; give a file such as fsd_final.json"
        )
    return items


def _possible_names(item_id: str, audio: object) -> list[str]:
    """Return the possible names of a WavCaps item's audio file, .flac last. audio: Path that the item states."""
    stem = item_id.removesuffix(".wav")
    names = [f"{stem}{suffix}" for suffix in AUDIO_SUFFIXES if suffix != ".flac"] + [f"{stem}.flac"]
    if isinstance(audio, str) and audio.lower().endswith(AUDIO_SUFFIXES):  # published files: "wav_path"
        names.insert(0, Path(audio).name)
    return names


def _make_clip(
    item: dict[str, Any], folder: Path, file: str | None, expected: str, source: str, path: str | None
) -> Clip:
    """Make the clip of a WavCaps item with the audio file `file`; if it is missing (None), name the clip `expected`.

    Args:
        path: Path of the audio file; None if it is missing.
    """
    seconds = readable_seconds(path) if path else item.get("duration")
    on_freesound = any(_FREESOUND_LINK.search(str(item.get(key, ""))) for key in ("download_link", "href"))
    freesound_id, uploader = item["id"] if on_freesound else None, item.get("author")
    captions = [item["caption"]]
    return audio_clip(
        folder, file or expected, source, "train", captions, seconds, freesound_id, uploader=uploader, path=path
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `wavcaps` to its parser."""
    add = parser.add_argument
    add("json", type=Path, help="JSON file of a part of WavCaps, such as fsd_final.json")
    audio = (
        "folder with the audio files of that part (default: Audio/, WavCaps_mp3/Audio/ or Zip_files/ next to "
        "json_files/)"
    )
    add("--audio", type=Path, help=audio)
    add("--name", help="name of the clips' source, for their ids (default: the JSON file's name)")
    add("--keep-missing", action="store_true", help="also list items whose audio is missing")
    lists = "lists of forbidden Freesound ids, whose clips are left out"
    add("--exclude", type=Path, nargs="+", default=[], metavar="LIST", help=lists)
    add_manifest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `wavcaps`: make a manifest of one of WavCaps' four parts; return the exit status."""
    source = check_source(arguments.name or arguments.json.stem)
    exclusions = read_exclusions(arguments.exclude)
    audio = arguments.audio or audio_folder(arguments.json)
    if audio is None:
        raise DataError(f"{arguments.json}: the folder with the audio of this file is unknown; name it by --audio")
    clips_read, missing = read_wavcaps(arguments.json, audio, source, arguments.keep_missing)
    clips = [clip for clip in clips_read if clip.freesound_id is None or not exclusions.lists(clip.freesound_id)]
    if not clips:
        raise DataError(
            f"{arguments.json}: --exclude forbids all {counted(len(clips_read), 'clip')} of the file; check the lists"
        )
    write_manifest(arguments.out, clips)
    freesound = sum(clip.freesound_id is not None for clip in clips)
    print(f"audio of {counted(missing, 'item')} is missing")
    if arguments.exclude:
        left_out = counted(len(clips_read) - len(clips), "clip", ",")
        print(f"left out because of the lists of --exclude: {left_out}")
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}, {freesound} with a Freesound id")
    return 0
