"""Check and correct MP3 files.

Refuses cut and joined MP3 files. Adds the number of frames to files that do not state it.
"""

import mmap
from pathlib import Path
from typing import BinaryIO, NamedTuple

from data_tools.audio.parts import (
    FileWithNewHeader,
    after_tags,
    is_container,
    joined_files_error,
    mapped,
    more_sound_error,
    truncated_error,
)


class _Frame(NamedTuple):
    """Header of an MPEG audio frame. kind: Bits that are equal in all frames of a file. size: Bytes of the frame."""

    kind: bytes
    size: int
    layer: int
    is_mpeg1: bool
    is_mono: bool


_KBITS = {  # by MPEG version 1 or 2 (2.5 equals 2) and layer
    (1, 1): tuple(range(32, 449, 32)),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (*range(8, 64, 8), *range(64, 161, 16)),
}
_KBITS[2, 3] = _KBITS[2, 2]


def parse_frame_header(header: bytes) -> _Frame | None:
    """Parse the header of an MPEG frame, its first 4 bytes; None for other bytes.

    Source: ISO 11172-3, 13818-3; MPEG 2.5 as in libmpg123.
    """
    if len(header) < 4 or header[0] != 0xFF or header[1] < 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    bits, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or layer == 4 or bits in (0, 15) or rate == 3:
        return None
    hertz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    kbits = _KBITS[1 if version == 3 else 2, layer][bits - 1]
    padding = header[2] >> 1 & 1
    if layer == 1:
        size = (12_000 * kbits // hertz + padding) * 4
    else:
        size = (72_000 if layer == 3 and version != 3 else 144_000) * kbits // hertz + padding
    return _Frame(bytes([header[1] & 0xFE, header[2] & 0x0C]), size, layer, version == 3, header[3] >> 6 == 3)


def playable_mpeg(
    path: Path, file: BinaryIO, start: int, end: int | None = None, quick: bool = False
) -> Path | FileWithNewHeader | None:
    """Return an MPEG file, repaired if needed; None if only ffmpeg reads it. quick: Trust the frame count of a tag.

    Args:
        start: Offset in the file at which the MPEG frames begin.
        end: Offset at which the frames end; None: the end of the file. Only for MPEG frames in a WAV file.
        quick: Frames are counted nevertheless if the file has no Xing tag, or if this tag states more bytes than the
            file has.
    Returns: the path if the file needs no correction; or the corrected file, which the caller closes; or None if
        ffmpeg has to decode the file (layers I and II).
    Raises AudioError for a file whose end is missing, or that consists of several files in sequence.
    """
    with mapped(file) as content:
        first = _first_of_two(content, start)
        if not first:
            return path  # not MPEG, or nothing to compare
        if quick and first.layer == 3 and _states_its_bytes(content, start, first):
            return path
        frames, is_complete = _count_frames(path, content, start, min(end or len(content), len(content)), first)
        stated, is_xing = _stated_frames(content[start : start + first.size], first)
        follows = start if stated is None else start + first.size
        beginning = bytes(content[follows : follows + 4])
    if stated is not None:
        frames -= 1
        if frames < stated:
            raise truncated_error(path, f"the header states {stated} frames, but only {frames} are present")
        if frames > stated + 1:  # encoders disagree by one
            raise more_sound_error(path, f"{stated:,} frames")
    elif not is_complete:
        raise truncated_error(path, f"the last MPEG frame, number {frames + 1}, is not complete")
    if first.layer != 3:
        return None  # libmpg123 guesses the length from the file's size, and these layers have no tag to state it
    if is_xing:
        return FileWithNewHeader(path, b"", start, end) if end else path
    return FileWithNewHeader(path, _xing_frame(beginning, frames), follows, end)


def _count_frames(path: Path, content: mmap.mmap, at: int, end: int, first: _Frame) -> tuple[int, bool]:
    """Return the number of MPEG frames, and whether the last one is complete; tags between them are skipped.

    Raises AudioError if other audio follows: MPEG frames of another kind than `first`, or another audio container.
    """
    count = 0
    while at < end:
        frame = parse_frame_header(content[at : at + 4])
        if frame and frame.kind == first.kind:
            if at + frame.size > end:
                return count, False
            count += 1
            at += frame.size
            continue
        at = next_sound(content, after_tags(content, at), end)
        following = _first_of_two(content, at)
        if at < end and not (following and following.kind == first.kind):
            raise joined_files_error(path, "audio")
    return count, True


def next_sound(content: mmap.mmap, at: int, end: int) -> int:
    """Find the next audio container or pair of MPEG frames in a file; return its offset.

    A container is found only at offset `at`, or after zero bytes that begin there. A pair of frames is found anywhere
    from `at` to `end`. If nothing is found, `end` is returned.
    The second frame must follow the first one directly, and be of the same kind. By chance, a tag may contain the bytes
    of one frame header, but it contains those of two headers only once in a billion.
    """
    start = content[at : min(end, at + 2**20)].lstrip(b"\0")
    if is_container(start[:8]):
        return min(end, at + 2**20) - len(start)
    while (at := content.find(b"\xff", at, end)) >= 0:
        if _first_of_two(content, at):
            return at
        at += 1
    return end


def _first_of_two(content: mmap.mmap, at: int) -> _Frame | None:
    """Return the MPEG frame at offset `at` if another frame of the same kind follows it; otherwise None."""
    first = parse_frame_header(content[at : at + 4])
    following = first and parse_frame_header(content[at + first.size : at + first.size + 4])
    return first if first and following and following.kind == first.kind else None


def _stated_frames(content: bytes, first: _Frame) -> tuple[int | None, bool]:
    """Return the number of frames that an MP3 file's tag states, and whether the tag is a Xing tag.

    The tag is in the first frame, which it does not count. A file without a Xing tag may have Fraunhofer's VBRI tag.
    Without any tag, the function returns None as the number.

    content: Bytes of the first frame. first: Properties of this frame.
    """
    tag = content[4 + _side_size(first) :]
    if tag[:4] in (b"Xing", b"Info") and len(tag) >= 12 and tag[7] & 1:
        return int.from_bytes(tag[8:12], "big"), True
    if content[36:40] == b"VBRI" and len(content) >= 54:
        return int.from_bytes(content[50:54], "big"), False
    return None, False


def _states_its_bytes(content: mmap.mmap, start: int, first: _Frame) -> bool:
    """Return whether the Xing tag of a file states a number of frames, and no more bytes than the file has."""
    tag = start + 4 + _side_size(first)
    head = content[tag : tag + 16]
    states_both = head[:4] in (b"Xing", b"Info") and len(head) == 16 and head[7] & 3 == 3
    return states_both and start + int.from_bytes(head[12:16], "big") <= len(content)


def _side_size(frame: _Frame) -> int:
    """Return the number of bytes between the header of an MPEG frame and its Xing tag (the side information)."""
    if frame.is_mpeg1:
        return 17 if frame.is_mono else 32
    return 9 if frame.is_mono else 17


def _xing_frame(header: bytes, frames: int) -> bytes:
    """Make a first MPEG frame that states the number of frames: otherwise libmpg123 guesses it from the file's size.

    header: Header of the frame that follows. The bit rate is raised until the tag fits into the frame.
    """
    header = bytes([header[0], header[1] | 1, 0x90 | header[2] & 0x0C, header[3]])
    frame = parse_frame_header(header)
    assert frame
    tag = b"Xing" + (1).to_bytes(4, "big") + frames.to_bytes(4, "big")
    return (header + bytes(_side_size(frame)) + tag).ljust(frame.size, b"\0")
