"""Read Clotho (v1, v2, v2.1) as published, and folders like it.

Drossos et al., "Clotho: an audio captioning dataset", ICASSP 2020; https://zenodo.org/records/4783391
Audio: per-file Freesound licences; captions: Tampere University licence (non-commercial research).
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from data_tools.cli import Manifest, counted
from data_tools.errors import KitError
from data_tools.files import require_folder
from data_tools.manifest import Clip, Split, audio_clip, read_captions, write_manifest
from data_tools.names import audio_names, match_names
from data_tools.tables import read_table

CLOTHO_SPLITS: tuple[Split, ...] = ("development", "validation", "evaluation")
AAC_FOLDER = "CLOTHO_v2.1"  # of aac-datasets (0.7.0), in its root


def hold_out(clips: Sequence[Clip], share: float, seed: int) -> list[Clip]:
    """Move a random share (rounded) of the development clips to validation; ids and paths stay.

    Clotho v1 has no validation split. Source: "Take it easy" (2022), section 5, holds out 20 %.
    Raises KitError for clips that have a validation split.
    """
    if any(clip.split == "validation" for clip in clips):
        raise KitError(
            "--holdout: there is a validation split; leave it out by --splits development --splits evaluation"
        )
    names = sorted(clip.id for clip in clips if clip.split == "development")
    held_out = set(random.Random(seed).sample(names, round(share * len(names))))
    return [replace(clip, split="validation") if clip.id in held_out else clip for clip in clips]


def _published_path(root: Path, folder: str, name: str) -> Path:
    """Return <root>/<name>, or <root>/<folder>/<name> if only the latter exists."""
    inner = root / folder / name
    return inner if inner.exists() and not (root / name).exists() else root / name


def _read_metadata(path: Path) -> dict[str, dict[str, str]]:
    """Return Freesound id ("" for "Not found"), licence and uploader by file name; {} without a file."""
    facts = {}
    if path.is_file():
        for _, row in read_table(path, ["file_name", "sound_id", "license", "manufacturer"], "iso-8859-1"):
            number = row["sound_id"].strip().removeprefix("Not found")
            known = {"freesound_id": number, "licence": row["license"], "uploader": row["manufacturer"]}
            facts[row["file_name"]] = known
    return facts


def clotho(
    root: Path,
    *,
    out: Manifest,
    splits: list[str] | None = None,
    holdout: Annotated[float | None, typer.Option(min=0, max=0.9)] = None,
    seed: int = 0,
) -> None:
    """Make a manifest of Clotho, or of a folder laid out like it.

    Args:
        root: Clotho's folder: clotho_captions_SPLIT.csv, clotho_metadata_SPLIT.csv and the audio in SPLIT/, for the
            splits development, validation and evaluation.
        splits: A split to read; repeat. Default: all.
        holdout: Move this share of development to validation; 0.2 is usual for Clotho v1.
        seed: Seed for the clips of --holdout.
    """
    require_folder(root)
    root = root / AAC_FOLDER if (root / AAC_FOLDER).is_dir() else root
    clips: list[Clip] = []
    for split in cast("list[Split]", splits) or CLOTHO_SPLITS:
        captions: dict[str, list[str]] = {}
        path = _published_path(root, "clotho_csv_files", f"clotho_captions_{split}.csv")
        for line, name, texts in read_captions(path):
            if not name.strip() or name in captions:
                raise KitError(f"{path}, line {line}: the file name {name!r} is empty or on an earlier line")
            captions[name] = texts
        metadata = _published_path(root, "clotho_csv_files", f"clotho_metadata_{split}.csv")
        facts = _read_metadata(metadata)
        folder = _published_path(root, "clotho_audio_files", split)
        on_disk, with_facts = match_names(captions, audio_names(folder)), match_names(captions, facts)
        found = []
        for name, texts in captions.items():
            known = facts.get(with_facts.get(name, ""), {})
            found.append(audio_clip(folder, on_disk.get(name, name), "clotho", split, texts, **known))
        text = f"{split}: {counted(len(found), 'clip')}, {counted(sum(map(len, captions.values())), 'caption')}"
        text += f"; {sum(clip.seconds is None for clip in found)} without readable audio"
        print(text + ("" if facts else f"; no {metadata.name}: Freesound ids and licences are unknown"))
        clips += found
    if all(clip.seconds is None for clip in clips):
        raise KitError(f"{Path(clips[0].path).parent}: no audio of Clotho; unpack its audio archives into this folder")
    if holdout is not None:
        clips = hold_out(clips, holdout, seed)
        print(f"validation: {sum(clip.split == 'validation' for clip in clips)} clips moved from development")
    write_manifest(out, clips)
    print(f"wrote {out}: {counted(len(clips), 'clip')}")
