"""Read CASTELLA, Clotho-Moment, and blind lists.

Data sets in CASTELLA's format too: Clotho-Moment, and the blind list of 2026.

Munakata et al., "CASTELLA: Long Audio Dataset with Captions and Temporal Boundaries", 2025;
https://github.com/line/CASTELLA. Annotations: CC BY 4.0; the audio is from YouTube, where some videos are deleted.
"""

import os
import re
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import typer

from data_tools.audio import readable_seconds
from data_tools.cli import Manifest, counted, ending_in
from data_tools.errors import DataError
from data_tools.files import require_folder, require_other
from data_tools.manifest import Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, read_moments, read_published, write_moments
from data_tools.names import check_source, tree_files

AUDIO = (".wav", ".flac", ".mp3", ".ogg", ".m4a")
FEATURES = (".npz", ".npy")  # frames of a recording; the organisers publish those of MS-CLAP as .npz
_SPLIT_OF_NAME = re.compile(r"(?:^|_)(train|val|test|development|validation|evaluation)(?:_release)?$")


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
        lines = {line.vid: line for _, line in read_published(path)}
        clips = []
        for vid, line in lines.items():
            file = present.get(vid)
            if file or split == "blind":
                length = (readable_seconds(file) if file and suffixes != FEATURES else None) or line.duration
                name = Path(file).name if file else f"{vid}{suffixes[0]}"
                captions = [line.caption] if line.caption else []
                clips.append(audio_clip(folder / split, name, source, split, captions, length, path=file))
        moments = read_moments(path, clips, skip_unknown=True)
        text = f"{split}: {counted(len(moments), 'query')} in {counted(len(clips), 'recording')}"
        if absent := len(lines.keys() - present.keys()):
            text += f"; {absent} recordings have no file" + ("" if split == "blind" else " and are left out")
        found.counts.append(text)
        found.clips.extend(clips)
        found.moments.extend(moments)
    if not any(Path(clip.path).exists() for clip in found.clips) and found.files.keys() != {"blind"}:
        raise DataError(f"{folder}: no VID{suffixes[0]} of any recording; give its folder by --audio or --features")
    return found


def _files_by_split(root: Path) -> dict[Split, Path]:
    require_folder(root)
    found: dict[Split, Path] = {}
    paths = sorted((root / name for name in tree_files(root)), key=lambda path: (path.suffix == ".json", path))
    for path in paths:  # .json files last: they count for splits without a .jsonl file
        split = _split_of(path)
        if split in found and path.suffix == ".jsonl":
            raise DataError(f"{path} and {found[split]} both have queries of the split {split}; remove one of them")
        if split:
            found.setdefault(split, path)
    if not found:
        raise DataError(f"{root}: no queries in CASTELLA's format, such as castella_test_release.jsonl")
    return found


def _split_of(path: Path) -> Split | None:
    """Return the split of a published file; None for any other file."""
    named = _SPLIT_OF_NAME.search(path.stem)
    if path.suffix == ".json":
        return cast(Split, named[1]) if named and path.parent.name == "en" else None
    if path.suffix != ".jsonl":
        return None
    with path.open(errors="replace") as file:
        first = file.readline()
    if '"qid"' not in first or '"pred_relevant_windows"' in first:  # a manifest, or the answers of a system
        return None
    if named:
        return cast(Split, named[1])
    return None if any(line.relevant_windows is not None for _, line in read_published(path)) else "blind"


def _recordings(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the path of each recording in a folder, by its name without suffix."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.stem: os.path.abspath(path) for path in paths if path.suffix.lower() in suffixes}


def castella(
    root: Annotated[Path, typer.Argument(help="Folder with the published annotations.")],
    out: Manifest,
    moments: Annotated[Path, typer.Option(callback=ending_in(".jsonl"), help="The file of moments to write (.jsonl).")],
    audio: Annotated[
        Path | None, typer.Option(help="Folder with the audio, in SPLIT/ or directly; default: ROOT.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(help="Folder of published features instead of audio: VID.npz or VID.npy, in SPLIT/ or directly."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the recordings' source, for their ids.")] = "castella",
) -> None:
    """Make a manifest and moments of CASTELLA or its like."""
    if out.absolute() == moments.absolute() or (audio and features):
        raise DataError("--out and --moments, or --audio and --features: give different names, and one of the folders")
    suffixes = FEATURES if features else AUDIO
    found = read_castella(root, features or audio or root, check_source(name), suffixes)
    for path in (out, moments):
        require_other(path, found.files.values())
    write_moments(moments, found.moments, found.clips)
    write_manifest(out, found.clips)
    print(*found.counts, sep="\n")
    print(f"wrote {out}: {counted(len(found.clips), 'recording')}")
    print(f"wrote {moments}: {counted(len(found.moments), 'query')}")
