"""Manifests: JSON lines, one clip per line.

Every data set enters the kit through a manifest, and every later step reads only this format.
"""

import codecs
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data_tools.audio import readable_seconds
from data_tools.errors import KitError
from data_tools.files import read_text, require_file, require_folder, write_text
from data_tools.names import audio_tree
from data_tools.settings import faults_of
from data_tools.tables import caption_columns, read_table

# Names as published: Clotho's three, AudioCaps' three (WavCaps is all `train`), and sets without known captions.
Split = Literal["development", "validation", "evaluation", "train", "val", "test", "blind"]
SPLITS: tuple[Split, ...] = get_args(Split)
TEST_SPLITS = frozenset({"evaluation", "test", "blind"})
TRAINING_SPLITS = frozenset({"development", "train"})
VALIDATION_SPLITS = frozenset({"validation", "val"})

Item = TypeVar("Item")
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Clip:
    """An audio file with its captions. A line of a manifest needs only id, path and captions.

    Attributes:
        id: "<source>/<split>/<file_name>", unique over all sources and splits.
        file_name: Name as published, byte for byte. Default: the last part of `path`.
        path: Audio file. In a manifest it may be relative to the manifest's folder.
        seconds: Length; None if unknown.
        captions: Captions as published.
        freesound_id, licence, uploader: None if unknown.
    """

    id: Text
    file_name: str = ""
    path: Text
    seconds: Annotated[float, Field(ge=0)] | None = None
    captions: list[str]
    source: Text = "own"
    split: Split = "development"
    freesound_id: Annotated[str, Field(pattern=r"^\s*[0-9]{1,18}\s*$")] | None = None
    licence: Text | None = None
    uploader: Text | None = None

    def __post_init__(self) -> None:
        """Fill in the file name."""
        if not self.file_name:
            object.__setattr__(self, "file_name", PurePath(self.path).name)


class Query(NamedTuple):
    """A text to search with. relevant: Ids of the clips that it should find; None if unknown."""

    id: str
    text: str
    relevant: list[str] | None


def audio_clip(folder: Path, name: str, source: str, split: Split, captions: list[str], **facts: Any) -> Clip:
    """Return the clip of an audio file, with the id "<source>/<split>/<name>".

    Args:
        folder: Folder of the file.
        name: Path of the file, relative to `folder`.
        source, split, captions: As of Clip.
        facts: Its other attributes; "" means unknown. The length is read from the file, if it is not given.
    """
    facts = {"path": os.path.abspath(folder / name), **facts}
    if "seconds" not in facts:
        facts["seconds"] = readable_seconds(facts["path"])
    known = {key: value for key, value in facts.items() if value != ""}
    try:
        return Clip(
            id=f"{source}/{split}/{name}", file_name=name, source=source, split=split, captions=captions, **known
        )
    except ValidationError as error:
        raise KitError(f"{str(folder / name)!a}: {faults_of(error)[0]}") from None


def check_caption(text: str, where: str) -> None:
    """Raise KitError for a caption without a letter or digit, and for the text of a list.

    where: Place for the message, such as "captions.csv, line 3". Any script is allowed.
    """
    if not any(map(str.isalnum, text)):
        raise KitError(f"{where}: the caption {text[:40]!r} has no letter or digit; fill it in or remove it")
    if text[:2] in ("['", '["'):
        raise KitError(f"{where}: the caption {text[:40]!r} is the text of a list; write one caption per row or column")


def read_lines(path: Path, kind: TypeAdapter[Item]) -> Iterator[tuple[int, Item]]:
    """Yield (line number, item) for each line of a file of JSON lines. Raises KitError for a bad line."""
    require_file(path)
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, kind.validate_json(line.removeprefix(codecs.BOM_UTF8))
            except ValidationError as error:
                read_text(path)  # raises a better error for another encoding, and for an empty file
                raise KitError(f"{path}, line {number}: {faults_of(error)[0]}") from None
    if not number:
        read_text(path)  # raises an error for an empty file


_CLIP = TypeAdapter(Clip)
log = logging.getLogger(__name__)


