"""Read a recipe, and report all its mistakes."""

import difflib
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_tools.errors import KitError, first_line
from data_tools.files import read_text, replacing, require_file
from data_tools.settings import Document, Keys, cut, fault_of, parse
from system.kinds import IMPORTED
from system.recipe import schema
from system.recipe.rules import below, child, fit_mistakes, name_mistakes


class RecipeError(KitError):
    """All mistakes of one recipe.

    Each has a line of the form `file:line: key: message`.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


SUFFIXES = (".yaml", ".yml", ".json")  # the settings stored with runs and models are JSON

Mistake = tuple[Keys, int, str]  # keys, line in the file (0: command line), message


@dataclass(frozen=True)
class Loaded:
    """A checked recipe.

    Attributes:
        source: Bytes of the file.
        changes: Texts of `--set` that were applied.
        imports: Files that were imported, by the names of their copies.
    """

    recipe: schema.Recipe
    source: bytes
    changes: tuple[str, ...]
    imports: Mapping[str, Path]


def text_of(recipe: schema.Recipe) -> str:
    """Return all settings, with defaults, as JSON."""
    return json.dumps(recipe.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def as_change(key: str, value: object) -> str:
    """Format a changed setting as the option --set expects it."""
    return f"{key}={json.dumps(value, ensure_ascii=False, default=_plain)}"


def _plain(value: Any) -> Any:
    """Return numpy's number as one of Python, others as text."""
    return value.item() if hasattr(value, "item") else str(value)


def load_recipe(path: Path | str, changes: list[str] | None = None) -> Loaded:
    """Read a recipe, change it, and check it.

    Args:
        path: A recipe (.yaml), or the settings of a run (.json).
        changes: Such as `stages.finetune.batch_size=64`.

    Raises:
        RecipeError: All mistakes.
    """
    path = Path(path)
    source, document = read_document(path)
    if child(document.value, "cells"):
        raise RecipeError([f"{path} is a study; run it with: lbar run {path}"])
    mistakes = [*document.problems, *_apply_changes(document, changes or [])]
    files = imported_files(child(document.value, "imports"), path.parent if path.suffix == ".json" else None)
    found = list(import_kinds(files.values()))
    _leave_out_nulls(document.value)
    recipe, unfit = _validate(document.value)
    found += [*unfit, *name_mistakes(document.value)]
    if recipe and not found:
        found += ((_keys_of(key), text) for key, text in fit_mistakes(recipe))
    mistakes += [(keys, document.line(keys), text) for keys, text in found]
    if mistakes or recipe is None:
        raise RecipeError(lines_of(path, mistakes))
    return Loaded(recipe, source, tuple(changes or []), files)


def read_document(path: Path) -> tuple[bytes, Document]:
    """Return the bytes and document of a recipe or study.

    Raises:
        KitError: The file is missing, or not YAML.
    """
    hint = "shipped recipes and studies are in recipes/"
    require_file(path, hint)
    if path.suffix not in SUFFIXES:
        raise RecipeError([f"{path}: the name of a recipe or study must end in .yaml; {hint}"])
    document = parse(read_text(path))
    if document.problems and not document.value:
        raise RecipeError(lines_of(path, document.problems))
    return path.read_bytes(), document


def lines_of(path: Path, mistakes: list[Mistake]) -> list[str]:
    """Return a line of messages per key, in file order."""
    by_key: dict[tuple[int, str], list[str]] = {}
    for keys, line, text in mistakes:
        by_key.setdefault((line, ".".join(map(str, keys))), []).append(text)
    return [
        f"{f'{path}:{line}:' if line else '--set'} {cut(key)}{': ' if key else ''}{'; or '.join(dict.fromkeys(texts))}"
        for (line, key), texts in sorted(by_key.items())
    ]


def _keys_of(dotted: str) -> Keys:
    return tuple(int(part) if part.isdecimal() else part for part in dotted.split("."))


def _apply_changes(document: Document, changes: list[str]) -> Iterator[Mistake]:
    """Apply changes such as `a.b.0.c=value`; yield mistakes."""
    for change in changes:
        dotted, equals, text = change.partition("=")
        keys = _keys_of(dotted)
        if not equals or not dotted:
            yield keys, 0, "this text is not a setting; write a setting as key.key=value"
            continue
        value = parse(text)
        if value.problems:
            yield from ((keys, 0, f"{cut(text)!r}: {problem}") for _, _, problem in value.problems)
            continue
        at, last = child(document.value, *keys[:-1]), keys[-1]
        if (isinstance(at, dict) and isinstance(last, str)) or child(at, last) is not None:
            at[last] = value.value if text else None
            kept = {key: line for key, line in document.lines.items() if key[: len(keys)] != keys}
            document.lines = kept | {keys: 0}
        else:
            known = [".".join(map(str, path)) for path, _ in below(document.value)]
            close = difflib.get_close_matches(dotted, known, 1)
            yield keys, 0, f"the recipe has no such key{f'; did you mean {close[0]}?' if close else ''}"


