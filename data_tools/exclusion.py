"""Lists of forbidden Freesound ids, in every published form."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from data_tools.errors import KitError
from data_tools.files import read_json
from data_tools.manifest import read_manifest
from data_tools.names import is_freesound_id, plain_id
from data_tools.tables import read_table

Lists = Annotated[
    list[Path] | None, typer.Option(metavar="LIST", help="A list of Freesound ids that must not be trained on; repeat.")
]
Exclusions = Mapping[str, str]  # the name of the first list that forbids an id, by plain_id
NOT_FOUND = "Not found"  # entry of published lists for recordings that were not found again on Freesound


def read_exclusions(paths: Iterable[Path]) -> Exclusions:
    """Read lists of forbidden Freesound ids.

    * the challenge's CSV with the column `sound_id` (dcase2025_task6_excluded_freesound_ids.csv);
    * Clotho's metadata CSV as published (`file_name`, `sound_id`; UTF-8 or ISO-8859-1);
    * aac-datasets' CSV `index,id`;
    * WavCaps' JSON object of lists (.json); only `FreeSound` counts;
    * a manifest (.jsonl): the Freesound ids of its clips.

    Raises KitError for another form, an id that is neither digits nor `Not found`, and a list without any id.
    """
    by_id: dict[str, str] = {}
    for path in paths:
        ids: dict[str, str] = {}
        for where, entry in _read_entries(path):
            if is_freesound_id(entry):
                ids[plain_id(entry)] = path.name
            elif entry.strip() != NOT_FOUND:
                raise KitError(
                    f"{path}, {where}: the id {entry[:40]!r} is neither digits nor {NOT_FOUND!r}; correct it"
                )
        if not ids:
            raise KitError(f"{path}: contains no Freesound id; give another list")
        by_id = ids | by_id
    return by_id


def _read_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place in the file, entry) for every entry of a list."""
    if path.suffix == ".jsonl":
        for clip in read_manifest(path):
            yield clip.id, clip.freesound_id or NOT_FOUND
    elif path.suffix == ".json":
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("FreeSound"), list):
            raise KitError(f"{path}: not a list of Freesound ids: the JSON has no list with the key FreeSound")
        for number, entry in enumerate(content["FreeSound"], 1):
            yield f"FreeSound entry {number}", str(entry)
    else:
        for line, row in read_table(path, [], fallback_encoding="iso-8859-1"):
            if "sound_id" not in row and "id" not in row:
                raise KitError(f"{path}, line 1: not a list of Freesound ids: no column sound_id or id")
            yield f"line {line}", row.get("sound_id", row.get("id", ""))
