"""Read CASTELLA, Clotho-Moment, and the blind list of 2026.

Munakata et al., "CASTELLA: Long Audio Dataset with Captions and Temporal Boundaries", 2025;
https://github.com/line/CASTELLA. Annotations: CC BY 4.0; the audio is from YouTube, where some videos are deleted.
"""

import os
import re
from pathlib import Path
from typing import Annotated, cast

import typer

from data_tools.arrays import FRAME_SUFFIXES
from data_tools.audio import AUDIO_SUFFIXES, readable_seconds
from data_tools.cli import Manifest, counted, ending_in
from data_tools.errors import KitError
from data_tools.files import require_folder, require_other
from data_tools.manifest import Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, read_moments, read_published, write_moments
from data_tools.names import check_source, tree_files

_SPLIT_OF_NAME = re.compile(r"(?:^|_)(train|val|test|development|validation|evaluation)(?:_release)?$")


def _files_by_split(root: Path) -> dict[Split, Path]:
    """Return the published file of each split below a folder.

    They are named <name>_{train,val,test}_release.jsonl. A file of queries without windows, whose name has no split, is
    a blind list.
    """
    require_folder(root)
    found: dict[Split, Path] = {}
    for path in (root / name for name in tree_files(root) if name.endswith(".jsonl")):
        if (split := _split_of(path)) in found:
            raise KitError(f"{path} and {found[split]} both have queries of the split {split}; remove one of them")
        if split:
            found[split] = path
    if not found:
        raise KitError(f"{root}: no queries, such as castella_test_release.jsonl; lbar data get castella fetches them")
    return found


def _split_of(path: Path) -> Split | None:
    """Return the split of a published file; None for any other file."""
    with path.open(errors="replace") as file:
        first = file.readline()
    if '"qid"' not in first or '"pred_relevant_windows"' in first:  # a manifest, or the answers of a system
        return None
    if named := _SPLIT_OF_NAME.search(path.stem):
        return cast(Split, named[1])
    return None if any(line.relevant_windows is not None for _, line in read_published(path)) else "blind"


def castella(
    root: Path,
    *,
    out: Manifest,
    moments: Annotated[Path, typer.Option(callback=ending_in(".jsonl"))],
    audio: Path | None = None,
    features: Path | None = None,
    name: str = "castella",
) -> None:
    """Make a manifest and moments of CASTELLA or its like.

    Args:
        root: Folder with the published annotations.
        moments: The file of moments to write (.jsonl).
        audio: Folder with the audio, in SPLIT/ or directly; default: ROOT.
        features: Folder of published features instead of audio: VID.npz or VID.npy, in SPLIT/ or directly.
        name: Name of the recordings' source, for their ids.
    """
    if out == moments or (audio and features):
        raise KitError("--out and --moments, or --audio and --features: give different names, and one of the folders")
    suffixes = FRAME_SUFFIXES if features else AUDIO_SUFFIXES
    folder = features or audio or root
    source = check_source(name)
    require_folder(folder)
    queries, clips, found = _files_by_split(root), list[Clip](), list[Moment]()
    for output in (out, moments):
        require_other(output, queries.values())
    for split, path in queries.items():
        files = [file for at in (folder, folder / split) if at.is_dir() for file in sorted(at.iterdir())]
        present = {file.stem: file for file in files if file.suffix.lower() in suffixes}
        lines = {line.vid: line for _, line in read_published(path)}
        here = []
        for vid, line in lines.items():
            file = present.get(vid)
            if file or split == "blind":
                file = file or folder / split / f"{vid}{suffixes[0]}"
                length = None if features else readable_seconds(file)
                facts = {"seconds": length or line.duration, "path": os.path.abspath(file)}
                here.append(audio_clip(folder / split, file.name, source, split, [], **facts))
        asked = read_moments(path, here, skip_unknown=True)
        absent = f"; {len(lines.keys() - present.keys())} recordings have no file"
        left_out = "" if split == "blind" else " and are left out"
        print(f"{split}: {counted(len(asked), 'query')} in {counted(len(here), 'recording')}{absent}{left_out}")
        clips += here
        found += asked
    write_moments(moments, found, clips)
    write_manifest(out, clips)
    print(f"wrote {out}: {counted(len(clips), 'recording')}")
    print(f"wrote {moments}: {counted(len(found), 'query')}")
