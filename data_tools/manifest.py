"""Manifests and query files.

Reads and writes manifests (one JSON line per clip, with its captions) and query files (one JSON line per query).

Every data set enters the kit through a manifest, and every later step reads only this format.
"""

import os
import re
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import from_json

from data_tools.documents.json_text import StoredLines
from data_tools.documents.lines import Line, Text, item_of, read_lines, unique_items, write_lines
from data_tools.errors import DataError
from data_tools.files import absolute
from data_tools.names import is_freesound_id
from data_tools.tables import caption_columns, read_table

# Published split names: Clotho's three, AudioCaps' three (WavCaps is all `train`), and sets without known captions.
Split = Literal["development", "validation", "evaluation", "train", "val", "test", "blind"]
SPLITS: tuple[Split, ...] = get_args(Split)
TEST_SPLITS: frozenset[str] = frozenset({"evaluation", "test", "blind"})
TRAINING_SPLITS: frozenset[str] = frozenset({"development", "train"})
VALIDATION_SPLITS: frozenset[str] = frozenset({"validation", "val"})

MAX_WORDS = 512  # at least the input limit, in tokens, of common sentence encoders

LARGE = 64 << 20  # bytes above which the clips of a manifest are read on demand


def _require_freesound_id(text: str) -> str:
    """Return a Freesound id unchanged. Raises ValueError for text that is not a number."""
    if not is_freesound_id(text):
        raise ValueError("not a Freesound id, which is a number; correct it")
    return text


FreesoundId = Annotated[str, AfterValidator(_require_freesound_id)]  # as published; see plain_id


class Clip(Line):
    """An audio file with its captions.

    id: "<source>/<split>/<file_name>", unique over all sources and splits.
    file_name: Name as published, byte for byte (with leading blanks, HTML entities); default: the last part of `path`.
    path: The audio file. In a manifest it may be relative to the manifest's folder; after reading, it is absolute.
    seconds: Length; None if unknown (audio missing).
    freesound_id, licence, uploader: None if unknown.
    A line of a manifest needs only id, path and captions.
    """

    file_name: Text
    path: Text
    seconds: Annotated[float, Field(ge=0)] | None = None
    captions: list[str]
    source: Text = "own"
    split: Split = "development"
    freesound_id: FreesoundId | None = None
    licence: Text | None = None
    uploader: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_file_name(cls, line: Any) -> Any:
        """Return a manifest's line, parsed as a dict, with the last part of its path as file name if it has none."""
        if isinstance(line, dict) and "file_name" not in line and isinstance(line.get("path"), str):
            return {**line, "file_name": PurePath(line["path"]).name}
        return line


class Query(Line):
    """A text to search with. relevant: Ids of the clips that it should find; None if unknown (a blind set)."""

    text: str
    relevant: list[Text] | None


def _usual_line_pattern() -> str:
    """Return a regular expression for the usual form of a manifest's lines, which most clips have.

    Its groups are id, captions and split. A matching line is a valid clip. All other lines are parsed by parse_json and
    Clip.
    """
    escaped, plain = r'\\["\\/bfnrt]', r'[^"\\\x00-\x1f]*+'  # parts of a JSON string
    end, blank = f"{plain}(?:{escaped}{plain})*+", r'[^"\\A-Za-z0-9\x00-\x1f]*+'
    text, caption = f'"(?!"){end}"', f'"{blank}(?:{escaped}{blank})*+[A-Za-z0-9]{end}"'
    null_or = "(?:null|{})".format
    fields = {
        "id": r'"([^"\\\x00-\x1f]+)"',
        "file_name": text,
        "path": text,
        "seconds": null_or(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,20})?"),
        "captions": rf"(\[(?:{caption}(?:, ?{caption})*)?\])",
        "source": text,
        "split": f'"({"|".join(SPLITS)})"',
        "freesound_id": null_or('"[0-9]{1,12}"'),
        "licence": null_or(text),
        "uploader": null_or(text),
    }
    return r"\{" + ", ?".join(f'"{name}": ?{value}' for name, value in fields.items()) + r"\}"


