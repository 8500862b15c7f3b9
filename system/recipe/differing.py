"""Compare two resolved recipes.

Comparison of two resolved recipes, or of the facts of two runs.
"""

from collections.abc import Iterator
from typing import Any


def differing(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted key and both values of each setting that differs between `a` and `b`.

    A dotted key looks like stages.train.losses.0.margin. `a` and `b` are two recipes, or parts of two recipes. at:
    Dotted key of these parts, put before all yielded keys; "" for whole recipes.
    """
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from differing(a.get(key), b.get(key), f"{at}.{key}" if at else str(key))
    elif a != b:
        yield at, a, b
