"""Write shards of clips.

Writes the clips of a manifest with their audio to parquet files or WebDataset tars. All fields of the clips and the
bytes of their audio files are kept, so that the verb `hub` reads the same clips from the shards.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from data_tools.audio.members import on_disk, size_of
from data_tools.audio.read import require_file
from data_tools.cli import progress
from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.files import remove_parts, replacing, write_text
from data_tools.locks import lock
from data_tools.manifest import Clip

Form = Literal["parquet", "webdataset"]
SUFFIXES: dict[Form, str] = {"parquet": ".parquet", "webdataset": ".tar"}
SETTINGS = "export.json"
GROUP_BYTES = 64 << 20  # of audio in a group of rows of a parquet file, which some readers read as a whole


class Shard(NamedTuple):
    """A file to write. rows: Numbers of its clips in the manifest, from 0."""

    name: str
    rows: list[int]


def planned_shards(clips: Sequence[Clip], form: Form, size: int) -> list[Shard]:
    """Return the shards to write: each has clips of one split, with about `size` bytes of audio.

    A shard has a name such as train-00000-of-00012.parquet. Raises OSError for a missing audio file.
    """
    by_split: dict[str, list[list[int]]] = {}
    room: dict[str, int] = {}
    for row, clip in enumerate(clips):
        shards, count = by_split.setdefault(clip.split, []), size_of(clip.path)
        if room.get(clip.split, -1) < count:
            shards.append([])
            room[clip.split] = max(size, count)
        shards[-1].append(row)
        room[clip.split] -= count
    return [
        Shard(f"{split}-{number:05}-of-{len(shards):05}{SUFFIXES[form]}", rows)
        for split, shards in by_split.items()
        for number, rows in enumerate(shards)
    ]


def export_clips(clips: Sequence[Clip], out: Path, form: Form, size: int, manifest_sha256: str) -> list[Path]:
    """Write clips with their audio to shards in a folder; return the paths of the shards.

    A shard gets its name when it is complete. So the same call after a kill writes only the missing shards.

    Args:
        size: Bytes of audio in a shard. manifest_sha256: Identifies the export; shards of another export are refused.
    Raises DataError for a folder with files of another export, and without pyarrow for parquet files; AudioError for a
    missing audio file.
    """
    for clip in clips:
        require_file(clip.path)
    shards = planned_shards(clips, form, size)
    out.mkdir(parents=True, exist_ok=True)
    with lock(out / "export.lock", f"{out}: another process is writing to this folder; wait for its end or stop it"):
        plan = sha256(json.dumps([[size_of(clip.path) for clip in clips], size]).encode()).hexdigest()
        _require_same_settings(out, {"form": form, "plan": plan, "manifest_sha256": manifest_sha256})
        remove_parts(out)
        with progress("export", len(clips), "clip") as bar:
            for shard in shards:
                if not (path := out / shard.name).exists():
                    with replacing(path) as temporary:
                        (_write_parquet if form == "parquet" else _write_tar)(temporary, clips, shard.rows)
                bar.advance(len(shard.rows))
    return [out / shard.name for shard in shards]


def _require_same_settings(out: Path, settings: dict[str, Any]) -> None:
    """Record the settings in the folder. Raises DataError if it contains shards with other settings, or other files."""
    note = out / SETTINGS
    if note.exists():
        if parse_json(note.read_bytes(), str(note)) != settings:
            raise DataError(
                f"{out} contains files of another export (manifest, audio, format or shard size); use another --out"
            )
    elif others := sorted(path.name for path in out.iterdir() if path.name != "export.lock"):
        raise DataError(f"{out} is not empty (it has {others[0]}); use another --out")
    write_text(note, json.dumps(settings) + "\n")


def _clips_with_audio(clips: Sequence[Clip], rows: Sequence[int]) -> Iterator[tuple[int, Clip, bytes]]:
    """Yield (row, clip, bytes of its audio file) for each clip of a shard. rows: The clips' rows in the manifest."""
    for row in rows:
        with on_disk(clips[row].path) as file:
            yield row, clips[row], file.read_bytes()


def _shard_fields(row: int, clip: Clip) -> dict[str, Any]:
    """Return the fields of a clip in a shard: its row in the manifest, from 0, and all its fields except the path."""
    return {"row": row, **clip.model_dump(exclude={"path"})}


def _write_tar(path: Path, clips: Sequence[Clip], rows: Sequence[int]) -> None:
    """Write a WebDataset tar: <row>.json and <row>.<suffix> for each clip. Equal clips result in equal bytes."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for row, clip, content in _clips_with_audio(clips, rows):
            fields = json.dumps(_shard_fields(row, clip), ensure_ascii=False).encode()
            for suffix, data in ((".json", fields), (PurePath(clip.path).suffix.lower() or ".bin", content)):
                entry = tarfile.TarInfo(f"{row:09}{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def _write_parquet(path: Path, clips: Sequence[Clip], rows: Sequence[int]) -> None:
    """Write a parquet file with a column {bytes, path} of audio, which `datasets` reads as its type Audio.

    The audio is neither compressed again nor stored in parquet's table of repeated values (dictionary), so that each
    audio file can be read alone.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise DataError("parquet files need pyarrow; install it: pip install pyarrow") from None
    text, sound = pyarrow.string(), pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    types = {"row": pyarrow.int64(), "seconds": pyarrow.float64(), "captions": pyarrow.list_(text)}
    names = ["audio", "row", *(name for name in Clip.model_fields if name != "path")]
    schema = pyarrow.schema([(name, sound if name == "audio" else types.get(name, text)) for name in names])
    features = {"info": {"features": {"audio": {"_type": "Audio"}}}}
    schema = schema.with_metadata({"huggingface": json.dumps(features)})
    compression = {name: "snappy" for name in names if name != "audio"}
    with pyarrow.parquet.ParquetWriter(
        path, schema, use_dictionary=False, compression=compression, write_statistics=False
    ) as writer:
        for group in _row_groups(_clips_with_audio(clips, rows)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))


def _row_groups(sounds: Iterator[tuple[int, Clip, bytes]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a parquet file in lists of about GROUP_BYTES. sounds: Result of _clips_with_audio."""
    group: list[dict[str, Any]] = []
    size = 0
    for row, clip, content in sounds:
        group.append({"audio": {"bytes": content, "path": PurePath(clip.path).name}, **_shard_fields(row, clip)})
        size += len(content)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
