"""Read your own table.

Reader of any table of audio files and captions: your own data, or a data set without a reader here.
"""

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import get_args

from data_tools.audio import readable_seconds
from data_tools.cli import add_manifest, counted
from data_tools.datasets.nearest import note_on_similar_names
from data_tools.errors import DataError
from data_tools.files import absolute
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
from data_tools.names import audio_tree, check_source
from data_tools.tables import Quoting, read_table

log = logging.getLogger(__name__)

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def read_captions(
    path: Path,
    audio: str,
    captions: Sequence[str],
    folder: Path,
    source: str,
    split: Split = "development",
    split_column: str | None = None,
    delimiter: str = ",",
    quoting: Quoting | None = None,
) -> tuple[list[Clip], list[str]]:
    """Return the clips of a table with columns `audio` and `captions`, and the paths of missing or unreadable audio.

    Args:
        audio: Column with the name of a row's audio file, relative to `folder`. All rows of one file become one clip.
            Names such as a.wav and ./a.wav mean one file; the clip gets the first of them. If such names are in splits
            of different kinds (test, validation, training), a warning is logged, and only the rows of one split are
            used: test before validation before training.
        captions: Columns of captions. If there are several, a cell may be empty, but not all cells of a row.
        folder: Folder of the audio files.
        source: Source of the clips, for their ids.
        split_column: Column of a row's split; None: all rows have `split`.
        quoting: "csv": quotes around a cell are removed, as in RFC 4180. "none": quotes are part of the text. None:
            "csv", but "none" if the delimiter is a tab.
    Raises DataError for a missing column, an empty or bad caption, an unknown split, and one name in two splits. Also
        for two names of one file, such as a.wav and ./a.wav, in two splits of the same kind, such as test and
        evaluation.
    """
    names: dict[str, str] = {}  # by the resolved file: "a.wav", "./a.wav" and a link to it are one clip
    texts: dict[str, dict[Split, list[str]]] = {}
    spelled: dict[str, Split] = {}  # split of each name as written in the table
    columns = [audio, *captions, *([split_column] if split_column else [])]
    for line, row in _read_rows(path, columns, delimiter, quoting):
        where = f"{path}, line {line}"
        name = row[audio]
        if not name.strip():
            raise DataError(f"{where}: the column {audio} is empty; name the audio file, or remove the row")
        row_split = _parse_split(row[split_column], where) if split_column else split
        if spelled.setdefault(name, row_split) != row_split:
            raise DataError(
                f"{where}: {name} has the split {row_split} here, but {spelled[name]} above; give it one split"
            )
        filled = [column for column in captions if row[column].strip()] or [captions[0]]
        for column in filled:
            check_caption(row[column], f"{where}, {column}")
        name = names.setdefault(os.path.realpath(folder / name), name)
        texts.setdefault(name, {}).setdefault(row_split, []).extend(row[column] for column in filled)
    splits = {name: _strictest_split(path, name, list(found)) for name, found in texts.items()}
    clips = [
        audio_clip(folder, name, source, strictest, texts[name][strictest], readable_seconds(folder / name))
        for name, strictest in splits.items()
    ]
    return clips, [clip.path for clip in clips if clip.seconds is None]


def _strictest_split(path: Path, name: str, splits: Sequence[Split]) -> Split:
    """Return the split of a file that is in several splits: test before validation before training."""
    if len(splits) == 1:
        return splits[0]
    by_rank = {2 if one in TEST_SPLITS else int(one in VALIDATION_SPLITS): one for one in splits}
    shown = " and ".join(splits)
    if len(by_rank) < len(splits):
        raise DataError(
            f"{path}: the file {name}, listed by several paths, is in the splits {shown}; give it one split"
        )
    strictest = by_rank[max(by_rank)]
    log.warning(
        "%s: the audio file %s is listed by several names, in the splits %s; only its rows in %s are used",
        path, name, shown, strictest,
    )  # fmt: skip
    return strictest


