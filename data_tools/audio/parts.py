"""Helpers for all audio formats.

Creates error messages, skips tags, and reads files whose header was replaced by a repaired one.
"""

import io
import mmap
import os
from pathlib import Path
from typing import BinaryIO

from data_tools.errors import DataError

MAGICS = (b"RIFF", b"RIFX", b"RF64", b"BW64", b"FORM", b"riff", b"caff", b".snd", b"OggS", b"fLaC")
DECODE_ALL = "export the file again, or convert all of it to FLAC with another program"
_FOREIGN_MAGICS = (b"dns.", b"\x30\x26\xb2\x75", b"\x1a\x45\xdf\xa3", b"wvpk", b"MAC ")  # AU, WMA, WebM, WavPack, APE


class AudioError(DataError):
    """An audio file that cannot be used."""


class FileWithNewHeader(io.RawIOBase):
    """A file object that reads a file with a replaced beginning.

    Args:
        head: The new beginning.
        skipped: Number of bytes at the beginning of the file that `head` replaces.
        end: Offset in the file at which reading ends; None: the end of the file.
    """

    def __init__(self, path: Path, head: bytes, skipped: int, end: int | None = None) -> None:
        """Open `path`, to read it up to offset `end` (None: all), with `head` in place of its first `skipped` bytes."""
        self._file = path.open("rb", buffering=0)
        self._head, self._skipped, self._at = head, skipped, 0
        self._size = len(head) - skipped + (end or os.fstat(self._file.fileno()).st_size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset of the corrected file; return the new position."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes of the corrected file into a buffer; return their number."""
        part = self._head[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        count = len(part)
        wanted = min(len(buffer), max(0, self._size - self._at))
        if count < wanted:
            self._file.seek(self._at + count - len(self._head) + self._skipped)
            count += self._file.readinto(memoryview(buffer)[count:wanted]) or 0
        self._at += count
        return count

    def close(self) -> None:
        """Close this file object and the original file."""
        self._file.close()
        super().close()


def read_at(file: BinaryIO | mmap.mmap, at: int, count: int) -> bytes:
    """Read `count` bytes at an offset of a file."""
    file.seek(at)
    return file.read(count)


def mapped(file: BinaryIO) -> mmap.mmap:
    """Return the content of an open file as a read-only memory map."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def truncated_error(path: Path, problem: str) -> AudioError:
    """Return the error for a file that ends too early. problem: Evidence that the end is missing, for the message."""
    return AudioError(f"{path}: truncated, {problem}; copy or download the file again")


def more_sound_error(path: Path, stated: str) -> AudioError:
    """Return the error for a file with more sound than its header states."""
    return AudioError(f"{path}: has more sound than its header states ({stated}); {DECODE_ALL}")


def joined_files_error(path: Path, kind: str) -> AudioError:
    """Return the error for a file that consists of two audio files. kind: Format of the second one."""
    return AudioError(
        f"{path}: contains a second {kind} file after the first, which would not be read; split this file into "
        "two, or decode both parts into one FLAC file"
    )


def after_tags(file: BinaryIO | mmap.mmap, at: int) -> int:
    """Skip the tags (ID3, APE, Lyrics3) at an offset, by their stated sizes; return the offset after them.

    Sources: id3.org (ID3v1, ID3v2, Lyrics3); wiki.hydrogenaud.io/index.php?title=APEv2_specification.
    """
    while size := _tag_size(file, at):
        at += size
    return at


def _tag_size(file: BinaryIO | mmap.mmap, at: int) -> int:
    """Return the size in bytes of the tag (ID3, APE, Lyrics3) at an offset; 0 without a tag."""
    head = read_at(file, at, 32)
    if head[:8] == b"APETAGEX" and len(head) == 32:
        return 32 + int.from_bytes(head[12:16], "little")
    if head[:4] == b"TAG+" and read_at(file, at + 227, 3) == b"TAG":
        return 227
    if head[:3] == b"TAG":
        return 128
    if head[:11] == b"LYRICSBEGIN":
        lyrics = read_at(file, at, 2**20)
        return 9 + max(lyrics.find(b"LYRICS200"), lyrics.find(b"LYRICSEND"))
    if head[:3] == b"ID3" and len(head) >= 10:
        size = sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
        return 10 + size + (10 if head[5] & 0x10 else 0)
    return 0


def is_container(head: bytes) -> bool:
    """Return whether `head`, the first bytes of a file, begin an audio container.

    An MP4 file begins with a size whose first bytes are zeros; `head` must not contain these zeros.
    """
    return head[:4] in MAGICS or head[:4] in _FOREIGN_MAGICS or head[1:5] == b"ftyp"


def is_chunk_name(name: bytes | None) -> bool:
    """Return whether the bytes `name` can be the name of a chunk in a file: four printable ASCII characters."""
    return name is not None and len(name) == 4 and all(0x20 <= byte < 0x7F for byte in name)
