"""Members of tar, zip and parquet files.

A member is a file inside of another one. It is read in place, without unpacking. Its path states where its bytes are.

    shards/train-000.tar/1536+98304/dog.flac                       98,304 bytes, from byte 1,536 on.
    part.parquet/4096+70000+snappy+131072+200+97000/dog.flac       70,000 compressed bytes, from byte 4,096 on.
                                                                   Decompressed, they are 131,072 bytes. The member
                                                                   is 97,000 of these, from byte 200 on.

A zip file in parts (name.z01, name.z02 .. name.zip) is named by its last part; its bytes are counted from name.z01 on.
"""

import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

from data_tools.audio.parts import AudioError, read_at
from data_tools.documents.json_text import quick_sha256
from data_tools.errors import located
from data_tools.files import short_name

CONTAINERS = (".tar", ".zip", ".parquet")
LONGEST_NAME = 100  # bytes of a member's name in that of its temporary copy
_PATH = re.compile(
    r"(?P<container>.+(?i:\.tar|\.zip|\.parquet))/(?P<start>\d{1,18})\+(?P<length>\d{1,18})"
    r"(?:\+(?P<codec>[a-z0-9]+)\+(?P<total>\d{1,18})\+(?P<skip>\d{1,18})\+(?P<size>\d{1,18}))?/(?P<name>[^/]+)",
    re.DOTALL,
)


class Packed(NamedTuple):
    """Compression of the bytes that contain a member (a file inside of a tar, zip or parquet file).

    Attributes:
        codec: Name of the compression in pyarrow, or "deflate".
        total: Number of bytes after decompression.
        skip: Offset of the member within the decompressed bytes.
        size: Number of bytes of the member.
    """

    codec: str
    total: int
    skip: int
    size: int


class Member(NamedTuple):
    """A file inside of another file.

    Attributes:
        container: The tar, zip or parquet file.
        name: Name of the member in the container.
        start: Offset in the container of the bytes that contain the member.
        length: Number of these bytes.
        packed: Compression of these bytes; None if they are not compressed.
    """

    container: Path
    name: str
    start: int
    length: int
    packed: Packed | None = None

    @property
    def path(self) -> str:
        """The path that a manifest states for this file inside a tar, zip or parquet file."""
        numbers = [self.start, self.length, *(self.packed or ())]
        return f"{self.container}/{'+'.join(map(str, numbers))}/{PurePath(self.name).name}"

    @property
    def size(self) -> int:
        """Size in bytes of this file inside a tar, zip or parquet file."""
        return self.packed.size if self.packed else self.length

    def read(self) -> bytes:
        """Return the decompressed bytes of this file. Raises AudioError if its container is missing, cut or damaged."""
        if not self.packed:
            return read_span(self.container, self.start, self.length)
        read = _decompressed_span if self.packed.size < self.packed.total / 4 else _decompressed_span.__wrapped__
        try:
            whole = read(self.container, self.start, self.length, self.packed.codec, self.packed.total)
        except AudioError:
            raise
        except (OSError, ValueError, zlib.error) as error:
            raise AudioError(f"{self.path}: damaged ({error}); copy or download {self.container} again") from None
        if len(whole) != self.packed.total:
            raise AudioError(f"{self.path}: damaged, or cut; copy or download {self.container} again")
        return whole[self.packed.skip : self.packed.skip + self.packed.size]


def member_of(path: Path | str) -> Member | None:
    """Parse the path of a file inside a tar, zip or parquet file; return its Member, or None for any other path."""
    text = str(path)
    found = _PATH.fullmatch(text) if "+" in text else None
    if not found:
        return None
    packed = None
    if found["codec"]:
        packed = Packed(found["codec"], int(found["total"]), int(found["skip"]), int(found["size"]))
    return Member(Path(found["container"]), found["name"], int(found["start"]), int(found["length"]), packed)


def container_of(path: Path | str) -> Path:
    """Return the file on disk that contains the bytes of `path`: for a member, its tar, zip or parquet file."""
    member = member_of(path)
    return member.container if member else Path(path)


def size_of(path: Path | str) -> int:
    """Return the size in bytes of a file, or of a member of a container. Raises OSError for a missing file."""
    member = member_of(path)
    return member.size if member and member.container.stat() else Path(path).stat().st_size


@contextmanager
def on_disk(path: Path | str) -> Iterator[Path]:
    """Yield the path of a readable file: `path` itself, or a temporary copy of a tar, zip or parquet member.

    The copy has the suffix of the member. If the `with` block raises an AudioError that names the copy, the error is
    changed to name the member. Raises AudioError if a member cannot be read.
    """
    member = member_of(path)
    if member is None:
        yield Path(path)
        return
    content = member.read()
    name = PurePath(short_name(member.name, LONGEST_NAME))
    with tempfile.NamedTemporaryFile(prefix=f"{name.stem}.", suffix=name.suffix) as copy:
        try:
            copy.write(content)
            copy.flush()
        except OSError as error:
            raise located(error, copy.name) from error
        try:
            yield Path(copy.name)
        except AudioError as error:
            raise AudioError(str(error).replace(copy.name, str(path))) from error


def quick_key(path: Path | str) -> str:
    """Return a checksum of the size and both ends of a file or member, see quick_sha256 in json_text.py.

    Raises OSError, or AudioError for a member.
    """
    with on_disk(path) as file:
        return quick_sha256(file)


def parts_of(container: Path) -> list[Path]:
    """Return the files of a container in order: all parts of a zip file in several parts, otherwise only the file."""
    first = container.with_suffix(".z01")
    if container.suffix.lower() != ".zip" or not first.exists():
        return [container]
    parts: list[Path] = []
    while (part := container.with_suffix(f".z{len(parts) + 1:02}")).exists():
        parts.append(part)
    return [*parts, container]


def read_span(container: Path, start: int, length: int) -> bytes:
    """Return `length` bytes of a container from byte `start` on. The parts of a zip file count as one long file.

    Raises AudioError if the container is missing or too short; OSError if the system cannot read it.
    """
    found = []
    try:
        for part in parts_of(container):
            size = part.stat().st_size
            if length and start < size:
                with part.open("rb") as file:
                    found.append(read_at(file, start, min(length, size - start)))
                length -= len(found[-1])
                start += len(found[-1])
            start -= size
    except FileNotFoundError:
        raise AudioError(
            f"{container}: no such file; copy it here again, or correct its path in the manifest"
        ) from None
    if length:
        raise AudioError(f"{container}: ends too early, {length} bytes are missing; copy or download it again")
    return b"".join(found)


@lru_cache(maxsize=2)
def _decompressed_span(container: Path, start: int, length: int, codec: str, total: int) -> bytes:
    """Read and decompress bytes of a container; cache two results. codec: Compression. total: Decompressed size."""
    return decompressed(read_span(container, start, length), codec, total)


def decompressed(content: bytes, codec: str, total: int) -> bytes:
    """Decompress `content`; return the `total` resulting bytes. codec: "deflate", or a name in pyarrow.

    Snappy data begins with the number of decompressed bytes; `content` must not contain this number. Raises OSError,
    ValueError or zlib.error for damaged bytes, and ModuleNotFoundError without pyarrow.
    """
    if codec == "deflate":
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, total + 1)
    import pyarrow

    data = _varint(total) + content if codec == "snappy" else content
    return bytes(pyarrow.decompress(data, total, codec, asbytes=True))


def _varint(number: int) -> bytes:
    """Encode a number in the format of snappy's length: seven bits per byte, the lowest bits first."""
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])
