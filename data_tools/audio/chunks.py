"""Check and correct WAV, AIFF, CAF and AU files.

RF64 and W64 are kinds of WAV for large files. Refuses files whose end is missing, and files that consist of two files
in sequence. Corrects the header of a streamed file, which was written before the length of the sound was known.
"""

from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from data_tools.audio.mpeg import playable_mpeg
from data_tools.audio.parts import (
    DECODE_ALL,
    MAGICS,
    AudioError,
    FileWithNewHeader,
    after_tags,
    is_chunk_name,
    is_container,
    joined_files_error,
    read_at,
    truncated_error,
)

_MAX_CHUNKS = 1_000  # before the sound data; real files have a few
_MAX_TRAILER = 1_024  # bytes after the sound that belong to no chunk or tag: leftovers of editors
_MAX_EXCESS = 8  # excess bytes in the sizes that stream writers state: the header of the sound chunk
_MPEG_CODES = (0x50, 0x55)  # of MPEG sound in a WAV file: layers I and II, layer III
_NO_LIMIT = 2**62  # sizes of 64 bits from here on are placeholders


class _Layout(NamedTuple):
    """Format of the chunks in an audio file. Each chunk has a name, a size and a body.

    Attributes:
        first: Number of bytes before the first chunk.
        name: Number of bytes of the field with a chunk's name.
        size: Number of bytes of the field with a chunk's size.
        order: Byte order of the sizes.
        counted: Number of bytes that the stated size of a chunk includes besides the body: 0, or those of both fields.
        align: Chunks start at multiples of this number of bytes.
        sound: Name of the chunk that contains the samples.
    """

    first: int
    name: int
    size: int
    order: Literal["little", "big"]
    counted: int
    align: int
    sound: bytes


_RIFF = _Layout(12, 4, 4, "little", 0, 2, b"data")
LAYOUTS = {
    b"RIFF": _RIFF,
    b"RIFX": _RIFF._replace(order="big"),
    b"RF64": _RIFF,
    b"BW64": _RIFF,
    b"FORM": _RIFF._replace(order="big", sound=b"SSND"),
    b"riff": _Layout(40, 16, 8, "little", 24, 8, b"data"),  # Sony Wave64
    b"caff": _Layout(8, 4, 8, "big", 0, 1, b"data"),
}


class _Sound(NamedTuple):
    """Position of the samples in an audio file.

    Attributes:
        start: Offset of the first byte of the samples.
        size: Number of bytes of samples that the header states.
        field: Offset in the file of the header field that states `size`.
        width: Number of bytes of this header field.
        frame: Number of bytes of one sample in all channels; 0 if unknown.
        is_mpeg: Whether the samples in a WAV file are MPEG audio.
    """

    layout: _Layout
    start: int
    size: int
    field: int
    width: int
    frame: int = 0
    is_mpeg: bool = False


def playable_chunks(path: Path, file: BinaryIO, start: int, end: int) -> Path | FileWithNewHeader | None:
    """Return a WAV, W64, AIFF or CAF file, its header corrected for libsndfile if needed; None if ffmpeg must read it.

    start: Offset at which the first header of the file begins, after tags. end: Offset at which the content ends.
    Returns: the path if the header is correct; otherwise a file object with a corrected header, which the caller
    closes; None if ffmpeg has to decode the MPEG audio in a WAV file. Raises AudioError for a file whose end
    is missing, or that consists of several files in sequence.
    """
    head = read_at(file, start, 12)
    layout = LAYOUTS[head[:4]]
    sound = _find_sound(path, file, layout, start)
    if not sound:
        return path
    present = end - sound.start
    container = int.from_bytes(head[4:8], layout.order)
    is_streamed = _is_streamed(file, sound, end)
    if is_streamed and not sound.is_mpeg:
        return _with_stated_size(path, file, sound, present)
    if not is_streamed and sound.size > present and not _is_overstated(sound, present, container, end - start):
        raise truncated_error(path, f"the header states {sound.size} bytes of sound, but only {present} are present")
    if not is_streamed and sound.size < present:
        _refuse_unknown_rest(path, file, sound, end)
    if sound.is_mpeg:
        return playable_mpeg(path, file, sound.start, end if is_streamed else min(end, sound.start + sound.size))
    if head[:4] == b"riff" and sound.size < present:  # libsndfile reads the bytes after the sound as sound
        return FileWithNewHeader(path, b"", 0, sound.start + sound.size)
    if head[:4] == b"BW64":  # the broadcasting union's later name of RF64
        return _with_stated_size(path, file, sound, sound.size, b"RF64")
    return path


def _find_sound(path: Path, file: BinaryIO, layout: _Layout, start: int) -> _Sound | None:
    """Return the position of the samples in a WAV-like file; None if the file ends before them."""
    at, frame, is_mpeg, large = start + layout.first, 0, False, None
    for _ in range(_MAX_CHUNKS):
        name, size, body = _read_chunk_header(file, layout, at)
        if name is None:
            return None
        if name == layout.sound:
            field, width = at + layout.name, layout.size
            if large and size == 0xFFFFFFFF:
                field, width = large, 8
                size = int.from_bytes(read_at(file, large, 8), layout.order)
            return _Sound(layout, body, size, field, width, frame, is_mpeg)
        if name == b"fmt ":
            frame = int.from_bytes(read_at(file, body + 12, 2), layout.order)
            is_mpeg = int.from_bytes(read_at(file, body, 2), layout.order) in _MPEG_CODES
        if name == b"ds64":
            large = body + 8
        at = _next_chunk_offset(file, layout, body, size)
    raise AudioError(f"{path}: no sound data in its first {_MAX_CHUNKS:,} chunks; copy or download the file again")


