"""Settings of a recipe as their source explains them (`lbar keys PATH`)."""

import difflib
import inspect
from collections.abc import Iterator
from typing import Any, get_args

from data_tools.errors import KitError
from data_tools.settings import Strict, kinds_of
from system.audio import KINDS, kind_class
from system.recipe.schema import Recipe


def settings_at(path: str) -> list[type[Strict]]:
    """Return the classes of settings at a path, such as stages.optimizer; names of stages and so on may be left out."""
    for kind in KINDS:
        kind_class(kind)
    found: list[type[Strict]] = [Recipe]
    is_named = False  # the part before holds settings by names of the user's choice
    for part in filter(None, path.split(".")):
        having = [one for one in found if part in one.model_fields]
        if having:
            annotations = [one.model_fields[part].annotation for one in having]
            found = list(dict.fromkeys(kind for one in annotations for kind in _classes(one))) or having
            is_named = any(_holds_names(one) for one in annotations)
            continue
        known = [name for one in found for name in one.model_fields]
        if is_named and not difflib.get_close_matches(part, known, 1, 0.87):  # a name of the user's choice
            is_named = False
        else:
            close = difflib.get_close_matches(part, known, 1) or [", ".join(dict.fromkeys(known))]
            raise KitError(f"{path}: a recipe has no key {part!r} there; did you mean {close[0]}?")
    return found


def fields_of(kind: type[Strict]) -> str:
    """Return the source of the settings of a class, without its methods, after that of its bases."""
    bases = [one for one in reversed(kind.__mro__) if issubclass(one, Strict) and one is not Strict]
    return "\n\n".join("\n".join(_without_methods(inspect.getsource(one))).rstrip() for one in bases)


def _without_methods(source: str) -> Iterator[str]:
    for line in source.splitlines():
        if line.startswith(("    @", "    def ", "    async ")):
            return
        yield line


def _classes(annotation: Any) -> Iterator[type[Strict]]:
    """Yield the classes of settings that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield from kinds_of(annotation).values() if inspect.isabstract(annotation) else [annotation]
    for one in get_args(annotation):
        yield from _classes(one)


def _holds_names(annotation: Any) -> bool:
    return any(getattr(one, "__origin__", one) in (dict, list) for one in (annotation, *get_args(annotation)))
