"""List archives' members.

Reads tar files, and zip files of one or several parts.

Source of the zip format: PKWARE's APPNOTE.TXT 6.3.10, 4.3.12 to 4.3.16 (central directory, zip64) and 4.5.3.
"""

import logging
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from struct import Struct
from typing import NamedTuple

from data_tools.audio.members import Member, Packed, container_of, parts_of, read_span
from data_tools.audio.parts import AudioError
from data_tools.errors import DataError
from data_tools.files import absolute
from data_tools.tables import joined_names

_END = Struct("<4s4H2IH")  # end of the central directory
_END_64, _LOCATOR_64 = Struct("<4sQ2H2I4Q"), Struct("<4sIQI")
_ENTRY = Struct("<4s6H3I5H2I")  # of the central directory, before the file's name
_LOCAL = Struct("<4s5H3I2H")  # before the file's name, next to its bytes
_EXTRA_64 = 1  # number of the extra field with sizes of 64 bits
STORED, DEFLATED = 0, 8
ARCHIVES = (".tar", ".zip")
LONGEST_COMMENT = 1 << 16
BLOCK = 1 << 20  # bytes that are read together
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")  # first bytes of gzip, bzip2 and xz files

log = logging.getLogger(__name__)


def tar_members(path: Path) -> Iterator[Member]:
    """Yield the files in a tar file, in order, with their whole names.

    Raises AudioError for a damaged or cut tar file, and DataError for a compressed one.
    """
    size, end = path.stat().st_size, 0
    known: dict[str, Member] = {}
    try:
        with tarfile.open(path, "r:", encoding="utf-8") as tar:
            for entry in tar:
                name = _decode_name(entry.name.encode(errors="surrogateescape"))
                end = entry.offset_data + -(-entry.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if end > size:
                    raise AudioError(f"{path}: the file ends within its member {name}; copy or download it again")
                if entry.isreg() and not entry.issparse():
                    known[entry.name] = Member(path, name, entry.offset_data, entry.size)
                    yield known[entry.name]
                elif entry.islnk() and entry.linkname in known:
                    yield known[entry.linkname]._replace(name=name)
                elif not entry.isdir():
                    log.warning("%s: skipped %s, which is not a file with content", path, name)
    except tarfile.TarError as error:
        if read_span(path, 0, min(size, 6)).startswith(COMPRESSED):
            raise DataError(f"{path}: a compressed tar file cannot be read in place; decompress it first") from None
        raise AudioError(f"{path}: damaged ({error}); copy or download it again") from None
    blocks = (read_span(path, at, min(BLOCK, size - at)) for at in range(end, size, BLOCK))
    if size < end + tarfile.BLOCKSIZE or any(map(any, blocks)):
        raise AudioError(
            f"{path}: damaged or cut after {end:,} of {size:,} bytes, or followed by another archive; download it "
            "again, or unpack it and pack all files as one archive"
        )


class _Directory(NamedTuple):
    """Central directory of a zip file. start: Counted over all parts. first: First byte of each part."""

    start: int
    size: int
    entries: int
    first: list[int]


def zip_members(path: Path) -> Iterator[Member]:
    """Yield the files in a zip file, in order, with their folders. path: The zip file, or its last part.

    Raises AudioError for a damaged or cut zip file, and if a part of it is missing; DataError for an encrypted file
    and for a compression other than deflate.
    """
    directory = _find_directory(path)
    data = read_span(path, directory.start, directory.size)
    at = 0
    for _ in range(directory.entries):
        if data[at : at + 4] != b"PK\x01\x02" or at + _ENTRY.size > len(data):
            raise _damaged_error(path)
        entry = _ENTRY.unpack_from(data, at)
        flags, method, packed, size, disk, offset = (entry[index] for index in (3, 4, 8, 9, 13, 16))
        name_end = at + _ENTRY.size + entry[10]
        name = _decode_name(data[at + _ENTRY.size : name_end])
        extra = data[name_end : name_end + entry[11]]
        size, packed, offset, disk = _with_64_bit_values(extra, size, packed, offset, disk)
        at = name_end + entry[11] + entry[12]
        if name.endswith("/"):
            continue
        if flags & 1 or method not in (STORED, DEFLATED):
            problem = "is encrypted" if flags & 1 else f"has the compression method {method}"
            raise DataError(f"{path}: {name} {problem}, which cannot be read in place; unpack the archive")
        if disk >= len(directory.first):
            raise _damaged_error(path)
        begin = directory.first[disk] + offset
        local = read_span(path, begin, _LOCAL.size)
        if local[:4] != b"PK\x03\x04":
            raise _damaged_error(path)
        begin += _LOCAL.size + sum(_LOCAL.unpack(local)[-2:])
        yield Member(path, name, begin, packed, Packed("deflate", size, 0, size) if method == DEFLATED else None)


def _decode_name(stored: bytes) -> str:
    """Decode the name of a file in an archive: UTF-8, which many zip programs write without its flag, or cp437."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        return stored.decode("cp437")


def _with_64_bit_values(extra: bytes, size: int, packed: int, offset: int, disk: int) -> tuple[int, int, int, int]:
    """Return size, packed size, offset and disk of a zip entry, with 64-bit values from its extra field if needed."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == _EXTRA_64:
            values = [size, packed, offset, disk]
            value_at = at + 4
            for index, (value, width) in enumerate(zip(values, (8, 8, 8, 4), strict=True)):
                if value == (0xFFFF if index == 3 else 0xFFFFFFFF):
                    values[index] = int.from_bytes(extra[value_at : value_at + width], "little")
                    value_at += width
            size, packed, offset, disk = values
        at += 4 + length
    return size, packed, offset, disk


def _find_directory(path: Path) -> _Directory:
    """Return the position of a zip file's central directory. Raises AudioError for a damaged or incomplete file."""
    parts = parts_of(path)
    sizes = [part.stat().st_size for part in parts]
    first = [sum(sizes[:index]) for index in range(len(parts))]
    whole = sum(sizes)
    tail_start = max(first[-1], whole - LONGEST_COMMENT - _END.size)
    tail = read_span(path, tail_start, whole - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise _damaged_error(path)
    _, last_disk, disk, _, entries, size, start, _ = _END.unpack_from(tail, at)
    if at >= _LOCATOR_64.size and tail[at - _LOCATOR_64.size :][:4] == b"PK\x06\x07":
        _, end_disk, end, disks = _LOCATOR_64.unpack_from(tail, at - _LOCATOR_64.size)
        last_disk = max(0, disks - 1)
        _require_parts(path, last_disk)
        wide = _END_64.unpack(read_span(path, first[end_disk] + end, _END_64.size))
        disk, entries, size, start = wide[5], wide[7], wide[8], wide[9]
    _require_parts(path, last_disk)
    return _Directory(first[disk] + start, size, entries, first)


def _require_parts(path: Path, last_disk: int) -> None:
    """Raise AudioError if a part of a zip file is missing. last_disk: Number of the last part, from 0."""
    names = [path.with_suffix(f".z{number:02}") for number in range(1, last_disk + 1)]
    if missing := [part.name for part in names if not part.exists()]:
        raise AudioError(f"{path}: its parts {joined_names(missing)} are missing; copy them into its folder")


def _damaged_error(path: Path) -> AudioError:
    """Return the error for a zip file whose structure is damaged."""
    return AudioError(f"{path}: damaged or cut, or not a zip file; copy or download it again")


def archived_files(source: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return a dict from name (without folders) to path of each file in archives whose name ends in `suffixes`.

    Args:
        source: A tar or zip file, or a folder with such files.
    Raises DataError for two files of the same name, and AudioError for a damaged archive.
    """
    archives = sorted(source.iterdir()) if source.is_dir() else [source]
    found: dict[str, str] = {}
    for archive in archives:
        if not archive.name.lower().endswith(ARCHIVES) or not archive.is_file():
            continue
        for member in members(Path(absolute(archive))):
            name = PurePath(member.name).name
            if name.lower().endswith(suffixes) and not name.startswith("."):
                if name in found:
                    raise DataError(f"{archive}: {name} is in {container_of(found[name])} too; remove one of the two")
                found[name] = member.path
    return found


def members(archive: Path) -> Iterator[Member]:
    """Yield the files in a tar or zip file, as tar_members and zip_members do."""
    return tar_members(archive) if archive.suffix.lower() == ".tar" else zip_members(archive)
