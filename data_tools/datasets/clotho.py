"""Read Clotho as published, and folders like it.

Versions v1, v2 and v2.1.

Drossos et al., "Clotho: an audio captioning dataset", ICASSP 2020; https://zenodo.org/records/4783391
Audio: per-file Freesound licences; captions: Tampere University licence (non-commercial research).
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from data_tools.audio import readable_seconds
from data_tools.cli import Manifest, counted
from data_tools.errors import DataError
from data_tools.files import require_folder
from data_tools.manifest import Clip, Split, audio_clip, read_captions, write_manifest
from data_tools.names import audio_names, is_freesound_id, match_names
from data_tools.tables import read_table

CLOTHO_SPLITS: tuple[Split, ...] = ("development", "validation", "evaluation")
AAC_FOLDER = "CLOTHO_v2.1"  # of aac-datasets (0.7.0), in its root


def read_clotho(
    root: Path, splits: Sequence[Split] = CLOTHO_SPLITS, source: str = "clotho"
) -> tuple[list[Clip], list[str]]:
    """Read the clips of Clotho; captions are verbatim, and files have their names on disk.

    Args:
        root: Folder with clotho_captions_<split>.csv, clotho_metadata_<split>.csv (optional; Freesound ids, licences,
            uploaders) and the audio in <split>/; or with the published folders clotho_csv_files/ and
            clotho_audio_files/; or the parent of CLOTHO_v2.1/.
        splits: Splits to read.
        source: Source of the clips, for their ids.

    Returns:
        The clips, without a length if their audio is missing or unreadable, and a line of text for each split.

    Raises:
        DataError: A captions file is missing, a row is bad, or no audio is there.
    """
    require_folder(root)
    root = root / AAC_FOLDER if (root / AAC_FOLDER).is_dir() else root
    clips: list[Clip] = []
    counts = []
    for split in splits:
        captions = _read_captions(_published_path(root, "clotho_csv_files", f"clotho_captions_{split}.csv"))
        metadata = _published_path(root, "clotho_csv_files", f"clotho_metadata_{split}.csv")
        facts = _read_metadata(metadata)
        folder = _published_path(root, "clotho_audio_files", split)
        on_disk, with_facts = match_names(captions, audio_names(folder)), match_names(captions, facts)
        found = []
        for name, texts in captions.items():
            file = on_disk.get(name, name)
            length = readable_seconds(folder / file) if name in on_disk else None
            known = facts.get(with_facts.get(name, ""), [None] * 3)
            found.append(audio_clip(folder, file, source, split, texts, length, *known))
        readable = sum(clip.seconds is not None for clip in found)
        line = f"{split}: {counted(len(found), 'clip')}, {counted(sum(map(len, captions.values())), 'caption')}"
        line += "" if readable == len(found) else f"; {len(found) - readable} without readable audio"
        counts.append(line + ("" if facts else f"; no {metadata.name}: Freesound ids and licences are unknown"))
        clips += found
    if all(clip.seconds is None for clip in clips):
        raise DataError(f"{Path(clips[0].path).parent}: no audio of Clotho; unpack its audio archives into this folder")
    return clips, counts


def hold_out(clips: Sequence[Clip], share: float, seed: int) -> list[Clip]:
    """Move a random share (rounded) of the development clips to validation; ids and paths stay.

    Clotho v1 has no validation split. Source: "Take it easy" (2022), section 5, holds out 20 %.
    Raises DataError for a share that leaves a split empty, and for clips that have a validation split.
    """
    if any(clip.split == "validation" for clip in clips):
        raise DataError(
            "--holdout: there is a validation split; leave it out by --splits development --splits evaluation"
        )
    names = sorted(clip.id for clip in clips if clip.split == "development")
    count = round(share * len(names))
    if not 0 < count < len(names):
        raise DataError(f"--holdout {share} moves {count} of {len(names)} development clips; both splits need a clip")
    held_out = set(random.Random(seed).sample(names, count))
    return [replace(clip, split="validation") if clip.id in held_out else clip for clip in clips]


def _published_path(root: Path, folder: str, name: str) -> Path:
    """Return <root>/<name>, or <root>/<folder>/<name> if only the latter exists."""
    inner = root / folder / name
    return inner if inner.exists() and not (root / name).exists() else root / name


def _read_captions(path: Path) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = {}
    for line, name, texts in read_captions(path):
        if not name.strip() or name in captions:
            raise DataError(f"{path}, line {line}: the file name {name!r} is empty or on an earlier line; correct it")
        captions[name] = texts
    return captions


def _read_metadata(path: Path) -> dict[str, list[str | None]]:
    """Return Freesound id (None for "Not found"), licence and uploader by file name; {} without a file."""
    facts: dict[str, list[str | None]] = {}
    if not path.is_file():
        return facts
    for line, row in read_table(path, ["file_name", "sound_id", "license", "manufacturer"], "iso-8859-1"):
        number = row["sound_id"].strip()
        if number not in ("Not found", "") and not is_freesound_id(number):
            raise DataError(f"{path}, line {line}: the sound_id {number[:40]!r} is no number, nor 'Not found'")
        freesound_id = number if is_freesound_id(number) else None
        facts[row["file_name"]] = [freesound_id, row["license"], row["manufacturer"]]
    return facts


def clotho(
    root: Annotated[
        Path,
        typer.Argument(
            help="Clotho's folder: clotho_captions_SPLIT.csv, clotho_metadata_SPLIT.csv and the audio in SPLIT/, for "
            "the splits development, validation and evaluation."
        ),
    ],
    out: Manifest,
    splits: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT", help="A split to read; repeat. Default: all.")
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Move this share of development to validation; 0.2 is usual for Clotho v1."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the clips of --holdout.")] = 0,
) -> None:
    """Make a manifest of Clotho, or of a folder laid out like it."""
    clips, counts = read_clotho(root, cast("list[Split]", splits) or CLOTHO_SPLITS)
    if holdout is not None:
        clips = hold_out(clips, holdout, seed)
        counts.append(f"validation: {sum(clip.split == 'validation' for clip in clips)} clips moved from development")
    write_manifest(out, clips)
    print(*counts, f"wrote {out}: {counted(len(clips), 'clip')}", sep="\n")
