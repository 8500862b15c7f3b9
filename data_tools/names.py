"""File names of data sets: what a folder holds, and which published name means which file."""

import logging
import os
import re
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from data_tools.audio.read import AUDIO_SUFFIXES
from data_tools.errors import DataError

MAX_NAMED = 5  # files of one kind in a warning
log = logging.getLogger(__name__)


def audio_names(folder: Path) -> list[str]:
    """Names of the audio files in a folder, hidden ones and subfolders left out, sorted; [] when there is no folder.

    Raises DataError for a name that is not UTF-8: no manifest can hold it.
    """
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if is_audio_name(path.name) and path.is_file()]
    return _require_utf8(folder, sorted(names))


def audio_tree(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the audio files of tree_files, and of its other files. A warning lists names of the same file.

    Raises DataError for a name that is not UTF-8.
    """
    files = tree_files(folder)
    audio = _require_utf8(folder, [name for name in files if is_audio_name(name)])
    by_file = _by_key(audio, lambda name: os.path.realpath(folder / name))
    if same := [" = ".join(names) for names in by_file.values() if len(names) > 1]:
        log.warning("%s: several names of one file (%d): %s", folder, len(same), some(same))
    return audio, [name for name in files if not is_audio_name(name)]


def tree_files(folder: Path) -> list[str]:
    """Names of the files in a folder and its subfolders, relative to it and with "/", sorted, without hidden ones.

    Links to folders are followed, after the folders themselves. A folder that is listed already, or that holds this
    one, is not listed again, so that links in a circle end. A warning names these links, and links to nothing.
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
        with os.scandir(parent) as entries:  # which know files from folders without a look at each
            shown = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
        for entry in shown:
            path = parent / entry.name
            found = path if entry.is_symlink() else entry  # a link to itself is an error for an entry
            if found.is_dir():
                (waiting.append if entry.is_symlink() else waiting.appendleft)(path)
            else:
                (files if found.is_file() else skipped).append((inner / entry.name).as_posix())
    if skipped:
        log.warning("%s: skipped links to nothing or to a folder listed before: %s", folder, some(skipped))
    return sorted(files)


def some(names: Sequence[str]) -> str:
    """The first MAX_NAMED names in one line."""
    return ", ".join(names[:MAX_NAMED]) + (f", ... ({len(names)})" if len(names) > MAX_NAMED else "")


def is_audio_name(name: str) -> bool:
    """Whether a file of this name holds audio of a format that is read; a hidden file does not."""
    return name.lower().endswith(AUDIO_SUFFIXES) and not name.startswith(".")


def _require_utf8(folder: Path, names: list[str]) -> list[str]:
    for name in names:
        if not is_utf8(name):
            raise DataError(
                f"{folder}: the file name {name!a} is not UTF-8; rename it, or unpack again with UTF-8 names"
            )
    return names


MAX_ID_DIGITS = 18  # of a Freesound id, which have six


def is_freesound_id(text: str) -> bool:
    """Whether a text is the number of a sound on Freesound, blanks around it or not, in digits of no other script:
    lists of excluded ids would not know them."""
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS


def plain_id(freesound_id: str) -> str:
    """The id as ids are compared by: digits without leading zeros or blanks around them; other text as it is.

    >>> plain_id("007"), plain_id("Not found")
    ('7', 'Not found')
    """
    return str(int(freesound_id)) if is_freesound_id(freesound_id) else freesound_id


def is_utf8(name: str) -> bool:
    """False for a name from the operating system that holds bytes which are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def match_names(wanted: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Which present name each wanted name means; names without a counterpart are left out.

    A name means itself. Only the names left over on both sides are compared in Unicode's composed form (macOS unpacks
    decomposed ones), then without outer blanks and blanks before the suffix, and last with ':' and the blanks around it
    taken for '_' (Clotho's files were renamed so). A name that could mean two others means none.
    """
    left = dict.fromkeys(wanted)
    free = dict.fromkeys(present)
    found: dict[str, str] = {}
    for key in (str, _composed, _without_blanks, _without_colons):
        ours, theirs = _by_key(left, key), _by_key(free, key)
        for shared in ours.keys() & theirs.keys():
            if len(ours[shared]) == len(theirs[shared]) == 1:
                found[ours[shared][0]] = theirs[shared][0]
        used = set(found.values())
        left = {name: None for name in left if name not in found}
        free = {name: None for name in free if name not in used}
    return found


def check_source(name: str) -> str:
    """A source name that is fit for clip ids, unchanged. Raises DataError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DataError(f"the name {name!r} may only have letters, digits, '.', '_' and '-'; choose another by --name")
    return name


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _without_blanks(name: str) -> str:
    return re.sub(r"\s+(\.\w+)$", r"\1", _composed(name).strip())


def _without_colons(name: str) -> str:
    return re.sub(r"\s*[:_]\s*", "_", _without_blanks(name))


def _by_key(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return groups