def _read_rows(
    path: Path, columns: Sequence[str], delimiter: str, quoting: Quoting | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table of captions with their line numbers.

    quoting: "csv": quotes around a cell are removed, as in RFC 4180. "none": quotes are part of the text. None: "none"
    for tabs, "csv" for other delimiters. Published TSVs have no quotes around cells (text/tab-separated-values), but
    pandas and spreadsheets write them. Without `quoting`, a cell in quotes between tabs therefore raises DataError, so
    that the user chooses.
    """
    used: Quoting = quoting or ("none" if delimiter == "\t" else "csv")
    for line, row in read_table(path, columns, None, delimiter, used, "; or give --quoting none, if quotes are text"):
        yield line, row
        if quoting is None and used == "none":
            for column, cell in row.items():
                if len(cell) > 1 and cell[0] == cell[-1] == '"':
                    raise DataError(
                        f"{path}, line {line}: the whole cell of {column} is in quotes ({cell[:40]!r}); add "
                        "--quoting csv if the quotes only mark the cell, or --quoting none if they are text"
                    )


def _note_on_similar_names(folder: Path, clips: Sequence[Clip]) -> str:
    """Return a note on missing files whose names are similar to unused files in the folder; "" without such files."""
    missing = {clip.path: clip.file_name for clip in clips if not Path(clip.path).is_file()}
    if not missing or not folder.is_dir():
        return ""
    used = {clip.path for clip in clips} - missing.keys()
    return note_on_similar_names(
        missing.values(), [name for name in audio_tree(folder)[0] if absolute(folder / name) not in used]
    )


def _parse_split(text: str, where: str) -> Split:
    """Return the split that a cell of the table names. Raises DataError for an unknown split."""
    for split in SPLITS:
        if text.strip() == split:
            return split
    raise DataError(f"{where}: unknown split {text[:40]!r}; use one of {', '.join(SPLITS)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `table` to its parser."""
    add = parser.add_argument
    add("table", type=Path, help="table of clips with a header, in UTF-8 (.csv, .tsv)")
    add("--audio", metavar="COLUMN", required=True, help="column with the name of the audio file")
    add("--caption", metavar="COLUMN", nargs="+", required=True, help="columns with captions")
    add("--folder", type=Path, help="folder of the audio files (default: the table's folder)")
    add("--split", choices=SPLITS, default="development", help="split of all rows (default: %(default)s)")
    add("--split-column", metavar="COLUMN", help="column with the split of each row, instead of --split")
    add("--delimiter", choices=tuple(DELIMITERS), default="comma", help="separator of columns (default: %(default)s)")
    quoting = "csv: quotes enclose cells; none: quotes are part of the text (default: csv; with tabs: none)"
    add("--quoting", choices=get_args(Quoting), help=quoting)
    add("--name", help="name of the clips' source, for their ids (default: the table's name)")
    add_manifest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `table`: make a manifest from a table of audio files and captions; return the exit status."""
    folder = arguments.folder or arguments.table.parent
    source = check_source(arguments.name or PurePath(arguments.table).stem)
    clips, unreadable = read_captions(
        arguments.table,
        arguments.audio,
        arguments.caption,
        folder,
        source,
        arguments.split,
        arguments.split_column,
        DELIMITERS[arguments.delimiter],
        arguments.quoting,
    )
    similar = _note_on_similar_names(folder, clips)
    if len(unreadable) == len(clips):
        problem = f"cannot read any of the table's {len(clips)} audio files in this folder, such as {unreadable[0]}"
        cure = f"{similar}; correct the names in the table" if similar else "give their folder by --folder"
        raise DataError(f"{folder}: {problem}; {cure}")
    write_manifest(arguments.out, clips)
    note = f", {len(unreadable)} without readable audio (`check` names them)" if unreadable else ""
    note += f"; {similar}" if similar else ""
    captions = counted(sum(len(clip.captions) for clip in clips), "caption")
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')}, {captions}{note}")
    return 0
