"""Section: differing settings.

Make the section on settings that differ between this run and other runs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from data_tools.files import read_json
from submission.report.elements import NONE, Section, Table, without_folders
from submission.runs.finished import Finished


def read_settings(run: Finished) -> Any:
    """Read all settings of a run from its resolved.json and return them as JSON values."""
    path = run.file("resolved.json")
    return read_json(path)


def dotted_values(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each value in a JSON value at the key `at`; in a list, the keys are the indices.

    The keys are those of the option --set. at: Dotted key of the whole value.

    >>> dict(dotted_values({"a": {"b": [1, {"c": 2}]}, "d": []}))
    {'a.b.0': 1, 'a.b.1.c': 2, 'd': []}
    """
    parts = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, part in parts.items():
        yield from dotted_values(part, f"{at}.{key}" if at else str(key))
    if not parts:
        yield at, value


def differing_settings_section(run: Finished, others: Mapping[str, Finished]) -> Section | None:
    """Return the section on differing settings, with one table per other run; None if there is no other run.

    A table has the keys with different values, and the keys that only one of the two runs has.
    """
    if not others:
        return None
    this, tables, same = dict(dotted_values(read_settings(run))), [], []
    for name, other in others.items():
        that = dict(dotted_values(read_settings(other)))
        keys = [key for key in {**this, **that} if key not in this or key not in that or this[key] != that[key]]
        if keys:
            rows = [[key, _json_cell(this, key), _json_cell(that, key)] for key in keys]
            tables.append(Table(f"This run and {name}", ("setting", "this run", name), rows))
        else:
            same.append(f"{name} has the same settings as this run.")
    absent = [f"{NONE} means that the run has no such setting."] if tables else []
    return Section("settings", "Settings that differ", paragraphs=[*same, *absent], tables=tables)


def _json_cell(settings: Mapping[str, Any], key: str) -> str:
    """Return the value of settings[key] as JSON without folders of this machine; a dash if the key is missing."""
    return json.dumps(without_folders(settings[key]), ensure_ascii=False) if key in settings else NONE
