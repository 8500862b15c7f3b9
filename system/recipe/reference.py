"""Reference of all keys.

List the type, range, default and meaning of every key of a recipe. The list is generated from the schema.
"""

import ast
import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from data_tools.settings import Strict
from system.recipe.schema import Recipe

Node = dict[str, Any]  # of a JSON schema


class Key(NamedTuple):
    """A key of a section. default: Its YAML text; None: the key is required."""

    name: str
    values: str
    default: str | None
    meaning: str


class Section(NamedTuple):
    """Section of the reference: the keys of one class of settings. path: Dotted path of the settings, such as
    stages.NAME.losses.N, where NAME is any name and N a position in a list. kind: Value of the key `kind`; None for
    settings without this key.
    """

    path: str
    kind: str | None
    meaning: str
    keys: tuple[Key, ...]


@cache
def sections() -> list[Section]:
    """Return the sections of the reference, which contain all keys of a recipe, in the order of a recipe."""
    schema = Recipe.model_json_schema()
    return list(dict.fromkeys(_sections(schema, schema["$defs"], "")))


def at_path(found: list[Section], dotted: str) -> list[Section]:
    """Return the sections of the reference whose path is `dotted`, such as `stages.optimizer`, or begins with it.

    If `dotted` is the path of a single key, its section is returned with only this key.
    `dotted` may also contain names and positions, as in `stages.finetune.optimizer` and `stages.train.losses.0`.
    """
    given = tuple(part for part in dotted.split(".") if part)
    return _sections_at(found, lambda _: _without_placeholders(dotted)) or _sections_at(
        found, lambda section: _without_names(section.path, given, found)
    )


def _sections_at(found: list[Section], path_for: Callable[[Section], tuple[str, ...]]) -> list[Section]:
    """Return the sections at or below a requested path, and the sections with a key at this path.

    A section with such a key is returned with only this key.
    path_for: Function that returns the requested path in the form to compare with a section's path. Where the section's
    path has a placeholder (NAME or N), the name or number in the requested path is left out.
    """
    inside = [
        section
        for section in found
        if _without_placeholders(section.path)[: len(path_for(section))] == path_for(section)
    ]
    holders = [
        section._replace(keys=tuple(key for key in section.keys if key.name == path_for(section)[-1]))
        for section in found
        if _without_placeholders(section.path) == path_for(section)[:-1]
        and any(key.name == path_for(section)[-1] for key in section.keys)
    ]
    return holders + inside


def _without_names(path: str, given: tuple[str, ...], found: list[Section]) -> tuple[str, ...]:
    """Remove names and positions, such as `finetune` and `0`, from the path `given` that a user typed.

    A part of `given` is a name or a position if the section's path `path` has NAME or N in its place.
    The last part of `given` is kept if it is similar to a key of the section, since it is probably a misspelt key.
    """
    remaining, plain, parts = list(given), list[str](), path.split(".")
    for i, part in enumerate(parts, start=1):
        if not remaining:
            break
        keys = [key.name for section in found if section.path == ".".join(parts[:i]) for key in section.keys]
        is_slip = len(remaining) == 1 and difflib.get_close_matches(remaining[0], keys, 1, 0.8)
        if (part == "NAME" and not is_slip) or (part == "N" and remaining[0].isdigit()):
            remaining.pop(0)
        elif part != "N":
            plain.append(remaining.pop(0))
    return (*plain, *remaining)


def paths(found: list[Section]) -> list[str]:
    """Return the dotted paths of all keys in the sections `found`, without the placeholders NAME and N."""
    plain = [(".".join(_without_placeholders(section.path)), section) for section in found]
    keys = [f"{path}.{key.name}".lstrip(".") for path, section in plain for key in section.keys]
    return list(dict.fromkeys([*(path for path, _ in plain if path), *keys]))


def _without_placeholders(path: str) -> tuple[str, ...]:
    """Return the parts of a dotted path of keys, without the placeholders NAME and N."""
    return tuple(part for part in path.split(".") if part not in ("NAME", "N", ""))


def _sections(node: Node, defs: Node, path: str) -> Iterator[Section]:
    """Yield the section on a class of settings, and the sections on all classes nested in this class.

    node: JSON schema of the class. defs: JSON schemas of all classes, by name. path: Dotted path of the settings.
    """
    properties = node["properties"]
    kinds = _listed_values(properties["kind"]) if "kind" in properties else None
    meanings = _meanings(_classes()[node["title"]])
    keys = tuple(
        Key(
            name,
            _describe_values(field, defs),
            None if name in node.get("required", ()) else _yaml(field.get("default")),
            meanings.get(name, ""),
        )
        for name, field in properties.items()
        if name != "kind"
    )
    yield Section(path, kinds, _on_one_line(node.get("description", "").split("\n\n")[0]), keys)
    for name, field in properties.items():
        yield from _nested_sections(field, defs, f"{path}.{name}".lstrip("."))


