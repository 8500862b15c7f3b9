"""YAML 1.2 as plain Python values, with the line of every value and all repeated keys.

Differences from PyYAML's own loader: `1e-4` is a number and `yes` is a text (YAML 1.2 core schema), a repeated key is a
problem, and an anchor that is used twice gives two values.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from data_tools.errors import DataError

Path = tuple[str | int, ...]

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


@dataclass
class Document:
    """A parsed document. A path is the tuple of keys and indices that lead to a value.

    Attributes:
        value: Content as dicts, lists, texts, numbers, truth values and None.
        lines: Line of each value's key, from 1, by its path.
        problems: Path, line and message of each problem.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Return the line of the value at `path`, or of the nearest known value that contains it.

        Parts that are not in the document are skipped, such as the names of union members that pydantic adds.
        """
        known: Path = ()
        for part in path:
            if (*known, part) in self.lines:
                known = (*known, part)
        return self.lines.get(known, 1)

    def _add(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a node; record the lines and problems in it."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._add(item, (*path, number)) for number, item in enumerate(node.value)]
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key, str):
                self.problems.append((path, line, "a key is a list or a mapping; write text in its place"))
            elif key in result:
                message = f"the key is given twice (first on line {self.lines[(*path, key)]}); keep one"
                self.problems.append(((*path, key), line, message))
            else:
                self.lines[(*path, key)] = line
                result[key] = self._add(value_node, (*path, key))
        return result


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style:  # quoted or block text
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def parse(text: str | bytes) -> Document:
    """Parse one YAML document (JSON is YAML too). A syntax error gives an empty document with this problem."""
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        return Document(
            {}, {}, [((), mark.line + 1 if mark else 1, f"not YAML: {reason or str(error).splitlines()[0]}")]
        )
    document = Document({})
    if node is not None:
        document.value = document._add(node, ())
    return document


def parse_yaml(data: bytes) -> Any:
    """Return the value in a YAML document. Raises DataError, with the line, for the first problem."""
    document = parse(data)
    for _, line, text in document.problems:
        raise DataError(f"not YAML (line {line}: {text.removeprefix('not YAML: ')})")
    return document.value
