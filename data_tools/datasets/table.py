"""Read your own table of audio files and captions."""

import os
from pathlib import Path
from typing import cast

from data_tools.cli import Manifest, counted
from data_tools.errors import KitError
from data_tools.manifest import (
    SPLITS,
    TEST_SPLITS,
    VALIDATION_SPLITS,
    Split,
    audio_clip,
    check_caption,
    write_manifest,
)
from data_tools.names import check_source
from data_tools.tables import read_table


def table(
    table: Path,
    *,
    audio: str,
    caption: list[str],
    out: Manifest,
    folder: Path | None = None,
    split: Split = "development",
    split_column: str | None = None,
    id_column: str | None = None,
    name: str = "",
) -> None:
    """Make a manifest from a table of audio files and captions.

    All rows of one audio file become one clip; a.wav, ./a.wav and a link are one file. A file in several splits keeps
    only its rows of one: test before validation before training.

    Args:
        table: Table of clips with a header, in UTF-8; its cells are separated by commas, semicolons or tabs.
        audio: Column with the name of the audio file.
        caption: Column with captions; repeat. Of several, a cell may be empty, but not all cells of a row.
        folder: Folder of the audio files; default: the table's folder.
        split: Split of all rows.
        split_column: Column with the split of each row, instead of --split.
        id_column: Column with Freesound ids; an empty cell is an unknown one.
        name: Name of the clips' source, for their ids; default: the table's.
    """
    folder, source = folder or table.parent, check_source(name or table.stem)
    names: dict[str, str] = {}  # as the table has them, by the file
    ids: dict[str, str] = {}
    texts: dict[str, dict[Split, list[str]]] = {}
    for line, row in read_table(table, [audio, *caption, *filter(None, [split_column, id_column])]):
        where = f"{table}, line {line}"
        if not row[audio].strip():
            raise KitError(f"{where}: the column {audio} is empty; name the audio file, or remove the row")
        file = names.setdefault(os.path.realpath(folder / row[audio]), row[audio])
        row_split = cast(Split, row[split_column].strip()) if split_column else split
        if row_split not in SPLITS:
            raise KitError(f"{where}: unknown split {row_split[:40]!r}; use one of {', '.join(SPLITS)}")
        filled = [column for column in caption if row[column].strip()] or caption[:1]
        for column in filled:
            check_caption(row[column], f"{where}, {column}")
        texts.setdefault(file, {}).setdefault(row_split, []).extend(row[column] for column in filled)
        if id_column and row[id_column].strip():
            ids[file] = row[id_column].strip()
    clips = []
    for file, by_split in texts.items():
        kept = max(by_split, key=lambda one: (one in TEST_SPLITS, one in VALIDATION_SPLITS))
        clips.append(audio_clip(folder, file, source, kept, by_split[kept], freesound_id=ids.get(file)))
    missing = [clip.path for clip in clips if clip.seconds is None]
    if len(missing) == len(clips):
        raise KitError(f"{missing[0]}: no readable audio, nor any other file of the table; give the folder: --folder")
    write_manifest(out, clips)
    note = f", {len(missing)} without readable audio, such as {missing[0]}" if missing else ""
    captions = counted(sum(len(clip.captions) for clip in clips), "caption")
    print(f"wrote {out}: {counted(len(clips), 'clip')}, {captions}{note}")
