"""Read your own table of audio files and captions.

Or that of a data set without a reader here.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from data_tools.audio import readable_seconds
from data_tools.cli import Manifest, counted
from data_tools.errors import DataError
from data_tools.manifest import (
    SPLITS,
    TEST_SPLITS,
    VALIDATION_SPLITS,
    Clip,
    Split,
    audio_clip,
    check_caption,
    write_manifest,
)
from data_tools.names import check_source
from data_tools.tables import read_table

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def read_captions(
    path: Path,
    audio: str,
    captions: Sequence[str],
    folder: Path,
    source: str,
    split: Split = "development",
    split_column: str | None = None,
    id_column: str | None = None,
    delimiter: str = ",",
) -> list[Clip]:
    """Return the clips of a table; all rows of one audio file become one clip.

    Args:
        path: CSV file.
        audio: Column with the name of the audio file, relative to `folder`; a.wav, ./a.wav and a link are one file.
        captions: Columns of captions. If there are several, a cell may be empty, but not all cells of a row.
        folder: Folder of the audio files.
        source: Source of the clips, for their ids.
        split: Split of all rows.
        split_column: Column with the split of each row, instead of `split`. A file in several splits keeps only its
            rows of one: test before validation before training.
        id_column: Column with Freesound ids; an empty cell is an unknown one.
        delimiter: Separator of the cells.

    Raises:
        DataError: A column is missing, a caption is bad, a split is unknown, an id is no number.
    """
    names: dict[str, str] = {}
    ids: dict[str, str | None] = {}
    texts: dict[str, dict[Split, list[str]]] = {}
    columns = [audio, *captions, *filter(None, [split_column, id_column])]
    for line, row in read_table(path, columns, None, delimiter):
        where = f"{path}, line {line}"
        if not row[audio].strip():
            raise DataError(f"{where}: the column {audio} is empty; name the audio file, or remove the row")
        row_split = _parse_split(row[split_column], where) if split_column else split
        filled = [column for column in captions if row[column].strip()] or captions[:1]
        for column in filled:
            check_caption(row[column], f"{where}, {column}")
        name = names.setdefault(os.path.realpath(folder / row[audio]), row[audio])
        texts.setdefault(name, {}).setdefault(row_split, []).extend(row[column] for column in filled)
        ids[name] = (id_column and row[id_column].strip()) or ids.get(name)
    clips = []
    for name, by_split in texts.items():
        kept = max(by_split, key=lambda one: 2 if one in TEST_SPLITS else int(one in VALIDATION_SPLITS))
        clips.append(audio_clip(folder, name, source, kept, by_split[kept], readable_seconds(folder / name), ids[name]))
    return clips


def _parse_split(text: str, where: str) -> Split:
    for split in SPLITS:
        if text.strip() == split:
            return split
    raise DataError(f"{where}: unknown split {text[:40]!r}; use one of {', '.join(SPLITS)}")


def table(
    table: Annotated[Path, typer.Argument(help="Table of clips with a header, in UTF-8 (.csv, .tsv).")],
    audio: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the name of the audio file.")],
    caption: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column with captions; repeat.")],
    out: Manifest,
    folder: Annotated[Path | None, typer.Option(help="Folder of the audio files; default: the table's folder.")] = None,
    split: Annotated[Split, typer.Option(help="Split of all rows.")] = "development",
    split_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the split of each row, instead of --split.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with Freesound ids.")] = None,
    delimiter: Annotated[
        Literal["comma", "semicolon", "tab", "bar"], typer.Option(help="Separator of columns.")
    ] = "comma",
    name: Annotated[str, typer.Option(help="Name of the clips' source, for their ids; default: the table's.")] = "",
) -> None:
    """Make a manifest from a table of audio files and captions."""
    folder, source = folder or table.parent, check_source(name or table.stem)
    columns = split, split_column, id_column, DELIMITERS[delimiter]
    clips = read_captions(table, audio, caption, folder, source, *columns)
    missing = [clip.path for clip in clips if clip.seconds is None]
    if len(missing) == len(clips):
        raise DataError(f"{missing[0]}: no readable audio, nor any other file of the table; give the folder: --folder")
    write_manifest(out, clips)
    note = f", {len(missing)} without readable audio, such as {missing[0]}" if missing else ""
    captions = counted(sum(len(clip.captions) for clip in clips), "caption")
    print(f"wrote {out}: {counted(len(clips), 'clip')}, {captions}{note}")