def _read_chunk_header(file: BinaryIO, layout: _Layout, at: int) -> tuple[bytes | None, int, int]:
    """Read the chunk header at offset `at`; return name (None at the file's end), size, and offset of its body."""
    header = read_at(file, at, layout.name + layout.size)
    size = int.from_bytes(header[layout.name :], layout.order) - layout.counted
    return header[:4] if len(header) == layout.name + layout.size else None, size, at + len(header)


def _next_chunk_offset(file: BinaryIO, layout: _Layout, body: int, size: int) -> int:
    """Return the offset of the chunk after the one with `size` bytes from `body` on, even if the padding is missing."""
    end = body + max(0, size)
    padded = end + -max(0, size) % layout.align
    unpadded_name = read_at(file, end, 4)
    if padded == end + 1 and unpadded_name[:1] != b"\0" and is_chunk_name(unpadded_name):
        return end if not is_chunk_name(read_at(file, padded, 4)) else padded
    return padded


def _is_streamed(file: BinaryIO, sound: _Sound, end: int) -> bool:
    """Return whether a header was written before the length of the sound was known.

    Programs then write a placeholder as the length: ffmpeg 0xffffffff (AIFF: 0), sox 0x7ffff000 (AIFF: 0x7f000008),
    other programs 0x7fffffff or 0x80000000. The size of the header may be added to it.
    end: Offset in the file at which the container ends.
    """
    present = end - sound.start
    if sound.size == 0 and present and sound.layout.align == 2:
        return _after_chunks(file, sound.layout, sound.start, end) < end
    if sound.width == 8:
        stated = sound.size + sound.layout.counted
        return stated >= _NO_LIMIT or stated < 0
    placeholders = (0x7F000000, 0x7FFFFFFF, 0xFFFFFFFF)
    return sound.size > present and any(abs(sound.size - number) <= 0x10000 for number in placeholders)


def _is_overstated(sound: _Sound, present: int, container: int, length: int) -> bool:
    """Return whether the sound is complete, but the header states too many bytes.

    This is true in three cases. First, the stated size of the sound is that of the whole file, with or without the
    file's first 8 bytes. Second, the file ends after a whole sample, and the sound should end at most 8 bytes
    (_MAX_EXCESS) later. Third, the file has the length that its first header states, and the sound should end at most
    1,024 bytes (_MAX_TRAILER) later.

    Args:
        present: Number of bytes from the first byte of the sound to the end of the file.
        container: Number of bytes after the first 8 bytes of the file, as the first header states it.
        length: Actual number of bytes of the file.
    """
    if sound.width != 4:
        return False
    excess = sound.size - present
    counts_header = sound.size in (length, length - 8)
    is_few = sound.frame > 0 and present % sound.frame == 0 and excess <= _MAX_EXCESS
    return counts_header or is_few or (container + 8 == length and excess <= _MAX_TRAILER)


def _with_stated_size(path: Path, file: BinaryIO, sound: _Sound, size: int, magic: bytes = b"") -> FileWithNewHeader:
    """Return the file with a header that states `size` bytes of sound. magic: New first bytes of the file."""
    layout, at, width = sound.layout, sound.field, sound.width
    head = bytearray(read_at(file, 0, sound.start))
    head[at : at + width] = min(size + layout.counted, 256**width - 1).to_bytes(width, layout.order)
    head[: len(magic)] = magic
    return FileWithNewHeader(path, bytes(head), len(head))


def _after_chunks(file: BinaryIO, layout: _Layout, at: int, end: int) -> int:
    """Return the offset after the chunks and tags that start at offset `at`; at most `end`, the end of the file."""
    for _ in range(_MAX_CHUNKS):
        at = after_tags(file, at)
        name, size, body = _read_chunk_header(file, layout, at)
        if name in (*MAGICS, layout.sound) or not is_chunk_name(name) or size < 0 or body + size > end:
            break
        at = min(end, _next_chunk_offset(file, layout, body, size))
    return min(end, at)


def _refuse_unknown_rest(path: Path, file: BinaryIO, sound: _Sound, end: int) -> None:
    """Raise AudioError if anything but chunks, tags and zeros follows the samples in the file."""
    at = _after_chunks(file, sound.layout, _next_chunk_offset(file, sound.layout, sound.start, sound.size), end)
    rest = read_at(file, at, 2**20)
    if is_container(rest.lstrip(b"\0")[:8]):
        raise joined_files_error(path, "audio")
    if len(rest) > _MAX_TRAILER and rest.strip(b"\0"):
        raise AudioError(
            f"{path}: {end - at:,} bytes of unknown content follow the {sound.size:,} bytes of sound that the "
            f"header states; {DECODE_ALL}"
        )


def playable_au(path: Path, file: BinaryIO, start: int, end: int) -> Path | FileWithNewHeader:
    """Return an AU file, with a corrected header if necessary, so that libsndfile reads all of its sound."""
    is_big = read_at(file, start, 4) == b".snd"
    layout = _RIFF._replace(align=1, order="big" if is_big else "little")  # AU has no chunks
    fields = read_at(file, start + 4, 8)
    offset, size = (int.from_bytes(field, layout.order) for field in (fields[:4], fields[4:]))
    sound = _Sound(layout, start + offset, size, start + 8, 4)
    present = end - sound.start
    if size == 0xFFFFFFFF or len(fields) < 8:  # the format's own placeholder, which libsndfile supports
        return path
    if present > 0 and (size == 0 or _is_streamed(file, sound, end)):
        return _with_stated_size(path, file, sound, present)
    if size > present:
        problem = f"the header states {size} bytes of sound, but only {max(0, present)} are present"
        raise truncated_error(path, problem)
    _refuse_unknown_rest(path, file, sound, end)
    return path
