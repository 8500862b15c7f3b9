"""Check and correct Ogg files.

Refuses cut and joined Ogg files, and files with missing, swapped or damaged pages. Adds a missing end-of-stream mark.
"""

import logging
import mmap
import zlib
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from data_tools.audio.mpeg import next_sound
from data_tools.audio.parts import (
    AudioError,
    FileWithNewHeader,
    after_tags,
    joined_files_error,
    mapped,
    truncated_error,
)

log = logging.getLogger(__name__)

_START, _END = 2, 4  # flags of a page
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # each byte with its bits in reverse order


class _Page(NamedTuple):
    """Page of an Ogg file."""

    flags: int
    stream: bytes  # serial number
    number: int  # grows by one per page of a stream
    at: int  # offset of its first byte
    size: int
    is_packet_open: bool  # the last packet continues on the next page


def playable_ogg(path: Path, file: BinaryIO, at: int) -> Path | FileWithNewHeader:
    """Return an Ogg file, corrected if necessary, so that libsndfile reads all of its sound. Source: RFC 3533.

    libogg skips a damaged page, and libsndfile fills the gap with other samples, without an error. A file without the
    mark of its end was cut between two pages, or its writer omits the mark, as ffmpeg does in segments. The mark is
    added, because libsndfile refuses some Opus files without it. A warning is logged once per file.

    Args:
        at: Offset of the first page.
    Raises AudioError unless all pages are present, in order and undamaged, and belong to one file.
    """
    with mapped(file) as content:
        last = _last_pages(path, content, at)
        if any(page.is_packet_open for page in last):
            raise truncated_error(path, "the last Ogg packet is not complete")
        open_ends = [page for page in last if not page.flags & _END]
        end = max(page.at + page.size for page in last)
        if not open_ends:
            _refuse_second_file(path, content, end)
            return path
        if end < len(content):
            more = (
                f"the sound has no end mark, but is followed by {len(content) - end:,} bytes that are not an Ogg page"
            )
            raise truncated_error(path, more)
        _warn_of_missing_end(path)
        return FileWithNewHeader(path, _with_end_marks(content, open_ends), len(content))


def _last_pages(path: Path, content: mmap.mmap, at: int) -> list[_Page]:
    """Return the last page of each stream in an Ogg file.

    Raises AudioError for pages out of order, and a stream that starts after sound.
    """
    last: dict[bytes, _Page] = {}
    while page := _page_at(path, content, at):
        if page.flags & _START and not all(other.flags & _START for other in last.values()):
            raise joined_files_error(path, "Ogg")
        before = last.get(page.stream)
        if before and page.number != (before.number + 1) % 2**32:
            raise AudioError(
                f"{path}: pages are missing or swapped (Ogg page {page.number} follows page {before.number}); "
                "copy or download the file again"
            )
        last[page.stream] = page
        at += page.size
    return list(last.values())


def _page_at(path: Path, content: mmap.mmap, at: int) -> _Page | None:
    """Return the Ogg page at an offset; None if no page begins at it. Raises AudioError for a cut or damaged page."""
    header = content[at : at + 27]
    if header[:4] != b"OggS":
        return None
    sizes = content[at + 27 : at + 27 + header[26]] if len(header) == 27 else b""
    size = len(header) + len(sizes) + sum(sizes)
    if len(header) < 27 or len(sizes) < header[26] or at + size > len(content):
        raise truncated_error(path, "the last Ogg page is not complete")
    number = int.from_bytes(header[18:22], "little")
    if _checksum(header[:22] + bytes(4) + content[at + 26 : at + size]) != header[22:26]:
        raise AudioError(f"{path}: damaged, Ogg page {number} has a wrong checksum; copy or download the file again")
    return _Page(header[5], header[14:18], number, at, size, sizes[-1:] == b"\xff")


def _checksum(page: bytes) -> bytes:
    """Return the checksum of an Ogg page: CRC-32 with the highest bit first and the initial value 0.

    It is computed by zlib's CRC-32: bits are reversed, and zlib's inversions before and after are undone.
    """
    crc = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return crc.to_bytes(4, "little").translate(_REVERSED)[::-1]


def _refuse_second_file(path: Path, content: mmap.mmap, at: int) -> None:
    """Raise AudioError if another file follows the last Ogg page."""
    if content.find(b"OggS", at) >= 0:
        raise joined_files_error(path, "Ogg")
    if next_sound(content, after_tags(content, at), len(content)) < len(content):
        raise joined_files_error(path, "audio")


def _with_end_marks(content: mmap.mmap, open_ends: list[_Page]) -> bytes:
    """Return the Ogg file with the end-of-stream mark set on the pages `open_ends`."""
    marked = bytearray(content)
    for page in open_ends:
        marked[page.at + 5] |= _END
        marked[page.at + 22 : page.at + 26] = bytes(4)
        marked[page.at + 22 : page.at + 26] = _checksum(bytes(marked[page.at : page.at + page.size]))
    return bytes(marked)


@cache
def _warn_of_missing_end(path: Path) -> None:
    """Warn that an Ogg file may be cut, because its end is not marked; once per file."""
    cure = (
        "compare the length of the file with that of the original; if they are equal, `ffmpeg -i in.ogg -c copy "
        "out.ogg` adds the mark"
    )
    log.warning("%s: has no end-of-stream mark, so the file may be cut; %s", path, cure)
