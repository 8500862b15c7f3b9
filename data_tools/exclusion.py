"""Lists of forbidden Freesound ids, in every published form."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from data_tools.errors import DataError
from data_tools.files import read_json, read_text
from data_tools.manifest import iter_manifest
from data_tools.names import is_freesound_id, plain_id
from data_tools.tables import read_table

Lists = Annotated[
    list[Path] | None, typer.Option(metavar="LIST", help="A list of Freesound ids that must not be trained on; repeat.")
]
NOT_FOUND = "Not found"  # entry of published lists for recordings that were not found again on Freesound


class Listed(NamedTuple):
    """A list: its name, and the numbers of distinct ids and of entries without an id."""

    name: str
    ids: int
    not_found: int


class Exclusions(NamedTuple):
    """Forbidden Freesound ids. by_id: The names of the lists that forbid each id."""

    sources: tuple[Listed, ...]
    by_id: Mapping[str, tuple[str, ...]]

    def lists(self, freesound_id: str) -> tuple[str, ...]:
        """Return the names of the lists that forbid an id; () if no list does. Ids are compared as numbers."""
        return self.by_id.get(plain_id(freesound_id), ())


def read_exclusions(paths: Iterable[Path]) -> Exclusions:
    """Read lists of forbidden Freesound ids; the content of a file shows its form.

    * the challenge's CSV with the column `sound_id` (dcase2025_task6_excluded_freesound_ids.csv);
    * Clotho's metadata CSV as published (`file_name`, `sound_id`; UTF-8 or ISO-8859-1);
    * aac-datasets' CSV `index,id`;
    * WavCaps' JSON object of lists; only `FreeSound` counts;
    * a manifest (.jsonl): the Freesound ids of its clips.

    Raises DataError for another form, an id that is neither digits nor `Not found`, and a list without any id.
    """
    sources, by_id = [], dict[str, tuple[str, ...]]()
    for path in dict.fromkeys(paths):
        entries = [_require_id(path, where, entry) for where, entry in _read_entries(path)]
        ids = dict.fromkeys(filter(None, entries))
        if not ids:
            raise DataError(f"{path}: contains no Freesound id; give another list")
        for number in ids:
            by_id[number] = (*by_id.get(number, ()), path.name)
        sources.append(Listed(path.name, len(ids), entries.count(None)))
    return Exclusions(tuple(sources), by_id)


def _read_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place in the file, entry) for every entry of a list."""
    if path.suffix == ".jsonl":
        for line, clip in iter_manifest(path):
            yield f"line {line}", clip.freesound_id or NOT_FOUND
    elif read_text(path, fallback_encoding="iso-8859-1").lstrip().startswith(("{", "[")):
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("FreeSound"), list):
            raise DataError(f"{path}: not a list of Freesound ids: the JSON has no list with the key FreeSound")
        for number, entry in enumerate(content["FreeSound"], 1):
            yield f"FreeSound entry {number}", str(entry)
    else:
        rows = read_table(path, [], fallback_encoding="iso-8859-1")
        column = next((name for name in ("sound_id", "id") if name in rows[0][1]), None)
        if column is None:
            raise DataError(f"{path}, line 1: not a list of Freesound ids: no column sound_id or id")
        for line, row in rows:
            yield f"line {line}", row[column]


def _require_id(path: Path, where: str, entry: str) -> str | None:
    """Return an id without leading zeros; None for `Not found`."""
    if entry.strip() == NOT_FOUND:
        return None
    if not is_freesound_id(entry):
        raise DataError(f"{path}, {where}: the id {entry[:40]!r} is neither digits nor {NOT_FOUND!r}; correct the list")
    return plain_id(entry)
