"""Small data sets in tar, zip and parquet files, as the hub has them."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import soundfile

FORMATS = (("wav", "WAV"), ("flac", "FLAC"), ("mp3", "MP3"), ("ogg", "OGG"))


@cache
def sound(number: int, seconds: float = 0.5) -> tuple[str, bytes]:
    """Return the suffix and the bytes of an audio file of noise, in one of four formats. Ogg has a random number."""
    suffix, form = FORMATS[number % 4]
    wave = 0.3 * np.random.default_rng(number).uniform(-1, 1, round(seconds * 16_000))
    file = io.BytesIO()
    soundfile.write(file, wave, 16_000, format=form)
    return suffix, file.getvalue()


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def webdataset(numbers: Sequence[int]) -> dict[str, bytes]:
    """Return the files of a tar with a sound and a .json file for each number."""
    files = {}
    for number in numbers:
        suffix, content = sound(number)
        files[f"clip{number}.{suffix}"] = content
        files[f"clip{number}.json"] = json.dumps({"caption": f"noise {number}"}).encode()
    return files


def write_zip(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def split_zip(path: Path, size: int) -> list[Path]:
    """Cut a zip file into parts of `size` bytes, as `zip -s` does: x.z01, x.z02 .. x.zip. Return the parts."""
    whole = bytearray(path.read_bytes())
    end = whole.rindex(b"PK\x05\x06")
    entries, start = unpack_from("<H", whole, end + 10)[0], unpack_from("<I", whole, end + 16)[0]
    at = start
    for _ in range(entries):
        offset = unpack_from("<I", whole, at + 42)[0]
        pack_into("<H", whole, at + 34, offset // size)
        pack_into("<I", whole, at + 42, offset % size)
        at += 46 + sum(unpack_from("<3H", whole, at + 28))
    last = (len(whole) - 1) // size
    pack_into("<2H", whole, end + 4, last, start // size)
    pack_into("<I", whole, end + 16, start % size)
    parts = [path.with_suffix(f".z{number + 1:02}") for number in range(last)] + [path]
    for number, part in enumerate(parts):
        part.write_bytes(whole[number * size : (number + 1) * size])
    return parts


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], **settings: Any) -> None:
    """Write a parquet file with a column {bytes, path} of audio."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, **settings)


def row(number: int, **fields: Any) -> dict[str, Any]:
    """Return a row of a parquet file: a sound and its fields."""
    suffix, content = sound(number)
    return {"audio": {"bytes": content, "path": f"clip{number}.{suffix}"}, **fields}
