"""Read and check a recipe.

Read a recipe's YAML file, apply settings of the command line, and return a checked Recipe, or report all mistakes.
"""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from data_tools.errors import DataError, KitError
from data_tools.files import require_file
from data_tools.settings import MAX_SHOWN, Document, Keys, cut, fault_of, parse
from system.audio import KINDS, kind_class
from system.recipe import schema
from system.recipe.kinds import check_kinds
from system.recipe.rules import between_keys, child
from system.recipe.suggest import other_paths, unknown_path


class RecipeError(KitError):
    """All mistakes of one recipe, one per line: file:line: key: message."""

    def __init__(self, problems: list[str]) -> None:
        """Join the lines `problems`, one per mistake, to the error message."""
        super().__init__("\n".join(problems))
        self.problems = problems


_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_INDEX = re.compile("[0-9]{1,9}")  # of a list's item

MAX_PROBLEMS = 200  # that are printed; further ones are only counted
MAX_SUGGESTED = 20  # unknown keys that get a "did you mean"
SUFFIXES = (".yaml", ".yml", ".json")  # the settings stored with runs and models are JSON

Mistake = tuple[Keys, int, str]  # keys, line in the file (0: command line), message


@dataclass(frozen=True)
class Loaded:
    """A checked recipe. source: The file's bytes. changes: The applied `--set` texts."""

    recipe: schema.Recipe
    source: bytes
    changes: tuple[str, ...]

    def resolved(self) -> str:
        """Return every setting of the recipe as JSON, including defaults.

        Reading this JSON as a recipe results in the same recipe.
        """
        return text_of(self.recipe)


def text_of(recipe: schema.Recipe) -> str:
    """Return every setting of a recipe, including defaults, as JSON text that can be read as YAML."""
    return _as_json(recipe.model_dump(mode="json"), 1) + "\n"


def as_change(key: str, value: object) -> str:
    """Format a changed setting as KEY=VALUE, as the option --set expects it."""
    return f"{key}={_as_json(value)}"


def _as_json(value: object, indent: int | None = None) -> str:
    """Format a value as JSON that can be read as YAML. Characters that YAML changes or forbids are escaped.

    Other characters are not escaped, since JSON escapes some of them as surrogate pairs, which YAML does not have.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def load_recipe(path: Path | str, changes: list[str] | None = None) -> Loaded:
    """Read a recipe, apply the changes of the command line, and check it.

    changes: Texts such as `stages.finetune.batch_size=64`. Raises RecipeError, which lists all mistakes.
    """
    path = Path(path)
    source, document = read_document(path, "recipe")
    if isinstance(document.value, dict) and "cells" in document.value:
        raise RecipeError([f"{path} is a study; run it with: lbar run {path}"])
    mistakes = list(_apply_changes(document, changes or []))
    found = list(_null_characters(document.value))
    _leave_out_nulls(document.value)
    recipe, refused = _validate(document.value)
    found += [*refused, *between_keys(document.value), *(check_kinds(recipe) if recipe else ())]
    problems = [*document.problems, *mistakes, *((keys, document.line(keys), text) for keys, text in found)]
    if problems or recipe is None:
        raise RecipeError(_format_mistakes(path, problems))
    return Loaded(recipe, source, tuple(changes or []))


def read_document(path: Path, kind: str) -> tuple[bytes, Document]:
    """Read the YAML file of a `kind` "recipe" or "study"; return the file's bytes, and the parsed document.

    Raises RecipeError if the file is missing or is not YAML, since nothing else can be checked then.
    """
    try:
        require_file(path, "shipped recipes and studies are in recipes/")
    except DataError as error:
        raise RecipeError([str(error)]) from None
    if path.suffix not in SUFFIXES:
        raise RecipeError(
            [f"{path} is not a {kind}: its name must end in .yaml; shipped recipes and studies are in recipes/"]
        )
    source = path.read_bytes()
    try:
        document = parse(source.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError([f"{path}: the file is not UTF-8 (byte {error.start}); save it as UTF-8"]) from error
    if document.problems and not document.value:  # not YAML, or too large
        raise RecipeError(_format_mistakes(path, document.problems))
    return source, document


def _format_mistakes(path: Path, problems: list[Mistake]) -> list[str]:
    """Format the mistakes of a recipe as text, one line per key, in the order of the file's lines.

    Several messages about one key share one line.
    """
    by_key: dict[tuple[int, str], list[str]] = {}
    for keys, line, text in problems:
        by_key.setdefault((line, ".".join(map(str, keys))), []).append(text)
    lines = [
        f"{f'{path}:{line}:' if line else '--set'} {cut(key)}{': ' if key else ''}{'; or '.join(dict.fromkeys(texts))}"
        for (line, key), texts in sorted(by_key.items())
    ]
    more = len(lines) - MAX_PROBLEMS
    return [*lines[:MAX_PROBLEMS], *([f"{path}: and {more:,} more mistakes"] if more > 0 else [])]


def _apply_changes(document: Document, changes: list[str]) -> Iterator[Mistake]:
    """Apply changes such as `a.b.0.c=value` to the document. Yields the mistakes in these changes.

    A key that does not exist in recipes is refused later, by the schema.
    """
    for change in changes:
        dotted, equals, text = change.partition("=")
        keys: Keys = tuple(int(part) if _INDEX.fullmatch(part) else part for part in dotted.split("."))
        if not equals or not dotted:
            yield keys, 0, "this text is not a setting; write a setting as key.key=value"
            continue
        at = document.value
        for part in keys[:-1]:
            at = child(at, part)
        last = keys[-1]
        value = parse(text)
        yield from ((keys, 0, f"{cut(text)!r}: {problem}") for _, _, problem in value.problems)
        if value.problems:
            continue
        if isinstance(at, dict) and isinstance(last, str):
            at[last] = value.value if text else None
        elif isinstance(at, list) and isinstance(last, int) and last < len(at):
            at[last] = value.value
        else:
            yield keys, 0, unknown_path(document.value, keys)
            continue
        document.lines = {key: line for key, line in document.lines.items() if key[: len(keys)] != keys} | {keys: 0}


def _null_characters(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Yield the keys and an error message for each text in a document that contains a null character."""
    if isinstance(value, str) and "\0" in value:
        yield keys, "the value contains a null character, which is not allowed in texts and file names; remove it"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _null_characters(item, (*keys, key))


