"""Unpack data sets of the Hugging Face hub.

Parquet files with embedded audio, and WebDataset tars, become audio files with a manifest. Columns of public data sets,
by their cards: mteb/Clotho and CLAPv2 (audio, text, index), OpenSound/AudioCaps (audio, caption, youtube_id,
start_time). Other archives are unpacked by their own programs (`7z x`, `unzip`).
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.cli import Manifest, counted, each
from data_tools.errors import KitError
from data_tools.files import remove_parts, writing
from data_tools.manifest import SPLITS, Clip, Split, audio_clip, check_caption, write_manifest
from data_tools.names import check_source

AUDIO = ("audio", "wav", "flac", "mp3")  # usual names of the column with audio
CAPTIONS = ("captions", "caption", "text", "txt", "raw_text")
_SPLITS: dict[str, Split] = {
    "dev": "validation", "valid": "validation", "eval": "evaluation", **{one: one for one in SPLITS}
}  # fmt: skip

Sample = tuple[str, bytes, dict[str, Any]]  # name and bytes of an audio file, and its other columns


def read_parquet(path: Path) -> Iterator[Sample]:
    """Yield the samples of a parquet file. Rows without audio are skipped."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise KitError(f"{path}: needs the package pyarrow; install lbar-kit with the extra parquet") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(64) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                audio = _field(path, row, AUDIO)
                if isinstance(audio, bytes):
                    audio = {"bytes": audio, "path": None}
                if audio and not (isinstance(audio, dict) and audio.get("bytes")):
                    raise KitError(f"{path}: row {number} has samples, or only a path, not a file; use lbar data table")
                if audio:
                    yield PurePath(audio.get("path") or f"{path.stem}_{number:06}.wav").name, audio["bytes"], row
    except pyarrow.ArrowException as error:
        raise KitError(f"{path}: cannot be read as parquet ({error}); download it again") from None


def read_tar(path: Path) -> Iterator[Sample]:
    """Yield the samples of a WebDataset tar: neighbouring files of one name up to the first dot."""
    try:
        with tarfile.open(path) as tar:
            files = ((PurePath(entry.name), tar.extractfile(entry)) for entry in tar if entry.isfile())
            for _, group in groupby(files, lambda file: (file[0].parent, file[0].name.split(".")[0])):
                name, content, fields = "", b"", dict[str, Any]()
                for inner, file in group:
                    data = file.read() if file else b""
                    if inner.name.lower().endswith(AUDIO_SUFFIXES):
                        name, content = inner.name, data
                    elif inner.suffix == ".json":
                        fields |= json.loads(data)
                    elif inner.suffix == ".txt":
                        fields["txt"] = data.decode().strip()
                if name:
                    yield name, content, fields
    except (tarfile.TarError, EOFError, ValueError, TypeError) as error:
        raise KitError(f"{path}: cannot be read as a tar of samples ({error}); download it again") from None


def split_of(path: Path) -> Split:
    """Return the split in a file's or folder's name, such as test-00000-of-00010.parquet; else "train"."""
    words = f"{path.stem}-{path.parent.name}".lower().replace("_", "-").split("-")
    return next((_SPLITS[word] for word in words if word in _SPLITS), "train")


def unpack(files: Sequence[Path], audio: Path, source: str, caption: str | None, name: Sequence[str]) -> list[Clip]:
    """Unpack the audio of shards, and return its clips; rows of one name become one clip with all captions.

    Args:
        files: Parquet or tar files.
        audio: Folder for the audio files; those that exist already are kept, if they have the same bytes.
        source: Source of the clips, for their ids.
        caption: Column with the captions. None: a usual name.
        name: Columns that name a clip, joined by "_". Empty: the audio file's own name.
    """
    captions: dict[tuple[Split, str], dict[str, None]] = {}
    remove_parts(audio)  # of a killed call
    for path in files:
        split, read = split_of(path), read_parquet if path.suffix == ".parquet" else read_tar
        for file_name, content, fields in each(read(path), path.name, "clip"):
            if name:
                stem = "_".join(str(_field(path, fields, [column])) for column in name)
                file_name = (stem + PurePath(file_name).suffix).replace("/", "_")
            value = _field(path, fields, [caption] if caption else CAPTIONS)
            for text in value if isinstance(value, list) else [value]:
                if not isinstance(text, str):
                    raise KitError(f"{path}: the caption is {text!r}, not a text; name another column by --caption")
                check_caption(text, f"{path}, {file_name}")
                captions.setdefault((split, file_name), {})[text] = None
            target = audio / split / file_name
            if not target.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                with writing(target) as out:
                    out.write(content)
            elif target.read_bytes() != content:
                raise KitError(f"{path}: {target} has other sound; name clips by other columns (--name), or --audio")
    return [audio_clip(audio / split, name, source, split, list(texts)) for (split, name), texts in captions.items()]


def _field(path: Path, fields: dict[str, Any], columns: Sequence[str]) -> Any:
    """Return the value of the first of the columns that is there."""
    found = next((column for column in columns if column in fields), None)
    if found is None:
        raise KitError(f"{path}: no column {' or '.join(columns)}, only {', '.join(fields)}")
    return fields[found]


def hub(
    paths: list[Path],
    *,
    audio: Path,
    out: Manifest,
    caption: str | None = None,
    name: list[str] | None = None,
    source: str = "",
) -> None:
    """Unpack a data set of the Hugging Face hub.

    Its files are parquet or WebDataset tars. Writes the audio and a manifest.

    Args:
        paths: Parquet files or WebDataset tars, or folders of them.
        audio: Folder for the unpacked audio.
        caption: Column with the captions; default: a usual name.
        name: A column that names clips; repeat. Default: the file's.
        source: Source of the clips, for their ids; default: the name of AUDIO.
    """
    found = [file for given in paths for file in (sorted(given.rglob("*")) if given.is_dir() else [given])]
    files = [path for path in found if path.suffix in (".parquet", ".tar")]
    if not files:
        raise KitError(f"{paths[0]}: no .parquet or .tar file; download the data set first")
    clips = unpack(files, audio, check_source(source or audio.absolute().name, "--source"), caption, name or [])
    write_manifest(out, clips)
    print(f"wrote {out}: {counted(len(clips), 'clip')} of {counted(len(files), 'file')}")
