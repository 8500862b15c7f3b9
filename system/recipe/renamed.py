"""Keys and values of a recipe that got another name: release 0.3.0 no longer reads the old ones."""

import json
from collections.abc import Iterator
from typing import Any

from data_tools.documents.yaml12 import Document
from data_tools.documents.yaml12 import Path as Keys

_ANY = "*"
_KEYS = {
    ("model", "audio", "ff"): "ffn_dim",
    ("model", "audio", "most_seconds"): "max_seconds",
    ("model", "audio", "positions"): "max_positions",
    ("model", "text", "ff"): "ffn_dim",
    ("stages", _ANY, "clip_gradient"): "max_grad_norm",
    ("stages", _ANY, "gradient_cache"): "grad_cache_chunk",
    ("stages", _ANY, "schedule", "least_lr"): "min_lr",
}
_VALUES = {
    ("stages", _ANY, "losses", _ANY, "same_clip"): {"left_out": "masked"},
    ("stages", _ANY, "stop", "kind"): {"patience": "early_stopping", "steady": "std_plateau"},
}


def renamed_keys(keys: Keys) -> Keys:
    """A path into a recipe, with the names of today."""
    for pattern, new in _KEYS.items():
        if len(keys) == len(pattern) and all(part in (_ANY, key) for part, key in zip(pattern, keys, strict=True)):
            return (*keys[:-1], new)
    return keys


def rename(document: Document) -> list[tuple[int, str]]:
    """Put the names of today into a document; for each its line, and what to write. A key that stands there under both
    names becomes a problem of the document."""
    lines: list[tuple[int, str]] = []
    for pattern, new in _KEYS.items():
        for parent, at in _parents(document.value, pattern):
            old, path = str(pattern[-1]), ".".join(map(str, at))
            number = document.line((*at, old))
            if new in parent:
                document.problems.append(((*at, old), number, f"the old name of {new}, which is given too; remove it"))
            else:
                parent[new] = parent[old]
                document.lines[(*at, new)] = number
                lines.append((number, f"{path}.{old} is called {new} now; write {new}: {json.dumps(parent[new])}"))
            del parent[old]
    for pattern, names in _VALUES.items():
        for parent, at in _parents(document.value, pattern):
            key, old = pattern[-1], parent[pattern[-1]]
            if isinstance(old, str) and old in names:
                parent[key] = names[old]
                path = ".".join(map(str, (*at, key)))
                text = f"{path}: {old} is called {names[old]} now; write {key}: {names[old]}"
                lines.append((document.line((*at, key)), text))
    return sorted(lines)


def _parents(value: Any, pattern: Keys, at: Keys = ()) -> Iterator[tuple[dict[str, Any], Keys]]:
    """The mappings that hold the last key of a pattern, and the path to each."""
    first, *rest = pattern
    if not rest:
        if isinstance(value, dict) and first in value:
            yield value, at
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if first in (_ANY, key):
            yield from _parents(item, tuple(rest), (*at, key))
