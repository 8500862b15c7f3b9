"""Read hub data sets.

Reader of parquet files with audio, WebDataset tars and WavCaps' zip files; makes a manifest whose audio stays in them.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data_tools.cli import add_manifest, counted
from data_tools.datasets.wavcaps import audio_folder, read_wavcaps
from data_tools.errors import DataError
from data_tools.files import require_other
from data_tools.hub.clips import Found, read_hub
from data_tools.hub.presets import PRESETS, Columns
from data_tools.manifest import SPLITS, write_manifest
from data_tools.names import check_source

log = logging.getLogger(__name__)

WAVCAPS = "cvssp/WavCaps"
_OF_OTHER_FILES = ("preset", "audio", "caption", "id", "split", "name")  # options for files that `export` did not write


def read_wavcaps_zips(folders: Sequence[Path]) -> Found:
    """Return the clips of WavCaps in the hub's layout, messages on items without audio, and the JSON files read.

    The layout on the Hugging Face hub is json_files/<part>/<name>.json and Zip_files/<part>/. If a part has several
    JSON files, only the largest is read, such as fsd_final.json: fsd_final_2s.json has some of the same items.
    Raises DataError for a folder without such files, and for a damaged JSON file or bad items in it.
    """
    found = Found([], [], [])
    for folder in folders:
        lists = {path: audio_folder(path, ["Zip_files"]) for path in _lists_of_parts(folder)}
        if not any(lists.values()):
            raise DataError(
                f"{folder}: has no json_files/<part>/<name>.json with Zip_files/<part>/; give the folder of "
                f"{WAVCAPS} as on the hub"
            )
        for path, audio in lists.items():
            if audio is None:
                found.errors.append(f"{path}: has no Zip_files/{path.parent.name}/; fetch the zip files of this part")
                continue
            clips, missing = read_wavcaps(path, audio, path.stem)
            found.clips.extend(clips)
            found.shards.append(path)
            if missing:
                found.errors.append(f"{path}: the audio of {counted(missing, 'item')} is missing")
    return found


def _lists_of_parts(folder: Path) -> list[Path]:
    """Return the largest JSON file of each part of WavCaps, and warn about smaller ones; the blacklist is ignored."""
    lists: dict[Path, list[Path]] = {}
    for path in sorted(folder.glob("json_files/*/*.json"), key=lambda path: -path.stat().st_size):
        if path.parent.name != "blacklist":
            lists.setdefault(path.parent, []).append(path)
    for first, *others in lists.values():
        for other in others:
            message = (
                "%s: skipped, because only the largest file of this folder, %s, is read; to read the skipped file, "
                "use the verb `wavcaps`"
            )
            log.warning(message, other, first.name)
    return sorted(first for first, *_ in lists.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `hub` to its parser."""
    add = parser.add_argument
    paths = "folders or files of a data set from the Hugging Face hub: .parquet, .tar (WebDataset), .zip"
    add("paths", type=Path, nargs="+", metavar="PATH", help=paths)
    presets = [*PRESETS, WAVCAPS]
    add(
        "--preset",
        choices=presets,
        help="public data set, whose columns are known (default: usual column names)",
    )
    add("--audio", metavar="COLUMN", help="column with the audio; for archives: suffix of the audio files")
    add("--caption", metavar="COLUMN", nargs="+", help="columns, or keys of the .json files, with captions")
    ids = "columns whose values, joined by _, name a clip; rows of the same name become one clip"
    add("--id", metavar="COLUMN", nargs="+", help=ids)
    add(
        "--split",
        choices=SPLITS,
        help="split of all clips (default: the split in the names of files or folders; train if none is found)",
    )
    add("--partial", action="store_true", help="accept a data set with missing shards")
    add("--name", help="name of the clips' source, for their ids (default: the name of the first folder)")
    add_manifest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `hub`: make a manifest of parquet, tar and zip files with audio; return the exit status."""
    if arguments.preset == WAVCAPS:
        given = [name for name in ("audio", "caption", "id", "split", "name", "partial") if getattr(arguments, name)]
        if given:
            raise DataError(f"--{given[0]} does not apply to --preset {WAVCAPS}; leave it out")
        found = read_wavcaps_zips(arguments.paths)
    else:
        preset = PRESETS.get(arguments.preset, Columns())
        columns = Columns(
            arguments.audio or preset.audio,
            tuple(arguments.caption or preset.captions),
            tuple(arguments.id or preset.id),
            None if arguments.caption else preset.separator,
        )
        first = arguments.paths[0].absolute()
        name = arguments.name or preset.name or (first.name if first.is_dir() else first.parent.name)
        given = [option for option in _OF_OTHER_FILES if getattr(arguments, option)]
        found = read_hub(arguments.paths, columns, check_source(name), arguments.split, arguments.partial, given)
    if not found.clips:
        problem = found.errors[0] if found.errors else f"{arguments.paths[0]}: has no clips"
        raise DataError(f"{problem}; no clip is left ({counted(len(found.errors), 'sample')} left out)")
    require_other(arguments.out, found.shards)
    write_manifest(arguments.out, found.clips)
    for error in found.errors:
        print(f"left out: {error}")
    splits = Counter(clip.split for clip in found.clips)
    print(", ".join(f"{split}: {counted(count, 'clip', ',')}" for split, count in sorted(splits.items())))
    print(f"wrote {arguments.out}: {counted(len(found.clips), 'clip')} in {counted(len(found.shards), 'file')}")
    return 1 if found.errors else 0
