"""Suggestions for unknown keys.

Suggest existing keys if a recipe has an unknown or misplaced key.
"""

import difflib
from collections.abc import Iterator
from typing import Any

from data_tools.cli import counted
from data_tools.settings import Keys, cut

MAX_PATHS = 3  # suggestions in a message


def unknown_path(document: Any, keys: Keys) -> str:
    """Format the error message for a key that a recipe does not have, with a suggestion.

    The suggestion is the most similar path of the recipe. If no path is similar, the message lists the keys of the
    deepest existing section of the path.

    >>> unknown_path({"stages": {"train": {"epochs": 3}}}, ("stages", "trian", "epochs"))
    'the recipe has no such key; did you mean stages.train.epochs?'
    """
    at, known = document, 0
    while known < len(keys) - 1 and (below := _value_at(at, keys[known])) is not None:
        at, known = below, known + 1
    where, no_such_key = _dotted(keys[:known]) or "the recipe", "the recipe has no such key"
    if isinstance(at, dict) and keys[known] in at:
        return f"{no_such_key}; {_dotted(keys[: known + 1])} is null"
    if isinstance(at, dict):
        close = difflib.get_close_matches(cut(str(keys[known])), [name for name in at if isinstance(name, str)], 1)
        if close:
            return f"{no_such_key}; did you mean {_dotted((*keys[:known], close[0], *keys[known + 1 :]))}?"
        return f"{no_such_key}; {where} has {cut(', '.join(map(str, at)) or 'no keys')}"
    if isinstance(at, list):
        return f"{no_such_key}; {where} has {counted(len(at), 'entry')}" + (f", the first is {where}.0" if at else "")
    return f"{no_such_key}; {where} has no keys"


def other_paths(document: Any, keys: Keys) -> str:
    """Return the end of an error message that suggests the right paths of a misplaced key; "" without a suggestion.

    All paths of the document with a key of the same name are suggested; none if there are more than MAX_PATHS.

    >>> other_paths({"epochs": 5, "stages": {"train": {"epochs": 3}}}, ("epochs",))
    '; did you mean stages.train.epochs?'
    """
    found = [_dotted(path) for path in _paths(document) if path[-1] == keys[-1] and path != keys]
    return f"; did you mean {' or '.join(found)}?" if 0 < len(found) <= MAX_PATHS else ""


def _paths(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the path of every value in a document, as a tuple of keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*keys, key)
        yield from _paths(item, (*keys, key))


def _value_at(value: Any, key: str | int) -> Any:
    """Return value[key] of a dict or list; None if the key is missing."""
    if isinstance(value, dict):
        return value.get(key)
    return value[key] if isinstance(value, list) and isinstance(key, int) and key < len(value) else None


def _dotted(keys: Keys) -> str:
    """Join keys by dots, such as stages.train.epochs."""
    return ".".join(map(str, keys))
