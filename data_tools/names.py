"""Names of audio files, and ids of Freesound."""

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePath

from data_tools.audio import AUDIO_SUFFIXES
from data_tools.errors import KitError


def is_audio_name(name: str) -> bool:
    """Return whether a file name has the suffix of a supported audio format; False for hidden files."""
    return name.lower().endswith(AUDIO_SUFFIXES) and not PurePath(name).name.startswith(".")


def audio_names(folder: Path) -> list[str]:
    """Return the sorted names of the audio files in a folder, without subfolders; [] without a folder."""
    paths = folder.iterdir() if folder.is_dir() else []
    return sorted(path.name for path in paths if is_audio_name(path.name) and path.is_file())


def audio_tree(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the audio files in a folder and its subfolders, and those of all other files."""
    files = tree_files(folder)
    audio = [name for name in files if is_audio_name(name)]
    return audio, sorted(set(files) - set(audio))


def tree_files(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder and its subfolders, relative to it, without hidden ones.

    Links to folders are followed; a folder that is listed already is not listed again.
    """
    files, listed = [], {*map(str, Path(os.path.realpath(folder)).parents)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(parent)) in listed:
            folders.clear()
            continue
        listed.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        shown = (Path(parent, name) for name in names if not name.startswith("."))
        files += [path.relative_to(folder).as_posix() for path in shown if path.is_file()]
    return sorted(files)


def is_freesound_id(text: str) -> bool:
    """Return whether a text can be the id of a Freesound sound: at most 18 ASCII digits, perhaps with blanks around."""
    return re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is not None


def plain_id(freesound_id: str) -> str:
    """Return an id without leading zeros and blanks, for comparison; other text unchanged.

    >>> plain_id("007"), plain_id("Not found")
    ('7', 'Not found')
    """
    return str(int(freesound_id)) if is_freesound_id(freesound_id) else freesound_id


def check_source(name: str, option: str = "--name") -> str:
    """Return the source name unchanged. Raises KitError if it has characters that clip ids must not have.

    option: Option that gives the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise KitError(f"the name {name!r} may only have letters, digits, '.', '_' and '-'; choose another by {option}")
    return name


def match_names(wanted: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Map wanted file names to names on disk: equal, or different only in Unicode form, blanks or colons.

    macOS unpacks decomposed names, and some tools write '_' for ':' and the blanks around it in Clotho's. Names without
    a match are omitted.
    """
    ours, theirs = set(wanted), set(present)
    others = {_plain(name): name for name in sorted(theirs - ours)}
    found = {name: name if name in theirs else others.get(_plain(name)) for name in ours}
    return {name: match for name, match in found.items() if match}


def _plain(name: str) -> str:
    """Return a name in Unicode's composed form, without blanks at its ends and around ':', and with '_' for it."""
    inner = re.sub(r"\s+(\.\w+)$", r"\1", unicodedata.normalize("NFC", name).strip())
    return re.sub(r"\s*[:_]\s*", "_", inner)
