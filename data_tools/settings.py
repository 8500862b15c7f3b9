"""Settings in YAML and JSON, with the line of each fault."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_tools.errors import KitError, first_line
from data_tools.files import read_json

Shape = TypeVar("Shape", bound=BaseModel)

# Used in keys and file names; the name of a run's folder has a date, a recipe, a seed and a commit, at most 255 bytes.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)]
Positive = Annotated[int, Field(ge=1, le=1_000_000)]  # a count: of epochs, steps, items
Size = Annotated[int, Field(ge=1, le=65_536)]  # of a layer; the widest existing networks have 16,384
Depth = Annotated[int, Field(ge=1, le=1_000)]  # layers in sequence


MAX_SHOWN = 80  # characters of a key or a value in a message


def fault_of(item: Mapping[str, Any]) -> str:
    """Return the message about one fault of a value. item: One of the errors() of a pydantic ValidationError."""
    text, value = item["msg"].removeprefix("Value error, ").removeprefix("Input "), item.get("input")
    if item["type"] == "extra_forbidden":
        return "unknown key; correct it, or remove it"
    if item["type"] == "json_invalid":
        return "not JSON; a manifest, or a file of moments, has one object per line"
    if "dictionary" in text:
        return "should be a mapping of keys to values"
    return f"{text}, not {cut(repr(value))}" if text.startswith("should") and isinstance(value, str | float) else text


def faults_of(error: ValidationError) -> list[str]:
    """Return all faults of a ValidationError, each as `key.key: message`."""
    faults = ((".".join(map(str, item["loc"])), fault_of(item)) for item in error.errors(include_url=False))
    return [f"{key or 'as a whole'}: {text}" for key, text in faults]


def cut(text: str) -> str:
    """Shorten a text to MAX_SHOWN characters for a message."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


class Strict(BaseModel):
    """Settings model: unknown keys and wrong types are errors; values are never converted, or changed after reading."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def read_shaped(path: Path, shape: type[Shape], hint: str) -> Shape:
    """Read a JSON file as a pydantic model. hint: Cure. Raises KitError for a missing or damaged file."""
    try:
        content = read_json(path)
    except KitError as error:
        raise KitError(f"{error}; {hint}") from None
    return require_shape(content, shape, str(path), hint)


def require_shape(content: Any, shape: type[Shape], where: str, hint: str) -> Shape:
    """Return JSON content as a pydantic model. Raises KitError, one line per fault, if it does not fit."""
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        faults = "\n".join(f"{where} is damaged ({fault})" for fault in faults_of(error))
        raise KitError(f"{faults}; {hint}") from None


Keys = tuple[str | int, ...]

_SCALARS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9]{1,4300}")  # Python refuses to read longer ones
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


@dataclass
class Document:
    """A parsed document. A path is the tuple of keys and indices that lead to a value.

    Attributes:
        value: Content as dicts, lists, texts, numbers, truth values and None.
        lines: Line of each value's key, from 1, by its path.
        problems: Keys, line and message of each problem.
    """

    value: Any
    lines: dict[Keys, int] = field(default_factory=dict)
    problems: list[tuple[Keys, int, str]] = field(default_factory=list)

    def line(self, path: Keys) -> int:
        """Return the line of the value at `path`, or of the nearest known value that contains it.

        Parts that are not in the document are skipped, such as the names of union members that pydantic adds.
        """
        known: Keys = ()
        for part in path:
            if (*known, part) in self.lines:
                known = (*known, part)
        return self.lines.get(known, 1)

    def _add(self, node: yaml.Node, path: Keys) -> Any:
        """Return the value of a node; record the lines and problems in it."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._add(item, (*path, number)) for number, item in enumerate(node.value)]
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in result:
                message = f"the key is given twice (first on line {self.lines[(*path, key)]}); keep one"
                self.problems.append(((*path, key), line, message))
            self.lines[(*path, key)] = line
            result[key] = self._add(value_node, (*path, key))
        return result


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    if node.style:  # quoted or block text
        return text
    if text.lower() in _SCALARS:
        return _SCALARS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def parse(text: str | bytes) -> Document:
    """Parse one YAML document (JSON is YAML too). A syntax error gives an empty document with this problem."""
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or first_line(error)
        return Document({}, {}, [((), mark.line + 1 if mark else 1, f"not YAML: {reason}")])
    document = Document({})
    if node is not None:
        document.value = document._add(node, ())
    return document


def parse_yaml(data: bytes) -> Any:
    """Return the value in a YAML document. Raises KitError, with the line, for the first problem."""
    document = parse(data)
    for _, line, text in document.problems:
        raise KitError(f"not YAML (line {line}: {text.removeprefix('not YAML: ')})")
    return document.value
