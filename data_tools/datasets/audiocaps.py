"""Reader of AudioCaps (v1, v2) as published; makes a manifest.

Kim et al., "AudioCaps: Generating Captions for Audios in The Wild", NAACL 2019; https://github.com/cdjkim/audiocaps
The audio files are parts of YouTube videos. Some videos are gone: published scores use 957 to 975 test clips.
"""

import argparse
import re
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.audio import AUDIO_SUFFIXES, readable_seconds
from data_tools.cli import add_manifest, counted
from data_tools.errors import DataError
from data_tools.files import require_file, require_folder
from data_tools.manifest import Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.names import audio_names, first_names
from data_tools.tables import read_table

AUDIOCAPS_SPLITS: tuple[Split, ...] = ("train", "val", "test")
COLUMNS = ("audiocap_id", "youtube_id", "start_time", "caption")
_START = r"(.+)_([0-9]{1,9})(?:\.0+)?"
_TIMES = re.compile(_START + r"[_-]([0-9]{1,9})(?:\.0+)?", re.DOTALL)  # <youtube_id>_<start>_<end>
_LONGEST = 11  # maximum length of a clip: 10 seconds, and one for rounding
_NAMES = "<youtube_id>_<start_time>.wav, Y<youtube_id>.wav or <audiocap_id>.wav"


class _Recording(NamedTuple):
    """A clip as published: its captions, and their audiocap ids."""

    youtube_id: str
    start: int
    captions: list[str]
    ids: list[str]

    @property
    def stems(self) -> list[str]:
        """Possible names of the audio file without suffix, the most certain name first.

        The names after the first two do not contain the start time of the clip.
        """
        timed = [f"{prefix}{self.youtube_id}_{self.start}" for prefix in ("", "Y")]
        return [*timed, self.youtube_id, f"Y{self.youtube_id}", *self.ids]


def read_audiocaps(
    root: Path, audio: Path | None = None, splits: Sequence[Split] = AUDIOCAPS_SPLITS, keep_missing: bool = False
) -> tuple[list[Clip], list[str]]:
    """Return the clips of the splits, and a text about each split. keep_missing: Include clips without audio.

    Args:
        root: The folder with <split>.csv; or a folder of aac-datasets, with AUDIOCAPS/csv_files_v1/<split>.csv and
            AUDIOCAPS/audio_32000Hz/<split>/.
        audio: The folder with the audio (default: root), in <split>/ or directly. Files have any audio suffix.
            Downloaders name them <youtube_id>_<start>_<end>, with times in seconds or milliseconds,
            <youtube_id>_<start>, or <youtube_id>, which must belong to one clip only. Each of these names may follow
            the letter Y. A name may also be <audiocap_id>, the id of any caption of the clip.

    Rows with the same youtube_id and start_time are one clip with several captions (5 in val and test).
    Raises DataError for a missing CSV file, bad rows, bad captions, a repeated audiocap_id, and if no clip is left.
    """
    require_folder(root)
    tables, found_audio = _folders(root)
    audio = audio or found_audio
    recordings = {split: _read_recordings(tables / f"{split}.csv") for split in splits}
    owners = Counter(stem for group in recordings.values() for recording in group for stem in {*recording.stems})
    clips: list[Clip] = []
    counts = []
    for split, published in recordings.items():
        folders = [audio / split, audio]
        files = _index_audio(folders, owners)
        with_audio = 0
        for recording in published:
            stem = next((stem for stem in recording.stems if stem in files and owners[stem] == 1), None)
            with_audio += stem is not None
            if stem or keep_missing:
                folder, name = files[stem] if stem else (folders[0], f"{recording.stems[0]}.wav")
                seconds = readable_seconds(folder / name)
                clips.append(audio_clip(folder, name, "audiocaps", split, recording.captions, seconds))
        captions = counted(sum(len(recording.captions) for recording in published), "caption")
        line = (
            f"{split}: {counted(len(published), 'clip')}, {captions} published; audio found for {with_audio}, "
            f"missing for {len(published) - with_audio}"
        )
        unclear = sorted({stem for item in published for stem in item.stems if stem in files and owners[stem] > 1})
        note = f"; files not used, because their names fit several clips: {first_names(unclear)}" if unclear else ""
        counts.append(line + note)
    if not clips:
        raise DataError(
            f"{audio}: no audio file is named {_NAMES}; give the folder of the audio by --audio, or add "
            "--keep-missing to include clips without audio"
        )
    return clips, counts


