"""Read CASTELLA as published, and data sets in its format: Clotho-Moment, and the blind list of 2026.

Munakata et al., "CASTELLA: Long Audio Dataset with Captions and Temporal Boundaries", 2025;
https://github.com/line/CASTELLA. Annotations: CC BY 4.0; the audio is from YouTube, where some videos are deleted.
"""

import argparse
import json
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple, cast

from data_tools.audio import readable_seconds
from data_tools.cli import add_manifest, counted, ending_in
from data_tools.errors import DataError
from data_tools.files import require_folder, require_other
from data_tools.manifest import Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, read_moments, read_published, write_moments
from data_tools.names import check_source, tree_files

AUDIO = (".wav", ".flac", ".mp3", ".ogg", ".m4a")
FEATURES = (".npz", ".npy")  # frames of a recording; the organisers publish those of MS-CLAP as .npz
_SPLIT_OF_NAME = re.compile(r"(?:^|_)(train|val|test|development|validation|evaluation)(?:_release)?$")
log = logging.getLogger(__name__)


class Castella(NamedTuple):
    """Recordings and queries of published files. files: The split and path of each file; counts: A line for each."""

    files: dict[Split, Path]
    clips: list[Clip]
    moments: list[Moment]
    counts: list[str]


def read_castella(root: Path, folder: Path, source: str = "castella", suffixes: tuple[str, ...] = AUDIO) -> Castella:
    """Read the recordings and moments of all published files below a folder.

    Recordings without a file are left out with their queries, except those of a blind list, which must all be answered.

    Args:
        root: Folder with <name>_{train,val,test}_release.jsonl, or json/en/{train,val,test}.json for splits without
            such a file. A file of queries without windows, whose name has no split, is a blind list.
        folder: Folder with the recordings, <split>/<vid>.wav or <vid>.wav.
        source: Source of the clips, for their ids.
        suffixes: Suffixes of the recordings. With FEATURES, lengths are those of the published files.

    Raises:
        DataError: There is no published file, two files of a split, or no recording.
    """
    found = Castella(_files_by_split(root), [], [], [])
    for split, path in found.files.items():
        present = _recordings(folder, suffixes) | _recordings(folder / split, suffixes)
        seconds: dict[str, float | None] = {}
        captions: dict[str, list[str]] = {}
        for _, line in read_published(path):
            seconds[line.vid] = seconds.get(line.vid) or line.duration
            captions[line.vid] = [line.caption] if line.caption else []
        clips = []
        for vid, length in seconds.items():
            file = present.get(vid)
            if file is None and split != "blind":
                continue
            if file and suffixes != FEATURES:
                length = readable_seconds(file) or length
            name = Path(file).name if file else f"{vid}{suffixes[0]}"
            clips.append(audio_clip(folder / split, name, source, split, captions[vid], length, path=file))
        moments = read_moments(path, clips, skip_unknown=True)
        absent = len(seconds.keys() - present.keys())
        note = f"; {absent} recordings have no file" + ("" if split == "blind" else " and are left out")
        text = f"{counted(len(moments), 'query')} in {counted(len(clips), 'recording')}"
        found.counts.append(f"{split}: {text}{note if absent else ''}")
        found.clips.extend(clips)
        found.moments.extend(moments)
    if not any(Path(clip.path).exists() for clip in found.clips) and found.files.keys() != {"blind"}:
        raise DataError(f"{folder}: no VID{suffixes[0]} of any recording; give its folder by --audio or --features")
    return found


def _files_by_split(root: Path) -> dict[Split, Path]:
    """Return the published file of each split."""
    require_folder(root)
    found: dict[Split, Path] = {}
    paths = [root / name for name in tree_files(root) if name.endswith((".jsonl", ".json"))]
    paths = [path for path in paths if path.parent.name != "ja"]  # the texts in Japanese
    for path in sorted(paths, key=lambda path: (path.suffix == ".json", path)):
        name = _SPLIT_OF_NAME.search(path.stem)
        if not _is_published(path) or not (name or path.suffix == ".jsonl"):
            continue
        if not name and any(line.relevant_windows is not None for _, line in read_published(path)):
            log.info("%s: not used, since its name states no split, such as _test", path)
            continue
        split = cast(Split, name[1] if name else "blind")
        if split in found and path.suffix == ".jsonl":
            raise DataError(f"{path} and {found[split]} both have queries of the split {split}; remove one of them")
        found.setdefault(split, path)
    if not found:
        raise DataError(f"{root}: no queries in CASTELLA's format, such as castella_test_release.jsonl")
    return found


def _is_published(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.readline(1 << 20)
    if path.suffix == ".json":
        return start.lstrip()[:1] == b"["
    try:
        first = json.loads(start)
    except ValueError:
        return False
    return isinstance(first, dict) and {"qid", "vid"} <= first.keys() and "pred_relevant_windows" not in first


def _recordings(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the path of each recording in a folder, by its name without suffix."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.stem: os.path.abspath(path) for path in paths if path.suffix.lower() in suffixes}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `castella` to its parser."""
    add = parser.add_argument
    add("root", type=Path, help="folder with the published annotations")
    files = parser.add_mutually_exclusive_group()
    audio = "folder with the audio, in <split>/ or directly (default: the argument root)"
    files.add_argument("--audio", type=Path, help=audio)
    features = "folder of published features instead of audio: VID.npz or VID.npy, in <split>/ or directly"
    files.add_argument("--features", type=Path, help=features)
    add("--name", default="castella", help="name of the recordings' source, for their ids (default: castella)")
    add_manifest(parser)
    add("--moments", type=ending_in(".jsonl"), required=True, help="the file of moments to write (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `castella`: make a manifest and a file of moments of CASTELLA; return the exit status."""
    if arguments.out.absolute() == arguments.moments.absolute():
        raise DataError(f"--out and --moments are both {arguments.out}; give different names")
    folder = arguments.features or arguments.audio or arguments.root
    suffixes = FEATURES if arguments.features else AUDIO
    found = read_castella(arguments.root, folder, check_source(arguments.name), suffixes)
    for out in (arguments.out, arguments.moments):
        require_other(out, found.files.values())
    write_moments(arguments.moments, found.moments, found.clips)
    write_manifest(arguments.out, found.clips)
    print(*found.counts, sep="\n")
    print(f"wrote {arguments.out}: {counted(len(found.clips), 'recording')}")
    print(f"wrote {arguments.moments}: {counted(len(found.moments), 'query')}")
    return 0