_USUAL = re.compile(_usual_line_pattern())

NO_CLIPS = "is not a manifest, one line of JSON per clip; make one with lbar data clotho, audiocaps or table"
NO_QUERIES = "is not a query file, one line of JSON per query; make one with lbar data queries"


def audio_clip(
    folder: Path,
    name: str,
    source: str,
    split: Split,
    captions: list[str],
    seconds: float | None,
    freesound_id: str | None = None,
    licence: str | None = None,
    uploader: str | None = None,
    path: str | None = None,
) -> Clip:
    """Make the clip of an audio file, with the id "<source>/<split>/<name>".

    name: Path of the file, relative to `folder`. licence, uploader: "" and None mean unknown. path: Path of the file if
    it is a member of an archive.
    """
    return Clip(
        id=f"{source}/{split}/{name}",
        file_name=name,
        path=path or absolute(folder / name),
        seconds=seconds,
        captions=captions,
        source=source,
        split=split,
        freesound_id=freesound_id,
        licence=licence or None,
        uploader=uploader or None,
    )


def check_caption(text: str, where: str) -> None:
    """Raise DataError for a caption without a letter or digit, or with more than MAX_WORDS words.

    where: Place for the message, such as "captions.csv, line 3". Any script is allowed; the text is never changed.
    """
    if not text.strip():
        raise DataError(f"{where}: the caption is empty; fill it in or remove it")
    if not any(character.isalnum() for character in text):
        raise DataError(f"{where}: the caption {text[:40]!r} has no letter or digit; fill it in or remove it")
    if (words := len(text.split())) > MAX_WORDS:
        raise DataError(f"{where}: the caption has {words} words, more than {MAX_WORDS}; shorten it")


def read_caption_table(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, file name, captions) for every row of a table with Clotho's columns.

    Raises DataError for a file that is no such table, and for a bad caption.
    """
    rows = read_table(path, ["file_name", "caption_1"])
    columns = caption_columns(path, rows[0][1])
    for line, row in rows:
        for column in columns:
            check_caption(row[column], f"{path}, line {line}, {column}")
        yield line, row["file_name"], [row[column] for column in columns]


def iter_manifest(path: Path | str) -> Iterator[tuple[int, Clip]]:
    """Yield (line number, clip) for every line of a manifest, clip paths absolute; ids may repeat.

    Raises DataError with file and line for anything that is not a clip.
    """
    path = Path(path)
    folder = absolute(path.parent)
    for number, clip in read_lines(path, Clip, NO_CLIPS):
        _check_captions(clip, f"{path}, line {number}")
        yield number, clip.model_copy(update={"path": absolute(os.path.join(folder, clip.path))})


def _check_captions(clip: Clip, where: str) -> None:
    """Raise DataError for a bad caption of a clip, as check_caption does."""
    for caption in clip.captions:
        check_caption(caption, where)


class Clips(Sequence[Clip]):
    """Clips of a large manifest, each read from its line on demand; all were checked when the manifest was opened.

    Raises DataError if the file was changed since then.
    """

    def __init__(self, manifest: "_Manifest", rows: Sequence[int]) -> None:
        """Select the clips on the lines `rows` of a manifest."""
        self._manifest, self._rows = manifest, rows

    def __len__(self) -> int:
        """Return the number of clips."""
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return the clip at an index, or Clips for a slice."""
        if isinstance(index, slice):
            return Clips(self._manifest, self._rows[index])
        self._manifest.lines.require_unchanged()
        return self._manifest.clip(self._rows[index])

    def __iter__(self) -> Iterator[Clip]:
        """Yield the clips, each read from its line."""
        self._manifest.lines.require_unchanged()
        return map(self._manifest.clip, self._rows)

    def of_split(self, split: str) -> "Clips":
        """Return the clips of a split."""
        import numpy as np

        wanted = SPLITS.index(split) if split in SPLITS else len(SPLITS)
        rows = np.asarray(self._rows, np.int64)
        splits = np.frombuffer(self._manifest.splits, np.uint8)[rows]
        return Clips(self._manifest, array("q", rows[splits == wanted].tobytes()))