def _folders(root: Path) -> tuple[Path, Path]:
    """Return the folders of the CSV tables and of the audio: subfolders made by aac-datasets, or else `root` for both.

    If there are folders for several versions or sample rates, the first one in alphabetical order is used.
    Source: aac-datasets 0.7.0, datasets/functional/audiocaps.py.
    """
    base = root / "AUDIOCAPS" if (root / "AUDIOCAPS").is_dir() else root
    tables, audio = sorted(base.glob("csv_files_v*")), sorted(base.glob("audio_*Hz"))
    without_version = root if any((root / f"{split}.csv").exists() for split in AUDIOCAPS_SPLITS) else base
    return tables[0] if tables else without_version, audio[0] if audio else base


def _index_audio(folders: Sequence[Path], known: Container[str]) -> dict[str, tuple[Path, str]]:
    """Return a dict from possible file names of clips, without suffix, to (folder, name) of the audio files found.

    known: File names without suffix that clips of the data set may have.
    The key is the file's own name if `known` contains that name. Otherwise it is <id>_<start>, with the start in
    seconds. If several files have the same key, a file whose own name is in `known` is chosen first. Among others, the
    file in the earliest folder is chosen, and in one folder the file whose suffix comes first in AUDIO_SUFFIXES.
    """
    files = [(folder, name) for folder in folders for name in audio_names(folder)]
    files.sort(key=lambda file: (folders.index(file[0]), AUDIO_SUFFIXES.index(Path(file[1]).suffix.lower())))
    found: dict[str, tuple[Path, str]] = {}
    for folder, name in sorted(files, key=lambda file: Path(file[1]).stem not in known):
        stem = Path(name).stem
        for key in [stem] if stem in known else _names_in_seconds(stem):
            found.setdefault(key, (folder, name))
    return found


def _names_in_seconds(stem: str) -> list[str]:
    """Return the names <id>_<start in seconds> that a file name without suffix can mean; [] for other names.

    The file name is <id>_<start>_<end>, in seconds or milliseconds, or <id>_<start>, in seconds. A name that can be
    read in both ways, because an id may itself end in _<number>, has two results.

    >>> _names_in_seconds("-aB_30_40"), _names_in_seconds("-aB_30000_40000")
    (['-aB_30', '-aB_30_40'], ['-aB_30', '-aB_30000_40000'])
    >>> _names_in_seconds("-aB_030.000"), _names_in_seconds("-aB")
    (['-aB_30'], [])
    """
    matches = []
    if times := _TIMES.fullmatch(stem):
        start, end = int(times[2]), int(times[3])
        unit = 1 if end - start <= _LONGEST else 1000
        if 0 < end - start <= _LONGEST * unit and start % unit == 0:
            matches.append(f"{times[1]}_{start // unit}")
    if times := re.fullmatch(_START, stem, re.DOTALL):
        matches.append(f"{times[1]}_{int(times[2])}")
    return matches


def _read_recordings(path: Path) -> list[_Recording]:
    """Read the clips of an AudioCaps CSV file in its order; rows of the same clip are joined."""
    require_file(path, "give the folder of AudioCaps that contains this file, or choose other splits by --splits")
    recordings: dict[tuple[str, int], _Recording] = {}
    lines: dict[str, int] = {}
    for line, row in read_table(path, COLUMNS):
        where = f"{path}, line {line}"
        check_caption(row["caption"], where)
        youtube_id, start, number = row["youtube_id"], row["start_time"], row["audiocap_id"]
        if not youtube_id.strip():
            raise DataError(f"{where}: the youtube_id is empty; fill it in or remove the row")
        if not re.fullmatch("[0-9]{1,9}", start):
            raise DataError(f"{where}: the start_time {start[:40]!r} is not a number of whole seconds; correct it")
        if lines.setdefault(number, line) != line:
            raise DataError(
                f"{where}: the audiocap_id {number[:40]!r} is already on line {lines[number]}; keep one row"
            )
        recording = recordings.setdefault((youtube_id, int(start)), _Recording(youtube_id, int(start), [], []))
        recording.captions.append(row["caption"])
        recording.ids.append(number)
    return list(recordings.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `audiocaps` to its parser."""
    add = parser.add_argument
    add(
        "root",
        type=Path,
        help="folder with AudioCaps' train.csv, val.csv and test.csv, or a folder that aac-datasets made",
    )
    add("--audio", type=Path, help="folder with the audio, in <split>/ or directly (default: the argument root)")
    add("--splits", nargs="+", choices=AUDIOCAPS_SPLITS, default=AUDIOCAPS_SPLITS, help="splits to read (default: all)")
    add("--keep-missing", action="store_true", help="also put clips without audio into the manifest")
    add_manifest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `audiocaps`: make a manifest of AudioCaps; return the exit status."""
    splits = list(dict.fromkeys(arguments.splits))
    clips, counts = read_audiocaps(arguments.root, arguments.audio, splits, arguments.keep_missing)
    write_manifest(arguments.out, clips)
    print(*counts, sep="\n")
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}")
    return 0