def _nested_sections(node: Node, defs: Node, path: str) -> Iterator[Section]:
    """Yield a section for each settings class that the value at `path` may have, and for classes nested in it.

    node: JSON schema of the value. defs: JSON schemas of all classes, by name.
    """
    if "$ref" in node:
        yield from _sections(defs[node["$ref"].rpartition("/")[2]], defs, path)
    for choice in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
        yield from _nested_sections(choice, defs, path)
    for named in node.get("patternProperties", {}).values():
        yield from _nested_sections(named, defs, f"{path}.NAME")
    if "items" in node:
        yield from _nested_sections(node["items"], defs, f"{path}.N")


def _describe_values(node: Node, defs: Node) -> str:
    """Describe the allowed values of a key in words, by its JSON schema `node`."""
    if choices := node.get("anyOf") or node.get("oneOf"):
        kinds = [_kind(choice, defs) for choice in choices]
        if all(kinds):
            return f"settings of a kind: {', '.join(kind or '' for kind in kinds)}"
        return " or ".join(_describe_values(choice, defs) for choice in choices)
    if "$ref" in node:
        kind = _kind(node, defs)
        return f"settings of the kind {kind}" if kind else "settings"
    if "const" in node or "enum" in node:
        return _listed_values(node)
    if "patternProperties" in node:
        return f"by name: {_describe_values(next(iter(node['patternProperties'].values())), defs)}"
    if node.get("type") == "array":
        return f"list of {_describe_values(node['items'], defs)}"
    if node.get("type") in ("integer", "number"):
        return f"{'whole number' if node['type'] == 'integer' else 'number'}{_describe_range(node)}"
    if node.get("type") == "string":
        return "name: a letter, then letters, digits and _, all lower case" if "pattern" in node else "text"
    return {"boolean": "true or false", "null": "null"}[node["type"]]


def _kind(node: Node, defs: Node) -> str | None:
    """Return the value of the key `kind` that a settings class requires; None for a class without this key."""
    properties = defs[node["$ref"].rpartition("/")[2]]["properties"] if "$ref" in node else {}
    return _listed_values(properties["kind"]) if "kind" in properties else None


def _listed_values(node: Node) -> str:
    """Return the values that a JSON schema `node` lists (`enum` or `const`) as one text, separated by commas."""
    return ", ".join(map(str, node.get("enum", [node.get("const")])))


def _describe_range(node: Node) -> str:
    """Describe the allowed range of a number, such as ", from 0, to 1", by its JSON schema `node`."""
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f", {word} {node[name]:,}" for name, word in words.items() if name in node)


def _yaml(value: Any) -> str:
    """Format a default value as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _classes() -> dict[str, type[Strict]]:
    """Return a dict from the name of each settings class to the class."""
    found = [Strict]
    for kind in found:
        found += kind.__subclasses__()
    return {kind.__name__: kind for kind in found}


@cache
def _meanings(kind: type[Strict]) -> dict[str, str]:
    """Return a dict from each key of a settings class to its meaning.

    The meaning is the comment after the key in the source, or the key's text in the docstring of the class.
    """
    meanings = {}
    for base in reversed([base for base in kind.__mro__ if issubclass(base, Strict)]):
        lines = inspect.getsource(base).splitlines()
        names = set(base.__annotations__)
        for statement in ast.parse(textwrap.dedent("\n".join(lines))).body[0].body:  # type: ignore[attr-defined]
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                code, _, comment = lines[(statement.end_lineno or 0) - 1].rpartition("  # ")
                if code and comment:
                    meanings[statement.target.id] = _on_one_line(comment)
        text = _on_one_line(inspect.getdoc(base) or "")
        for name in names - meanings.keys():
            if said := re.search(rf"(?:^|[.,;] |, ){name}(?:, \w+)*: (.*?)(?:[.](?= |$)|$)", text):
                meanings[name] = said[1]
    return meanings


def _on_one_line(text: str) -> str:
    """Replace line breaks and repeated spaces by single spaces."""
    return re.sub(r"\s+", " ", text).strip()
