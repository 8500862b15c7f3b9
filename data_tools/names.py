"""Names of audio files, and ids of Freesound."""

import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.errors import DataError

log = logging.getLogger(__name__)


def is_audio_name(name: str) -> bool:
    """Return whether a file name has the suffix of a supported audio format; False for hidden files."""
    return name.lower().endswith(AUDIO_SUFFIXES) and not PurePath(name).name.startswith(".")


def audio_names(folder: Path) -> list[str]:
    """Return the sorted names of the audio files in a folder, without subfolders; [] without a folder."""
    paths = folder.iterdir() if folder.is_dir() else []
    return _require_utf8(folder, sorted(path.name for path in paths if is_audio_name(path.name) and path.is_file()))


def audio_tree(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the audio files in a folder and its subfolders, and those of all other files."""
    files = tree_files(folder)
    audio = [name for name in files if is_audio_name(name)]
    return _require_utf8(folder, audio), sorted(set(files) - set(audio))


def tree_files(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder and its subfolders, relative to it, without hidden ones.

    Links to folders are followed after the real folders; a folder that is listed already is not listed again.
    """
    files, listed = [], {*map(str, Path(os.path.realpath(folder)).parents)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(parent)) in listed:
            log.warning("%s: skipped, since it is a link to a folder that is listed already", parent)
            folders.clear()
            continue
        listed.add(real)
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = sorted(shown, key=lambda name: (Path(parent, name).is_symlink(), name))
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if path.is_file():
                files.append(path.relative_to(folder).as_posix())
            else:
                log.warning("%s: skipped, since its target is missing", path)
    return sorted(files)


def _require_utf8(folder: Path, names: list[str]) -> list[str]:
    for name in names:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise DataError(f"{folder}: the file name {name!a} is not UTF-8; rename it, or unpack with UTF-8 names")
    return names


def is_freesound_id(text: str) -> bool:
    """Return whether a text can be the id of a Freesound sound: at most 18 ASCII digits, perhaps with blanks around."""
    return re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is not None


def plain_id(freesound_id: str) -> str:
    """Return an id without leading zeros and blanks, for comparison; other text unchanged.

    >>> plain_id("007"), plain_id("Not found")
    ('7', 'Not found')
    """
    return str(int(freesound_id)) if is_freesound_id(freesound_id) else freesound_id


def check_source(name: str) -> str:
    """Return the source name unchanged. Raises DataError if it has characters that clip ids must not have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise DataError(f"the name {name!r} may only have letters, digits, '.', '_' and '-'; choose another by --name")
    return name


def match_names(wanted: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Map wanted file names to names on disk: equal, or different only in Unicode form, blanks or colons.

    Only the names left on both sides are compared further: in Unicode's composed form (macOS unpacks decomposed ones),
    then without outer blanks and blanks before the suffix, then with '_' for ':' and the blanks around it (Clotho's
    files were renamed so). A name with two possible matches has none; names without a match are omitted.
    """
    ours, theirs, matches = dict.fromkeys(wanted), dict.fromkeys(present), dict[str, str]()
    for key in (str, _composed, _without_blanks, _without_colons):
        mine, others = _unique(ours, key), _unique(theirs, key)
        for shared in mine.keys() & others.keys():
            matches[mine[shared]] = others[shared]
            del ours[mine[shared]], theirs[others[shared]]
    return matches


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _without_blanks(name: str) -> str:
    return re.sub(r"\s+(\.\w+)$", r"\1", _composed(name).strip())


def _without_colons(name: str) -> str:
    return re.sub(r"\s*[:_]\s*", "_", _without_blanks(name))


def _unique(names: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Return each name by its key, without those that share a key."""
    count = Counter(map(key, names))
    return {key(name): name for name in names if count[key(name)] == 1}
