"""Suggestions for unknown keys.

Suggestions for a key that a recipe does not have at the given place.
"""

import difflib
from collections.abc import Iterator
from typing import Any

from data_tools.cli import counted
from data_tools.documents.strict import cut
from data_tools.documents.yaml12 import Path as Keys

MAX_PATHS = 3  # suggestions in a message


def unknown_path(document: Any, keys: Keys) -> str:
    """Format the error message for a key that a recipe does not have, with a suggestion.

    The suggestion is the most similar path; without one, it lists the keys of the deepest section of the path that
    exists.

    >>> unknown_path({"stages": {"train": {"epochs": 3}}}, ("stages", "trian", "epochs"))
    'the recipe has no such key; did you mean stages.train.epochs?'
    """
    at, known = document, 0
    while known < len(keys) - 1 and (below := _value_at(at, keys[known])) is not None:
        at, known = below, known + 1
    where, said = _dotted(keys[:known]) or "the recipe", "the recipe has no such key"
    if isinstance(at, dict) and keys[known] in at:
        return f"{said}; {_dotted(keys[: known + 1])} is null"
    if isinstance(at, dict):
        close = difflib.get_close_matches(cut(str(keys[known])), [name for name in at if isinstance(name, str)], 1)
        if close:
            return f"{said}; did you mean {_dotted((*keys[:known], close[0], *keys[known + 1 :]))}?"
        return f"{said}; {where} has {cut(', '.join(map(str, at)) or 'no keys')}"
    if isinstance(at, list):
        return f"{said}; {where} has {counted(len(at), 'entry')}" + (f", the first is {where}.0" if at else "")
    return f"{said}; {where} has no keys"


def other_paths(document: Any, keys: Keys) -> str:
    """Suggest other paths for a misplaced key, as the end of an error message.

    These are the paths at which the document has a key of the same name; "" if none or more than MAX_PATHS exist.

    >>> other_paths({"epochs": 5, "stages": {"train": {"epochs": 3}}}, ("epochs",))
    '; did you mean stages.train.epochs?'
    """
    found = [_dotted(path) for path in _paths(document) if path[-1] == keys[-1] and path != keys]
    return f"; did you mean {' or '.join(found)}?" if 0 < len(found) <= MAX_PATHS else ""


def _paths(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of all values of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*keys, key)
        yield from _paths(item, (*keys, key))


def _value_at(value: Any, key: str | int) -> Any:
    """Return the value at a key of a mapping or a list; None if it is missing."""
    if isinstance(value, dict):
        return value.get(key)
    return value[key] if isinstance(value, list) and isinstance(key, int) and key < len(value) else None


def _dotted(keys: Keys) -> str:
    """Join keys by dots."""
    return ".".join(map(str, keys))