def read_manifest(path: Path) -> list[Clip]:
    """Return the clips of a manifest, with absolute paths. Raises KitError for a bad line or a repeated id."""
    folder = os.path.abspath(path.parent)
    line_of: dict[str, int] = {}
    clips = []
    for number, clip in read_lines(path, _CLIP):
        for caption in clip.captions:
            check_caption(caption, f"{path}, line {number}")
        if (first := line_of.setdefault(clip.id, number)) != number:
            raise KitError(f"{path}, line {number}: the id {clip.id!r} is already on line {first}; keep one of them")
        object.__setattr__(clip, "path", os.path.abspath(os.path.join(folder, clip.path)))  # still ours alone
        clips.append(clip)
    return clips


def of_split(clips: list[Clip], split: str | None, where: object) -> list[Clip]:
    """Return the clips of a split, or all for None. Raises KitError, which names `where`, for none."""
    selected = [clip for clip in clips if split in (None, clip.split)]
    if not selected:
        raise KitError(f"{where} has no split {split}; use {', '.join(sorted({clip.split for clip in clips}))}")
    return selected


def write_manifest(path: Path, clips: Iterable[Clip]) -> None:
    """Write a manifest; paths below its folder become relative, so that the folder can move.

    Raises KitError for no clips.
    """
    folder = os.path.join(os.path.abspath(path.parent), "")
    stored = [replace(clip, path=os.path.abspath(clip.path).removeprefix(folder)) for clip in clips]
    if not stored:
        raise KitError(f"{path}: not written, because no clip is left; check the input and the filters")
    write_text(path, "".join(f"{_CLIP.dump_json(clip).decode()}\n" for clip in stored))


def folder_clips(folder: Path, source: str) -> list[Clip]:
    """Return a clip for every audio file of the folder and its subfolders, sorted.

    Their names are relative to the folder and exactly as on disk. Other files are counted and named in the log; hidden
    files are ignored. Raises KitError for a missing folder and one without audio.
    """
    require_folder(folder)
    names, others = audio_tree(folder)
    if others:
        log.warning("%s: skipped %d files that are not audio, such as %s", folder, len(others), others[0])
    if not names:
        raise KitError(f"{folder}: no audio files in this folder; unpack the data set, and give its folder")
    return [audio_clip(folder, name, source, "blind", []) for name in names]


def caption_queries(clips: Iterable[Clip]) -> list[Query]:
    """Return a query per caption, with the id "<clip id>#<number>", numbers from 1."""
    return [
        Query(f"{clip.id}#{number}", caption, [clip.id])
        for clip in clips
        for number, caption in enumerate(clip.captions, 1)
    ]


def read_captions(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, file name, captions) for each row of a captions CSV.

    It has Clotho's columns file_name, caption_1 .., or a blind set's column caption (the file name is then "").
    Raises KitError for another table, and for a bad caption.
    """
    rows = read_table(path, [])
    first = rows[0][1]
    if ("caption" in first) == ("file_name" in first):
        raise KitError(f"{path}: needs the column caption, or file_name, caption_1 ..; has {', '.join(first)[:300]}")
    columns = ["caption"] if "caption" in first else caption_columns(path, first)
    for line, row in rows:
        for column in columns:
            check_caption(row[column], f"{path}, line {line}, {column}")
        if row.get("file_name") == "":
            raise KitError(f"{path}, line {line}: no file name; fill it in")
        yield line, row.get("file_name", ""), [row[column] for column in columns]


def read_queries(path: Path) -> list[Query]:
    """Return the queries of a file: a captions CSV, or a text (.txt) with one in each line.

    Their ids are "<row>" in a text or a blind set, "<row>.<number>" with Clotho's columns.
    """
    if path.suffix == ".txt":
        found = [("", [line.strip()]) for line in read_text(path).splitlines() if line.strip()]
    else:
        found = [(name, texts) for _, name, texts in read_captions(path)]
    queries = []
    for row, (name, texts) in enumerate(found, 1):
        for number, text in enumerate(texts, 1):
            check_caption(text, f"{path}, query {row}")
            queries.append(Query(f"{row}.{number}" if name else f"{row}", text, None))
    return queries