class Joined(Collection[Clip]):
    """The clips of several manifests in sequence; each pass reads the clips of large manifests again."""

    def __init__(self, parts: Iterable[Sequence[Clip]]) -> None:
        """Store the manifests' clips, to be read as one sequence."""
        self._parts = list(parts)

    def __iter__(self) -> Iterator[Clip]:
        """Yield the clips of all manifests, one after another."""
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        """Return the number of clips in all manifests."""
        return sum(map(len, self._parts))

    def __contains__(self, clip: object) -> bool:
        """Return whether any of the manifests contains the clip."""
        return any(clip in part for part in self._parts)


_FIELDS_SET = set(Clip.model_fields)


def _clip_of(values: dict[str, Any]) -> Clip:
    """Make a clip from a dict of valid values for all fields, in a fifth of the time of Clip.model_construct."""
    clip = Clip.__new__(Clip)
    object.__setattr__(clip, "__dict__", values)
    object.__setattr__(clip, "__pydantic_fields_set__", _FIELDS_SET)  # shared, to save memory
    object.__setattr__(clip, "__pydantic_extra__", None)
    object.__setattr__(clip, "__pydantic_private__", None)
    return clip


class _Manifest:
    """An open manifest file whose lines are all checked. splits: For every line, the index of its split in SPLITS."""

    def __init__(self, path: Path, unique: bool) -> None:
        """Open a manifest and check all of its lines. unique: Whether to refuse repeated ids."""
        self.lines, self._folder, self.splits = StoredLines(path), absolute(path.parent), bytearray()
        self._is_usual = bytearray()  # for every line, whether it needs no further check
        self._check(unique)

    def _check(self, unique: bool) -> None:
        """Check all lines and store their splits. Raises DataError for a bad line and, if `unique`, a repeated id."""
        import numpy as np

        path, hashes = self.lines.path, array("q")
        numbers: dict[str, int] = {split: number for number, split in enumerate(SPLITS)}
        for lines in self.lines.read():
            if not self.splits and lines[0].strip() and not lines[0].lstrip().startswith("{"):
                raise DataError(f"{path}: {NO_CLIPS}")
            for line in lines:
                if (usual := _USUAL.fullmatch(line)) and usual.end(2) - usual.start(2) < 2 * MAX_WORDS:
                    clip_id, split = usual.group(1, 3)
                    self._is_usual.append(True)
                else:
                    clip = item_of(line, Clip, where := f"{path}, line {len(self.splits) + 1}")
                    _check_captions(clip, where)
                    clip_id, split = clip.id, clip.split
                    self._is_usual.append(False)
                hashes.append(hash(clip_id))
                self.splits.append(numbers[split])
        hash_values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
        if unique and (twice := set(hash_values[counts > 1].tolist())):
            rows = (row for row, number in enumerate(hashes) if number in twice)
            unique_items(((row + 1, self.clip(row)) for row in rows), path)

    def clip(self, row: int) -> Clip:
        """Return the clip on a line, with an absolute path."""
        if not self._is_usual[row]:
            found = Clip.model_validate_json(self.lines.line(row))
            found.__dict__["path"] = absolute(os.path.join(self._folder, found.path))  # before any caller has the clip
            return found
        values = from_json(self.lines.line(row))  # with a third of the memory of a clip that is checked again
        path, seconds = values["path"], values["seconds"]
        values["path"] = absolute(path if path.startswith("/") else f"{self._folder}/{path}")
        values["seconds"] = None if seconds is None else float(seconds)
        values["source"], values["split"] = sys.intern(values["source"]), SPLITS[self.splits[row]]
        return _clip_of(values)


