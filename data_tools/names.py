"""File names of data sets.

Lists audio files, and matches published file names to the names on disk.
"""

import logging
import os
import re
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.errors import DataError

MAX_NAMED = 5  # names of one kind in a warning
log = logging.getLogger(__name__)


def audio_names(folder: Path) -> list[str]:
    """Return the sorted names of the audio files in a folder, without hidden files and subfolders; [] without a folder.

    Raises DataError for a name that is not UTF-8: no manifest can contain it.
    """
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if is_audio_name(path.name) and path.is_file()]
    return _require_utf8(folder, sorted(names))


def audio_tree(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the audio files in a folder and its subfolders, and the names of all other files there.

    Logs a warning that lists several names of the same file. Raises DataError for a name that is not UTF-8.
    """
    files = tree_files(folder)
    audio = _require_utf8(folder, [name for name in files if is_audio_name(name)])
    by_file = _group_by(audio, lambda name: os.path.realpath(folder / name))
    if same := [" = ".join(names) for names in by_file.values() if len(names) > 1]:
        log.warning("%s: files with several names, such as links (%d): %s", folder, len(same), first_names(same))
    return audio, [name for name in files if not is_audio_name(name)]


def tree_files(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder and its subfolders, without hidden ones.

    Names are relative to the folder, with "/". Links to folders are followed after all real folders have been listed. A
    folder that is already listed, or that contains the link, is not listed again, so that circular links end. A warning
    names these links, and links without a target.
    Raises OSError for a subfolder that may not be read.
    """
    files: list[str] = []
    skipped: list[str] = []
    listed = {*map(str, Path(os.path.realpath(folder)).parents)}
    waiting = deque([folder])
    while waiting:
        parent = waiting.popleft()
        if (target := os.path.realpath(parent)) in listed:
            skipped.append(parent.relative_to(folder).as_posix())
            continue
        listed.add(target)
        inner = parent.relative_to(folder)
        with os.scandir(parent) as entries:  # entries distinguish files from folders without another system call
            shown = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
        for entry in shown:
            path = parent / entry.name
            found = path if entry.is_symlink() else entry  # an entry raises an error for a link to itself
            if found.is_dir():
                (waiting.append if entry.is_symlink() else waiting.appendleft)(path)
            else:
                (files if found.is_file() else skipped).append((inner / entry.name).as_posix())
    if skipped:
        log.warning(
            "%s: skipped broken links, and links to folders that are already listed: %s", folder, first_names(skipped)
        )
    return sorted(files)


def first_names(names: Sequence[str]) -> str:
    """Join the first MAX_NAMED names with commas for a message; if there are more, add the number of all names."""
    return ", ".join(names[:MAX_NAMED]) + (f", ... ({len(names)})" if len(names) > MAX_NAMED else "")


def is_audio_name(name: str) -> bool:
    """Return whether a file name has the suffix of a supported audio format; False for hidden files."""
    return name.lower().endswith(AUDIO_SUFFIXES) and not name.startswith(".")


def _require_utf8(folder: Path, names: list[str]) -> list[str]:
    """Return the file names unchanged. Raises DataError for a name that is not UTF-8."""
    for name in names:
        if not is_utf8(name):
            raise DataError(
                f"{folder}: the file name {name!a} is not UTF-8; rename it, or unpack the archive with UTF-8 names"
            )
    return names


MAX_ID_DIGITS = 18  # of a Freesound id; real ones have six


def is_freesound_id(text: str) -> bool:
    """Return whether a text can be the id of a Freesound sound (a number), with or without blanks around it.

    Digits of other scripts do not count: lists of excluded ids would not match them.
    """
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS


def plain_id(freesound_id: str) -> str:
    """Return the canonical form of an id for comparison: digits without leading zeros and blanks; other text unchanged.

    >>> plain_id("007"), plain_id("Not found")
    ('7', 'Not found')
    """
    return str(int(freesound_id)) if is_freesound_id(freesound_id) else freesound_id


def is_utf8(name: str) -> bool:
    """Return whether a file name from the operating system is valid UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def match_names(wanted: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Map wanted file names to names on disk that are equal, or differ only in Unicode form, blanks or colons.

    An equal name is a match. Only the remaining names on both sides are compared further: first in Unicode's composed
    form (macOS unpacks decomposed ones), then without outer blanks and blanks before the suffix. Last, ':' and the
    blanks around it count as '_' (Clotho's files were renamed so). A name with two possible matches has none;
    names without a match are omitted.
    """
    unmatched = dict.fromkeys(wanted)
    free = dict.fromkeys(present)
    matches: dict[str, str] = {}
    for key in (str, _composed, _without_blanks, _without_colons):
        ours, theirs = _group_by(unmatched, key), _group_by(free, key)
        for shared in ours.keys() & theirs.keys():
            if len(ours[shared]) == len(theirs[shared]) == 1:
                matches[ours[shared][0]] = theirs[shared][0]
        used = set(matches.values())
        unmatched = {name: None for name in unmatched if name not in matches}
        free = {name: None for name in free if name not in used}
    return matches


def check_source(name: str) -> str:
    """Return the source name unchanged. Raises DataError if it has characters that clip ids must not have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DataError(f"the name {name!r} may only have letters, digits, '.', '_' and '-'; choose another by --name")
    return name


def _composed(name: str) -> str:
    """Return a file name with each letter and its marks as one character (NFC)."""
    return unicodedata.normalize("NFC", name)


def _without_blanks(name: str) -> str:
    """Return a file name without blanks at its ends and before its suffix."""
    return re.sub(r"\s+(\.\w+)$", r"\1", _composed(name).strip())


def _without_colons(name: str) -> str:
    """Return a file name with `_` in place of each colon or underscore and the blanks around it."""
    return re.sub(r"\s*[:_]\s*", "_", _without_blanks(name))


def _group_by(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    """Group names by the result of the function `key`; return a dict from result to names."""
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return groups
