"""Unpack data sets of the Hugging Face hub.

Parquet files with embedded audio, and WebDataset tars, become audio files with a manifest. Columns of public data sets,
by their cards: mteb/Clotho and CLAPv2 (audio, text, index), OpenSound/AudioCaps (audio, caption, youtube_id,
start_time). Other archives are unpacked by their own programs (`7z x`, `unzip`).
"""

import argparse
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from data_tools.audio import AUDIO_SUFFIXES, readable_seconds
from data_tools.cli import add_manifest, counted, each
from data_tools.errors import DataError
from data_tools.files import remove_parts, writing
from data_tools.manifest import SPLITS, Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.names import check_source

AUDIO = ("audio", "wav", "flac", "mp3")  # usual names of the column with audio
CAPTIONS = ("captions", "caption", "text", "txt", "raw_text")
_SPLIT_WORDS: dict[str, Split] = {"dev": "validation", "valid": "validation", "val": "validation", "eval": "evaluation"}


class Sample(NamedTuple):
    """A clip of a shard: name and bytes of its audio file, and the other columns."""

    name: str
    audio: bytes
    fields: dict[str, Any]


def read_parquet(path: Path) -> Iterator[Sample]:
    """Yield the samples of a parquet file. Rows without audio are skipped."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise DataError(f"{path}: needs the package pyarrow; install lbar-kit with the extra parquet") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            column = next((name for name in AUDIO if name in names), None)
            if column is None:
                raise DataError(f"{path}: no column with audio, only {', '.join(names)}")
            number = 0
            for batch in file.iter_batches(64):
                for row in batch.to_pylist():
                    audio, number = row.pop(column), number + 1
                    if isinstance(audio, str | bytes):
                        audio = {("path" if isinstance(audio, str) else "bytes"): audio}
                    if audio and not audio.get("bytes") and audio.get("path"):
                        raise DataError(
                            f"{path}: row {number} has only the path {audio['path']}, not the sound; make a table of "
                            "the paths, and read it by lbar data table"
                        )
                    if audio and audio.get("bytes"):
                        name = PurePath(audio.get("path") or f"{path.stem}_{number:06}.wav").name
                        yield Sample(name, audio["bytes"], row)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: cannot be read as parquet ({error}); download it again") from None


def read_tar(path: Path) -> Iterator[Sample]:
    """Yield the samples of a WebDataset tar: neighbouring files of one name up to the first dot."""
    group: dict[str, bytes] = {}
    key = None
    try:
        with tarfile.open(path) as tar:
            for entry in tar:
                if (file := tar.extractfile(entry)) is None:
                    continue
                stem = PurePath(entry.name).name.split(".")[0]
                if stem != key:
                    yield from _samples_of(path, group)
                    group, key = {}, stem
                group[PurePath(entry.name).name] = file.read()
        yield from _samples_of(path, group)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as tar ({error}); download it again") from None


def _samples_of(path: Path, group: dict[str, bytes]) -> Iterator[Sample]:
    audio = next((name for name in group if name.lower().endswith(AUDIO_SUFFIXES)), None)
    if audio is None:
        return
    fields: dict[str, Any] = {}
    for name, content in group.items():
        suffix = PurePath(name).suffix
        try:
            if suffix == ".json":
                fields |= json.loads(content)
            elif suffix == ".txt":
                fields["txt"] = content.decode().strip()
        except ValueError as error:
            raise DataError(f"{path}: {name} is damaged ({error}); download the file again") from None
    yield Sample(audio, group[audio], fields)


def split_of(path: Path) -> Split:
    """Return the split in a file's or folder's name, such as test-00000-of-00010.parquet; else "train"."""
    words: dict[str, Split] = {**_SPLIT_WORDS, **{split: split for split in SPLITS}}
    for part in (path.stem, path.parent.name):
        for word in part.lower().replace("_", "-").split("-"):
            if word in words:
                return words[word]
    return "train"


def unpack(files: Sequence[Path], audio: Path, source: str, caption: str | None, name: Sequence[str]) -> list[Clip]:
    """Unpack the audio of shards, and return its clips; rows of one name become one clip with all captions.

    Args:
        files: Parquet or tar files.
        audio: Folder for the audio files; those that exist already are kept, if they have the same bytes.
        source: Source of the clips, for their ids.
        caption: Column with the captions. None: a usual name.
        name: Columns that name a clip, joined by "_". Empty: the audio file's own name.
    """
    clips: dict[str, Clip] = {}
    remove_parts(audio)  # of a killed call
    for path in files:
        split = split_of(path)
        samples = read_parquet(path) if path.suffix == ".parquet" else read_tar(path)
        for sample in each(samples, path.name, "clip"):
            file_name, texts = _file_name(path, sample, name), _captions(path, sample, caption)
            target = audio / split / file_name
            if target.is_file() and target.read_bytes() != sample.audio:
                raise DataError(f"{path}: {target} has other sound; name clips by other columns (--name), or --audio")
            if not target.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                with writing(target) as out:
                    out.write(sample.audio)
            clip = audio_clip(target.parent, file_name, source, split, texts, None)
            if clip.id in clips:
                new = [text for text in texts if text not in clips[clip.id].captions]
                clip = replace(clip, captions=[*clips[clip.id].captions, *new])
            clips[clip.id] = clip
    return [replace(clip, seconds=readable_seconds(clip.path)) for clip in clips.values()]


def _file_name(path: Path, sample: Sample, columns: Sequence[str]) -> str:
    if missing := [column for column in columns if column not in sample.fields]:
        raise DataError(f"{path}: no column {missing[0]}, only {', '.join(sample.fields)}")
    stem = "_".join(str(sample.fields[column]) for column in columns)
    return (stem + PurePath(sample.name).suffix if columns else sample.name).replace("/", "_")


def _captions(path: Path, sample: Sample, column: str | None) -> list[str]:
    column = column or next((one for one in CAPTIONS if one in sample.fields), "")
    if column not in sample.fields:
        raise DataError(f"{path}: no column with captions; name one of {', '.join(sample.fields)} by --caption")
    value = sample.fields[column]
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{path}, {sample.name}: the caption is {text!r}, not a text; name another column")
        check_caption(text, f"{path}, {sample.name}")
    return texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `hub` to its parser."""
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="PATH", help="parquet files or WebDataset tars, or folders of them")
    add("--audio", type=Path, required=True, help="folder for the unpacked audio")
    add("--caption", metavar="COLUMN", help="column with the captions (default: a usual name)")
    add("--name", metavar="COLUMN", nargs="+", default=[], help="columns that name a clip (default: the file's name)")
    add("--source", help="source of the clips, for their ids (default: the name of the first folder)")
    add_manifest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `hub`: unpack parquet files or tars, and write a manifest; return the exit status."""
    files: list[Path] = []
    for given in arguments.paths:
        files += sorted(path for path in given.rglob("*") if path.is_file()) if given.is_dir() else [given]
    files = [path for path in files if path.suffix in (".parquet", ".tar")]
    if not files:
        raise DataError(f"{arguments.paths[0]}: no .parquet or .tar file; download the data set first")
    first = arguments.paths[0].absolute()
    source = check_source(arguments.source or (first.name if first.is_dir() else first.parent.name))
    clips = unpack(files, arguments.audio, source, arguments.caption, arguments.name)
    if not clips:
        raise DataError(f"{arguments.paths[0]}: no audio in {counted(len(files), 'file')}; give other files")
    write_manifest(arguments.out, clips)
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')} of {counted(len(files), 'file')}")
    return 0