def read_manifest(path: Path | str, unique: bool = True) -> Sequence[Clip]:
    """Return all clips of a manifest, with absolute paths. unique: Refuse repeated ids.

    Raises DataError for a line that is not a clip. A file of more than 64 MiB (LARGE) is checked at once, and its clips
    are read on demand: a list of a million clips would take gigabytes.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size > LARGE:
        manifest = _Manifest(path, unique)
        return Clips(manifest, range(len(manifest.splits)))
    return unique_items(iter_manifest(path), path) if unique else [clip for _, clip in iter_manifest(path)]


def of_split(clips: Sequence[Clip], split: str | None, where: object) -> Sequence[Clip]:
    """Return the clips of a split, or all for None. Raises DataError, which names `where`, for an empty result."""
    selected = clips if split is None else in_split(clips, split)
    if not selected:
        raise DataError(f"{where} has no split {split}; use {', '.join(sorted({clip.split for clip in clips}))}")
    return selected


def in_split(clips: Sequence[Clip], split: str) -> Sequence[Clip]:
    """Return the clips of a split; an empty sequence for a missing split."""
    return clips.of_split(split) if isinstance(clips, Clips) else [clip for clip in clips if clip.split == split]


def write_manifest(path: Path | str, clips: Iterable[Clip]) -> None:
    """Write clips to a manifest, one per line; paths below its folder are stored relative, so that the folder can move.

    Raises DataError for no clips and for a repeated id.
    """
    path = Path(path)
    folder = absolute(path.parent)

    def stored(clip: Clip) -> Clip:
        """Return the clip in its stored form: the path is relative if it is below the manifest's folder."""
        whole = absolute(os.path.join(folder, clip.path))
        relative = os.path.relpath(whole, folder)
        outside = relative.split(os.sep)[0] == os.pardir
        return clip.model_copy(update={"path": whole if outside else relative})

    write_lines(path, clips, stored)


def caption_queries(clips: Iterable[Clip]) -> list[Query]:
    """Return one query per caption, in order: id "<clip id>#<n>" with n from 1, relevant = [clip id]."""
    return [
        Query(id=f"{clip.id}#{number}", text=caption, relevant=[clip.id])
        for clip in clips
        for number, caption in enumerate(clip.captions, 1)
    ]


def read_queries(path: Path | str) -> list[Query]:
    """Read the queries of a .jsonl query file, or of a .csv file of captions.

    A CSV file has either a blind set's column `caption` (query ids "1", "2" .. by row), or Clotho's columns file_name,
    caption_1 .. (ids "<row>.<caption number>", both from 1). `relevant` is None for both.
    Raises DataError with file and line for bad rows, bad captions, and a repeated id.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        queries = unique_items(read_lines(path, Query, NO_QUERIES), path)
        for number, query in enumerate(queries, 1):
            check_caption(query.text, f"{path}, line {number}")
        return queries
    if path.suffix == ".csv":
        return list(_csv_queries(path))
    raise DataError(f"{path}: not a file of queries; use one that ends in .jsonl or .csv")


def write_queries(path: Path | str, queries: Iterable[Query]) -> None:
    """Write queries, one per line. Raises DataError for no queries and for a repeated id."""
    write_lines(Path(path), queries)


def _csv_queries(path: Path) -> Iterator[Query]:
    """Yield a query for each caption in a CSV file: of the column `caption`, or of Clotho's five columns."""
    rows = read_table(path, columns=[])
    first = rows[0][1]
    if ("caption" in first) == ("file_name" in first):
        raise DataError(
            f"{path}: needs the column caption, or file_name, caption_1 ..; the first line has {', '.join(first)}"
        )
    columns = ["caption"] if "caption" in first else caption_columns(path, first)
    for row, (line, values) in enumerate(rows, 1):
        for number, column in enumerate(columns, 1):
            check_caption(values[column], f"{path}, line {line}, {column}")
            name = str(row) if columns == ["caption"] else f"{row}.{number}"
            yield Query(id=name, text=values[column], relevant=None)
