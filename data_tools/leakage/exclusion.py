"""Lists of forbidden Freesound ids.

Lists of Freesound ids that training data must not contain: reads every published form.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.files import read_json, read_text
from data_tools.manifest import iter_manifest
from data_tools.names import is_freesound_id, plain_id
from data_tools.tables import read_table

NOT_FOUND = "Not found"  # entry of published lists for recordings that were not found again on Freesound


class Listed(NamedTuple):
    """Content of one list.

    ids: Number of distinct ids. not_found: Entries without an id (`Not found`, a clip without an id).
    """

    name: str
    ids: int
    not_found: int


class Exclusions(NamedTuple):
    """Forbidden Freesound ids, and the lists that forbid them.

    sources: Name and size of every list, in order. by_id: Dict from each forbidden id to the names of its lists.
    """

    sources: tuple[Listed, ...]
    by_id: Mapping[str, tuple[str, ...]]

    def lists(self, freesound_id: str) -> tuple[str, ...]:
        """Return the names of the lists that forbid an id; () if no list does. Ids are compared as numbers."""
        return self.by_id.get(plain_id(freesound_id), ())


def read_exclusions(paths: Iterable[Path]) -> Exclusions:
    """Read lists of forbidden Freesound ids into one Exclusions object.

    The content of a file shows its form:

    * the challenge's CSV with the column `sound_id` (dcase2025_task6_excluded_freesound_ids.csv);
    * Clotho's metadata CSV as published (`file_name`, `sound_id`; UTF-8 or ISO-8859-1);
    * aac-datasets' CSV `index,id`;
    * WavCaps' JSON object of lists; only `FreeSound` counts;
    * a manifest (.jsonl): the Freesound ids of its clips.

    Ids remain text throughout, so that `Not found` cannot turn a column into floating-point numbers. `Not found`, and
    clips without an id, are counted and forbid nothing. The name of a list is its file name, or its path if two lists
    have the same file name.
    Raises DataError for a file of another form, an id that is neither digits nor `Not found`, and a list without any
    id.
    """
    lists = list(dict.fromkeys(paths))
    names = [path.name for path in lists]
    sources = []
    by_id: dict[str, tuple[str, ...]] = {}
    for path in lists:
        name = path.name if names.count(path.name) == 1 else str(path)
        entries = [_check_entry(path, where, entry) for where, entry in _read_entries(path)]
        ids = dict.fromkeys(entry for entry in entries if entry is not None)
        if not ids:
            raise DataError(f"{path}: contains no Freesound id; give another list")
        for number in ids:
            by_id[number] = (*by_id.get(number, ()), name)
        sources.append(Listed(name, len(ids), entries.count(None)))
    return Exclusions(tuple(sources), by_id)


def _read_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place in the file, entry) for every entry of one list of forbidden ids."""
    if path.suffix == ".jsonl":
        for line, clip in iter_manifest(path):
            yield f"line {line}", clip.freesound_id or NOT_FOUND
    elif read_text(path, fallback_encoding="iso-8859-1").lstrip().startswith(("{", "[")):
        yield from _read_wavcaps_entries(path)
    else:
        rows = read_table(path, [], fallback_encoding="iso-8859-1")
        column = next((name for name in ("sound_id", "id") if name in rows[0][1]), None)
        if column is None:
            raise DataError(
                f"{path}, line 1: not a list of Freesound ids: it must be a CSV file with the column sound_id or "
                f"id, WavCaps' JSON, or a manifest (.jsonl); the first line has {', '.join(rows[0][1])}"
            )
        for line, row in rows:
            yield f"line {line}", row[column]


def _read_wavcaps_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, id) for every entry of WavCaps' JSON list of forbidden Freesound ids."""
    try:
        content = read_json(path)
    except DataError as error:
        raise DataError(f"{error}; download the list again") from None
    ids = content.get("FreeSound") if isinstance(content, dict) else None
    if not isinstance(ids, list):
        raise DataError(
            f"{path}: not a list of Freesound ids: the JSON has no list with the key FreeSound; name another file"
        )
    for number, entry in enumerate(ids, 1):
        yield f"FreeSound entry {number}", entry if isinstance(entry, str) else json.dumps(entry)


def _check_entry(path: Path, where: str, entry: str) -> str | None:
    """Return the Freesound id in an entry of an exclusion list, without leading zeros; None for `Not found`.

    Raises DataError for any other entry. where: Place of the entry, for the message.
    """
    text = entry.strip()
    if text == NOT_FOUND:
        return None
    if not is_freesound_id(text):
        raise DataError(f"{path}, {where}: the id {entry[:40]!r} is neither digits nor {NOT_FOUND!r}; correct the list")
    return plain_id(text)
