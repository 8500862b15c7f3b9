"""Read AudioCaps v1 or v2 as published.

Kim et al., "AudioCaps: Generating Captions for Audios in The Wild", NAACL 2019; https://github.com/cdjkim/audiocaps
The audio files are parts of YouTube videos. Some videos are gone: published scores use 957 to 975 test clips.
"""

import re
from collections import Counter
from pathlib import Path
from typing import cast

from data_tools.cli import Manifest, counted
from data_tools.errors import KitError
from data_tools.files import require_folder
from data_tools.manifest import Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.names import audio_names
from data_tools.tables import read_table

AUDIOCAPS_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_TIMES = re.compile(r"(.+?)_([0-9]{1,9})(?:\.0+)?(?:[_-]([0-9]{1,9})(?:\.0+)?)?", re.DOTALL)

Key = tuple[str, int]  # YouTube id, and start in seconds


def _folders(root: Path) -> tuple[Path, Path]:
    """Return the folders of the tables and of the audio: those of aac-datasets 0.7.0, or else `root` for both."""
    base = root / "AUDIOCAPS" if (root / "AUDIOCAPS").is_dir() else root
    tables, audio = sorted(base.glob("csv_files_v*")), sorted(base.glob("audio_*Hz"))
    return (tables or [root if (root / "train.csv").exists() else base])[0], (audio or [base])[0]


def _keys(stem: str, key_of: dict[str, Key]) -> list[Key]:
    """Return the clips that a file name can mean, without its suffix.

    key_of: The clip of each audiocap id, of each youtube_id that one clip has, and of each "<youtube_id>_<start>".
    """
    names = [stem]
    if times := _TIMES.fullmatch(stem):
        start, end = int(times[2]), int(times[3] or 0)
        scale = 1000 if end - start > 11 else 1  # clips have 10 s: these times are milliseconds
        names.append(f"{times[1]}_{start // scale}")
    names += [name.removeprefix("Y") for name in names]
    return [key_of[name] for name in names if name in key_of]


def _read_captions(path: Path) -> tuple[dict[Key, list[str]], dict[str, Key]]:
    """Return the captions of each clip, and the clip of each name that its file can have."""
    captions: dict[Key, list[str]] = {}
    key_of: dict[str, Key] = {}
    for line, row in read_table(path, ["audiocap_id", "youtube_id", "start_time", "caption"]):
        video, start, number = row["youtube_id"], row["start_time"], row["audiocap_id"]
        check_caption(row["caption"], f"{path}, line {line}")
        if not video.strip() or not re.fullmatch("[0-9]{1,9}", start) or number in key_of:
            raise KitError(f"{path}, line {line}: no youtube_id, a start_time that is no number, or a repeated id")
        key = video, int(start)
        captions.setdefault(key, []).append(row["caption"])
        key_of |= {number: key, f"{video}_{key[1]}": key}
    count = Counter(video for video, _ in captions)
    return captions, key_of | {key[0]: key for key in captions if count[key[0]] == 1}


def audiocaps(
    root: Path,
    *,
    out: Manifest,
    audio: Path | None = None,
    splits: list[str] | None = None,
) -> None:
    """Make a manifest of AudioCaps.

    Args:
        root: Folder with train.csv, val.csv and test.csv, or a folder that aac-datasets made.
        audio: Folder with the audio, in SPLIT/ or directly; default: ROOT.
        splits: A split to read; repeat. Default: all.
    """
    require_folder(root)
    tables, found_audio = _folders(root)
    audio = audio or found_audio
    clips: list[Clip] = []
    for split in cast("list[Split]", splits) or AUDIOCAPS_SPLITS:
        captions, key_of = _read_captions(tables / f"{split}.csv")
        files: dict[Key, Path] = {}
        for folder in (audio / split, audio):
            for name in audio_names(folder):
                for key in _keys(Path(name).stem, key_of):
                    files.setdefault(key, folder / name)
        for key, texts in captions.items():
            if file := files.get(key):
                clips.append(audio_clip(file.parent, file.name, "audiocaps", split, texts))
        text = f"{counted(len(captions), 'clip')}, {counted(sum(map(len, captions.values())), 'caption')} published"
        print(f"{split}: {text}; {len(captions) - len(files)} without audio are left out")
    if not clips:
        raise KitError(f"{audio}: no audio file is named YOUTUBEID_START.wav; give the folder by --audio")
    write_manifest(out, clips)
    print(f"wrote {out}: {counted(len(clips), 'clip')}")