def _leave_out_nulls(value: Any) -> None:
    """Remove entries that are null from the sections data, experts, stages and rank of the document `value`."""
    experts = child(child(child(value, "model"), "audio"), "experts")
    for entries in (experts, *(child(value, key) for key in ("data", "stages", "rank"))):
        if isinstance(entries, dict):
            for name in [name for name, entry in entries.items() if entry is None]:
                del entries[name]


def _validate(value: Any) -> tuple[schema.Recipe | None, list[tuple[Keys, str]]]:
    """Check a parsed YAML document by the schema. Returns: The recipe (None if it is invalid), and all mistakes."""
    try:
        return schema.Recipe.model_validate(value), []
    except ValidationError as error:
        found = []
        unknown = 0
        for item in error.errors(include_url=False):
            unknown += item["type"] == "extra_forbidden"
            found.append((_without_tags(value, item["loc"]), _message_of(item, value, unknown <= MAX_SUGGESTED)))
        return None, found


def _without_tags(value: Any, location: tuple[str | int, ...]) -> Keys:
    """Return the document's keys in the location of a pydantic error, without the names of types (tags) there.

    If a value may have several types, pydantic adds the name of the chosen type, which is no key of the document.
    """
    keys: list[str | int] = []
    fresh = True  # no tag seen yet at this value
    for i, part in enumerate(location):
        is_mapping, is_last = isinstance(value, dict), i == len(location) - 1
        if is_mapping and fresh and value.get("kind") == part and not is_last:
            fresh = False
        elif child(value, part) is not None or (is_mapping and (is_last or part in value)):
            keys.append(part)
            value, fresh = child(value, part), True
    return tuple(keys)


def _message_of(item: Any, value: Any, suggest: bool) -> str:
    """Return the message for an `item` of a pydantic error on the recipe `value`. suggest: Name a similar key, too."""
    kind, name = item["type"], item["loc"][-1] if item["loc"] else ""
    if kind == "extra_forbidden":
        if not suggest or len(str(name)) > MAX_SHOWN:
            return "unknown key"
        candidates = difflib.get_close_matches(str(name), sorted(_all_keys(schema.Recipe)), 1)
        if candidates == [name]:
            misplaced = "a recipe does not have this key at the top level" + other_paths(value, (name,))
            return "settings of this kind do not have this key; remove it" if len(item["loc"]) > 1 else misplaced
        return "unknown key" + (f"; did you mean {candidates[0]}?" if candidates else "")
    if kind == "missing":
        return "this key is missing, but required; add it"
    if kind == "union_tag_invalid":
        known = re.findall("'([^']*)'", item["ctx"]["expected_tags"])
        candidates = difflib.get_close_matches(str(item["ctx"]["tag"]), known, 1)
        likely = f"did you mean {candidates[0]}? " if candidates else ""
        return f"unknown kind {cut(repr(item['ctx']['tag']))}; {likely}kinds: {', '.join(known)}"
    return fault_of(item)


def _all_keys(model: type[BaseModel]) -> set[str]:
    """Return the keys that occur anywhere in the schema class `model`, for suggestions."""
    pending: list[Any] = [model, *map(kind_class, KINDS)]
    done: set[type[BaseModel]] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, type) and issubclass(part, BaseModel) and part not in done:
            done.add(part)
            pending += [field.annotation for field in part.model_fields.values()]
        pending += getattr(part, "__args__", ())
    return {key for part in done for key in part.model_fields}
