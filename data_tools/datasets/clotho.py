"""Read Clotho.

Reads Clotho (v1, v2, v2.1) as published, and folders with the same layout; makes a manifest.

Drossos et al., "Clotho: an audio captioning dataset", ICASSP 2020; https://zenodo.org/records/4783391
Audio: per-file Freesound licences; captions: Tampere University licence (non-commercial research).
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from data_tools.audio import readable_seconds
from data_tools.cli import add_manifest, counted
from data_tools.datasets.nearest import note_on_similar_names
from data_tools.errors import DataError
from data_tools.files import require_file, require_folder
from data_tools.manifest import Clip, Split, audio_clip, read_caption_table, write_manifest
from data_tools.names import audio_names, is_freesound_id, match_names
from data_tools.tables import read_table

CLOTHO_SPLITS: tuple[Split, ...] = ("development", "validation", "evaluation")
AAC_FOLDER = "CLOTHO_v2.1"  # of aac-datasets (0.7.0), in its root
METADATA_COLUMNS = ("file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license")


def read_clotho(
    root: Path, splits: Sequence[Split] = CLOTHO_SPLITS, source: str = "clotho", keep_missing: bool = False
) -> tuple[list[Clip], list[str]]:
    """Return the clips of the splits, and a text about each split. keep_missing: Accept a data set without audio.

    Args:
        root: The folder with Clotho, or a folder of aac-datasets that contains CLOTHO_v2.1/. It has:

            * clotho_captions_<split>.csv, directly or in clotho_csv_files/;
            * optionally clotho_metadata_<split>.csv, in the same place; without it, clips have no Freesound fields;
            * the audio, in <split>/ or clotho_audio_files/<split>/.

    Clips without audio are always listed; their length is unknown, as for unreadable audio. Names and captions are kept
    verbatim. A file whose name on disk differs in outer blanks or ':' is listed under its name on disk.
    Raises DataError for a missing captions file, bad rows, bad captions, and (unless keep_missing) no audio at all.
    """
    require_folder(root)
    root = root / AAC_FOLDER if (root / AAC_FOLDER).is_dir() else root
    clips: list[Clip] = []
    counts = []
    similar = []
    for split in splits:
        found, count, note = _read_split(root, split, source)
        clips += found
        counts.append(f"{count}; {note}" if note else count)
        similar += [note] if note else []
    if not keep_missing and not any(Path(clip.path).is_file() for clip in clips):
        problem = "; ".join([f"the audio of all {counted(len(clips), 'clip', ',')} is missing", *similar])
        cure = "rename the files" if similar else "unpack Clotho's audio archives into this folder"
        raise DataError(
            f"{Path(clips[0].path).parent}: {problem}; {cure}, or add --keep-missing to include these clips"
        )
    return clips, counts


def hold_out(clips: Sequence[Clip], share: float, seed: int) -> list[Clip]:
    """Move a random `share` (rounded) of the development clips into a validation split; return all clips.

    For Clotho v1, which has no validation split: "Take it easy" (2022), section 5, holds out 20 % of its development
    split. Ids, names and paths remain those of the development split. Raises DataError for a share outside (0, 1), for
    a share that leaves a split empty, and for clips that already include a validation split.
    """
    if not 0 < share < 1:
        raise DataError(f"--holdout {share}: must be between 0 and 1, a share of the development split")
    if any(clip.split == "validation" for clip in clips):
        raise DataError(
            "--holdout would add a second validation split; leave out the first by --splits development evaluation"
        )
    names = sorted(clip.id for clip in clips if clip.split == "development")
    count = round(share * len(names))
    if not 0 < count < len(names):
        raise DataError(f"--holdout {share} moves {count} of {len(names)} development clips; both splits need a clip")
    held_out = set(random.Random(seed).sample(names, count))
    return [clip.model_copy(update={"split": "validation"}) if clip.id in held_out else clip for clip in clips]


def _read_split(root: Path, split: Split, source: str) -> tuple[list[Clip], str, str]:
    """Read one split of Clotho; return its clips, a text with their numbers, and a note on files with similar names."""
    table = _published_path(root, "clotho_csv_files", f"clotho_captions_{split}.csv")
    require_file(table, "give Clotho's folder as published, or choose other splits by --splits")
    captions = _read_captions(table)
    metadata_path = _published_path(root, "clotho_csv_files", f"clotho_metadata_{split}.csv")
    metadata = _read_metadata(metadata_path) if metadata_path.is_file() else {}
    metadata_names = match_names(captions, metadata)
    folder = _published_path(root, "clotho_audio_files", split)
    present = audio_names(folder)
    disk_names = match_names(captions, present)

    clips = []
    for name, texts in captions.items():
        file_name = disk_names.get(name, name)
        seconds = readable_seconds(folder / file_name) if name in disk_names else None
        row = metadata.get(metadata_names.get(name, ""), {})
        facts = [row.get(column) for column in ("sound_id", "license", "manufacturer")]
        clips.append(audio_clip(folder, file_name, source, split, texts, seconds, *facts))
    n_captions = counted(sum(map(len, captions.values())), "caption")
    line = f"{split}: {counted(len(clips), 'clip')}, {n_captions}, {len(disk_names)} with audio"
    readable = sum(clip.seconds is not None for clip in clips)
    renamed = sum(name != disk_name for name, disk_name in disk_names.items())
    for count, what in (
        (len(clips) - len(disk_names), "clips without audio (`check` names them)"),
        (len(disk_names) - readable, "clips with unreadable audio (`check` names them)"),
        (renamed, "clips whose names on disk differ from the captions file in blanks, ':' or Unicode form"),
        (len(clips) - len(metadata_names), "clips without metadata"),
    ):
        line += f"; {what}: {count}" if count else ""
    missing = [name for name in captions if name not in disk_names]
    return clips, line, note_on_similar_names(missing, set(present) - set(disk_names.values())) if missing else ""


def _published_path(root: Path, folder: str, name: str) -> Path:
    """Return the path <root>/<name>, or <root>/<folder>/<name> if only the latter exists."""
    inner = root / folder / name
    return inner if inner.exists() and not (root / name).exists() else root / name


def _read_captions(path: Path) -> dict[str, list[str]]:
    """Read a Clotho CSV file; return a dict from file name to captions. Raises DataError for a repeated file name."""
    captions: dict[str, list[str]] = {}
    for line, name, texts in read_caption_table(path):
        if not name.strip():
            raise DataError(f"{path}, line {line}: the file name is empty; fill it in or remove the row")
        if name in captions:
            raise DataError(f"{path}, line {line}: the file name {name!r} comes twice; keep one row per clip")
        captions[name] = texts
    return captions


def _read_metadata(path: Path) -> dict[str, dict[str, str]]:
    """Read Clotho's metadata as a dict from file name to row. A sound_id "Not found" is left out of its row."""
    metadata = {}
    for line, row in read_table(path, METADATA_COLUMNS, fallback_encoding="iso-8859-1"):
        name, sound_id = row["file_name"], row["sound_id"].strip()
        if name in metadata:
            raise DataError(f"{path}, line {line}: the file name {name!r} comes twice; keep one row per clip")
        if sound_id in ("Not found", ""):
            del row["sound_id"]
        elif not is_freesound_id(sound_id):
            raise DataError(
                f"{path}, line {line}: the sound_id {sound_id[:40]!r} is neither a number nor 'Not found'; correct it"
            )
        metadata[name] = row
    return metadata


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `clotho` to its parser."""
    add = parser.add_argument
    add("root", type=Path, help="Clotho's folder, with its CSV files and audio")
    add_manifest(parser)
    add("--splits", nargs="+", choices=CLOTHO_SPLITS, default=CLOTHO_SPLITS, help="splits to read (default: all)")
    add(
        "--holdout",
        type=float,
        metavar="SHARE",
        help="move this share of development to validation (0.2 is usual for Clotho v1, which has no validation split)",
    )
    add("--seed", type=int, default=0, help="random seed for the clips of --holdout (default: 0)")
    add("--keep-missing", action="store_true", help="list clips even if all audio is missing")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `clotho`: make a manifest of Clotho; return the exit status."""
    clips, counts = read_clotho(
        arguments.root, list(dict.fromkeys(arguments.splits)), keep_missing=arguments.keep_missing
    )
    if arguments.holdout is not None:
        clips = hold_out(clips, arguments.holdout, arguments.seed)
    write_manifest(arguments.out, clips)
    print(*counts, sep="\n")
    if arguments.holdout is not None:
        held_out = sum(clip.split == "validation" for clip in clips)
        print(f"validation: {counted(held_out, 'clip')} moved from development")
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}")
    return 0
