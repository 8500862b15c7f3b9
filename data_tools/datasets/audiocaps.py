"""AudioCaps (v1, v2) as published, as a manifest.

Kim et al., "AudioCaps: Generating Captions for Audios in The Wild", NAACL 2019; https://github.com/cdjkim/audiocaps
The audio are parts of YouTube videos, of which some are gone: published scores are on 957 to 975 test clips.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from data_tools.audio.read import readable_seconds
from data_tools.cli import counted, ending_in
from data_tools.errors import DataError
from data_tools.files import read_table, require_file, require_folder
from data_tools.manifest import Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.names import audio_names

AUDIOCAPS_SPLITS: tuple[Split, ...] = ("train", "val", "test")
COLUMNS = ("audiocap_id", "youtube_id", "start_time", "caption")
SUFFIXES = (".wav", ".flac", ".mp3")


def read_audiocaps(
    root: Path, audio: Path | None = None, splits: Sequence[Split] = AUDIOCAPS_SPLITS, keep_missing: bool = False
) -> tuple[list[Clip], list[str]]:
    """Clips of the asked splits in the CSV files' order, and a line of counts per split.

    root: the folder with <split>.csv. audio: the folder with the audio (default root), in <split>/ or directly,
    as <youtube_id>_<start_time> or Y<youtube_id> with .wav, .flac or .mp3.
    Rows with the same youtube_id and start_time are one clip with several captions (5 in val and test).
    keep_missing: list clips without audio too; else they are left out.
    Raises DataError for a missing CSV file, bad rows, bad captions, and when no clip is left.
    """
    require_folder(root)
    clips: list[Clip] = []
    counts = []
    for split in splits:
        require_file(root / f"{split}.csv", "name AudioCaps' folder, which holds it, and the --splits that it has")
        captions = _captions(root / f"{split}.csv")
        folders = [(audio or root) / split, audio or root]
        present = {name: folder for folder in reversed(folders) for name in audio_names(folder)}
        found = 0
        for (youtube_id, start), texts in captions.items():
            names = [f"{stem}{suffix}" for stem in (f"{youtube_id}_{start}", f"Y{youtube_id}") for suffix in SUFFIXES]
            name = next((name for name in names if name in present), None)
            found += name is not None
            if name or keep_missing:
                folder, file_name = present.get(name or "", folders[0]), name or names[0]
                seconds = readable_seconds(folder / file_name)
                clips.append(audio_clip(folder, file_name, "audiocaps", split, texts, seconds))
        in_all = counted(sum(map(len, captions.values())), "caption")
        published = f"{split}: {counted(len(captions), 'clip')}, {in_all} published"
        counts.append(f"{published}; audio of {found} found, of {len(captions) - found} missing")
    if not clips:
        hint = "name the folder by --audio, or list all clips by --keep-missing"
        expected = "<youtube_id>_<start_time>.wav or Y<youtube_id>.wav"
        raise DataError(f"{audio or root}: no audio by the names {expected}; {hint}")
    return clips, counts


def _captions(path: Path) -> dict[tuple[str, int], list[str]]:
    """Captions by (youtube_id, start time in seconds)."""
    captions: dict[tuple[str, int], list[str]] = {}
    for line, row in read_table(path, COLUMNS):
        where = f"{path}, line {line}"
        check_caption(row["caption"], where)
        if not row["youtube_id"].strip():
            raise DataError(f"{where}: the youtube_id is empty")
        if not re.fullmatch("[0-9]{1,9}", row["start_time"]):
            raise DataError(f"{where}: the start_time {row['start_time'][:40]!r} is not a number of whole seconds")
        captions.setdefault((row["youtube_id"], int(row["start_time"])), []).append(row["caption"])
    return captions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, help="the folder with train.csv, val.csv and test.csv")
    parser.add_argument("--audio", type=Path, help="the folder with the audio, in <split>/ or directly (default: root)")
    parser.add_argument("--splits", nargs="+", choices=AUDIOCAPS_SPLITS, default=AUDIOCAPS_SPLITS, help="default: all")
    parser.add_argument("--keep-missing", action="store_true", help="list clips whose audio is missing too")
    parser.add_argument("--out", type=ending_in(".jsonl"), required=True, help="the manifest to write (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    splits = list(dict.fromkeys(arguments.splits))
    clips, counts = read_audiocaps(arguments.root, arguments.audio, splits, arguments.keep_missing)
    write_manifest(arguments.out, clips)
    print(*counts, sep="\n")
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}")
    return 0