def _leave_out_nulls(value: Any) -> None:
    """Remove entries that are null from some sections."""
    for keys in (("data",), ("stages",), ("rank",), ("model", "audio", "experts")):
        entries = child(value, *keys)
        for name in [name for name, entry in entries.items() if entry is None] if isinstance(entries, dict) else ():
            del entries[name]


def _validate(value: Any) -> tuple[schema.Recipe | None, list[tuple[Keys, str]]]:
    """Return the recipe in a document, or its mistakes."""
    try:
        return schema.Recipe.model_validate(value), []
    except ValidationError as error:
        return None, [(_without_tags(value, item["loc"]), _message_of(item, value)) for item in error.errors()]


def _without_tags(value: Any, location: Keys) -> Keys:
    """Return a mistake's keys, without the kinds that pydantic adds."""
    keys: list[str | int] = []
    fresh = True  # no kind seen yet at this value
    for i, part in enumerate(location):
        is_mapping, is_last = isinstance(value, dict), i == len(location) - 1
        if is_mapping and fresh and value.get("kind") == part and not is_last:
            fresh = False
        elif child(value, part) is not None or (is_mapping and (is_last or part in value)):
            keys.append(part)
            value, fresh = child(value, part), True
    return tuple(keys)


def _message_of(item: Any, document: Any) -> str:
    kind, name = item["type"], str(item["loc"][-1]) if item["loc"] else ""
    if kind == "missing":
        return "this key is missing, but required; add it"
    if kind == "union_tag_invalid":
        known, tag = re.findall("'([^']*)'", item["ctx"]["expected_tags"]), str(item["ctx"]["tag"])
        return f"unknown kind {cut(repr(tag))}; {_likely(tag, known)}kinds: {', '.join(known)}"
    if kind != "extra_forbidden":
        return fault_of(item)
    described = schema.Recipe.model_json_schema()
    known = [key for part in (described, *described["$defs"].values()) for key in part.get("properties", ())]
    places = [".".join(map(str, keys)) for keys, _ in below(document) if len(keys) > 1 and keys[-1] == name]
    is_top = len(item["loc"]) == 1 and places  # the key stands at other places
    hint = f"did you mean {' or '.join(places[:3])}?" if is_top else _likely(name, known)
    return f"settings of this kind do not have this key; {hint or 'remove it'}".rstrip()


def _likely(name: str, known: list[str]) -> str:
    close = [one for one in difflib.get_close_matches(name, known, 2) if one != name]
    return f"did you mean {close[0]}? " if close else ""


def differing(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key and both values of settings that differ."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from differing(a.get(key), b.get(key), f"{at}.{key}" if at else str(key))
    elif a != b:
        yield at, a, b


def import_kinds(files: Iterable[Path]) -> Iterator[tuple[Keys, str]]:
    """Run the files that a recipe imports; yield mistakes."""
    for number, file in enumerate(files):
        try:
            _import_file(file)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            yield ("imports", number), f"{file} cannot be imported: {type(error).__name__}: {first_line(error)}"


def _import_file(path: Path) -> None:
    """Run a Python file, unless its content was run before."""
    module = f"imported_{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    spec = spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise ImportError("the file's name must end in .py")
    if module in IMPORTED:
        IMPORTED.remove(module)
    else:
        sys.modules[module] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    IMPORTED.append(module)


def imported_files(names: object, folder: Path | None) -> dict[str, Path]:
    """Return the files of `imports` by the names of their copies.

    Args:
        folder: Of a run or an exported model, whose copies are used if there are some.
    """
    found = {}
    for number, name in enumerate(map(str, names) if isinstance(names, list) else []):
        copy, file = f"{number}_{Path(name).name}", Path(name)
        kept = folder / "imports" / copy if folder else file
        found[copy] = kept if kept.exists() else file
    return found


def keep_imports(files: Mapping[str, Path], folder: Path) -> None:
    """Copy imported files to a run or an exported model.

    Args:
        files: By the names of their copies.
    """
    for copy, file in files.items():
        with replacing(folder / "imports" / copy) as part:
            shutil.copyfile(file, part)
