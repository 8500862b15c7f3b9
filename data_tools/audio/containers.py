"""Check and repair audio containers.

Refuses cut and joined audio files, and corrects the headers of streamed files, before libsndfile reads them.
"""

import mmap
import os
from pathlib import Path

from data_tools.audio.chunks import LAYOUTS, playable_au, playable_chunks
from data_tools.audio.flac import playable_flac
from data_tools.audio.mpeg import parse_frame_header, playable_mpeg
from data_tools.audio.ogg import playable_ogg
from data_tools.audio.parts import (
    FileWithNewHeader,
    after_tags,
    is_chunk_name,
    joined_files_error,
    mapped,
    read_at,
    truncated_error,
)

_ASF_START = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")


def whole_sound(path: Path, quick: bool = False) -> Path | FileWithNewHeader | None:
    """Return an audio file, repaired if needed; None if only ffmpeg reads it. quick: Trust the frame count of MP3 tags.

    libsndfile trusts most headers. Of a cut file, or of several files in sequence, it reads a part without an error.

    Args:
        path: A regular file, in any format.
    Returns: the path if the file needs no correction; otherwise a corrected file object, which the caller closes. The
    correction adds the size to the header of a streamed file, the number of frames to an MP3 file, or the mark of the
    end to an Ogg file.
    Raises AudioError for a file that ends before its sound does, and for one with more sound than its header states.
        That applies to WAV, RF64, W64, AIFF, AU, CAF, MP3, and Ogg (also if pages inside are missing or damaged). FLAC
        files, and formats that only ffmpeg can decode, are not checked here, but when they are decoded.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = after_tags(file, 0)
        magic = read_at(file, start, 8)
        if magic[:4] in LAYOUTS:
            return playable_chunks(path, file, start, end)
        if magic[:4] in (b".snd", b"dns."):
            return playable_au(path, file, start, end)
        if magic[:4] == b"OggS":
            return playable_ogg(path, file, start)
        if parse_frame_header(magic[:4]):
            return playable_mpeg(path, file, start, quick=quick)
        if magic[:4] == b"fLaC":
            return playable_flac(path, file, start)
    return path


def refuse_partial(path: Path) -> None:
    """Raise AudioError for an MP4 or WMA file that is cut, or that consists of two files in sequence.

    ffmpeg decodes only a part of such files, without an error.
    """
    with path.open("rb") as file, mapped(file) as content:
        if content[4:8] == b"ftyp":
            _refuse_partial_mp4(path, content)
        if content[:16] == _ASF_START:
            _refuse_partial_asf(path, content)


def _refuse_partial_mp4(path: Path, content: mmap.mmap) -> None:
    """Raise AudioError for a cut MP4 file, and for two MP4 files in sequence."""
    at, starts = 0, 0
    while at + 8 <= len(content) and is_chunk_name(name := content[at + 4 : at + 8]):
        starts += name == b"ftyp"
        if starts > 1:
            raise joined_files_error(path, "MP4")
        size = int.from_bytes(content[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(content[at + 8 : at + 16], "big")
        if at + size > len(content):
            problem = f"part {name.decode()!r} should have {size} bytes, but only {len(content) - at} are present"
            raise truncated_error(path, problem)
        at += size if size >= 8 else len(content)


def _refuse_partial_asf(path: Path, content: mmap.mmap) -> None:
    """Raise AudioError for a cut WMA file, and for two WMA files in sequence."""
    at = 0
    while at + 24 <= len(content):
        size = int.from_bytes(content[at + 16 : at + 24], "little")
        if at and content[at : at + 16] == _ASF_START:
            raise joined_files_error(path, "WMA")
        if at + size > len(content):
            problem = f"a part of the file should have {size} bytes, but only {len(content) - at} are present"
            raise truncated_error(path, problem)
        at += size if size >= 24 else len(content)
