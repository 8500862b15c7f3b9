"""Facts about audio files.

Look up the quick_sha256, the length and the sample rate of many audio files, and store them in the folder of the banks.
"""

import logging
import os
from collections.abc import Collection, Container, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.audio import Sound, content_key, read_audio, sound_of
from data_tools.cli import each, ranks
from data_tools.errors import AudioError
from data_tools.files import quick_checksum
from data_tools.manifest import Clip
from system.features.contents import FileFacts

COLUMNS = [
    "quick_sha256 text",
    "samples integer",
    "rate integer",
    "is_decoded integer",
    "reason text",
    "sha256 text",
]
OPENED_TOGETHER = 256  # files that all threads open before their facts are stored

log = logging.getLogger(__name__)


class FoundSound(NamedTuple):
    """Facts about an audio file.

    quick_sha256: Checksum of the file's size, and of its first and last bytes. sound: Length and sample rate; None for
    a broken file. is_decoded: Whether all samples have been decoded without an error. reason: Error message for a
    broken file. sha256: sha256 of all bytes if --verify has read them, else None.
    """

    quick_sha256: str = ""
    sound: Sound | None = None
    is_decoded: bool = False
    reason: str = ""
    sha256: str | None = None


def find_sounds(
    clips: Collection[Clip], banks: Path, threads: Executor, whole: Container[str] = (), verify: bool = False
) -> Iterator[tuple[Clip, FoundSound]]:
    """Yield each clip with the checksum, length and sample rate of its audio file.

    Only new and changed files are read; the facts about other files are stored. A file has changed if its size or time
    has changed. Files that cannot be opened are tried again at each call, since ffmpeg may have been installed
    meanwhile. Several processes begin at different clips, so that each file is read by only one process.

    Args:
        whole: Ids of clips whose files are decoded completely now, so that damage is found early.
        verify: Read all bytes again, and warn of a file whose bytes have changed, but not its size and time.
    """
    (number, count), total = ranks(), len(clips)
    start = number * total // count
    ordered = each(chain(islice(clips, start, None), islice(clips, start)), "audio files", "clip", total)
    with closing(_open_facts(banks)) as facts:
        while group := list(islice(ordered, OPENED_TOGETHER)):
            states = {clip.path: _file_status(clip.path) for clip in group}  # before the files are read
            known = facts.get({path: state for path, state in states.items() if state})
            stored = {path: _parse_row(known.get(path)) for path in states}
            decoded = {clip.path for clip in group if clip.id in whole}
            unknown = [path for path, found in stored.items() if verify or _must_be_read(found, path in decoded)]
            read = threads.map(lambda path: _read_sound(path, path in decoded, verify), unknown)  # noqa: B023
            for path, found in zip(unknown, read, strict=True):
                _warn_of_change(path, stored[path], found)
                stored[path] = found
                if found.sound is not None:
                    _store_sound(facts, path, states[path], found)
            yield from ((clip, stored[clip.path] or FoundSound()) for clip in group)


def note_broken(path: str, banks: Path, error: AudioError) -> None:
    """Store that a file is broken, so that `find_sounds` reports it."""
    with closing(_open_facts(banks)) as facts:
        _store_sound(facts, path, _file_status(path), FoundSound(reason=str(error)))


def _open_facts(banks: Path) -> FileFacts:
    """Open the store of audio files' checksums, lengths and sample rates (facts) in the folder `banks`."""
    return FileFacts(banks / "contents.sqlite", "sounds", COLUMNS)


def _file_status(path: str) -> os.stat_result | None:
    """Return the size and times of a file; None if it is missing."""
    try:
        return os.stat(path)  # noqa: PTH116  a fifth of the time of Path(path).stat()
    except FileNotFoundError:
        return None


def _parse_row(row: Sequence[Any] | None) -> FoundSound | None:
    """Convert a stored row of values about an audio file to a FoundSound; None without a row."""
    if row is None:
        return None
    key, samples, rate, is_decoded, reason, sha256 = row
    sound = None if reason else Sound(samples, rate)
    return FoundSound(key, sound, bool(is_decoded), reason or "", sha256)


def _must_be_read(found: FoundSound | None, whole: bool) -> bool:
    """Return whether an audio file must be read, because stored facts about it are missing.

    found: The stored facts. whole: Whether the file must have been decoded completely.
    """
    return found is None or (whole and found.sound is not None and not found.is_decoded)


def _store_sound(facts: FileFacts, path: str, state: os.stat_result | None, found: FoundSound) -> None:
    """Store the checksum, length and sample rate of a file, or why it is broken. state: None for a missing file."""
    sound = found.sound or Sound(0, 0)
    if state is not None:
        facts.put(
            path, state, [found.quick_sha256, *map(int, sound), int(found.is_decoded), found.reason, found.sha256]
        )


def _read_sound(path: str, whole: bool, verify: bool) -> FoundSound:
    """Return a quick checksum, the length and the sample rate of an audio file, or the reason why it is unreadable.

    whole: Decode the file to its end to find damage. verify: Also return the sha256 of the whole file.
    """
    try:
        sound = sound_of(path)
        if whole:
            read_audio(path, sound.rate)
        return FoundSound(quick_checksum(Path(path)), sound, whole, "", content_key(path) if verify else None)
    except AudioError as error:
        return FoundSound(reason=str(error))


def _warn_of_change(path: str, before: FoundSound | None, found: FoundSound) -> None:
    """Log a warning for a file that has changed while its size and modification time are the same."""
    if before is None or before.sound is None or found.sound is None:
        return
    if before.quick_sha256 != found.quick_sha256 or before.sha256 not in (None, found.sha256):
        log.warning(
            "%s: the file's content has changed, but not its size and modification time; the new content is used", path
        )
