"""Strict YAML 1.2.

Parses YAML 1.2 text into plain Python values, with the line of every value, and reports every duplicate key.

Deliberate differences from PyYAML's own loader:

* `1e-4` is a number and `yes` is a string (YAML 1.2 core schema).
* A repeated key is a problem, not a silent overwrite.
* An anchor that is used twice yields two independent values, so that changing one never changes the other.
* A merge key (`<<`) and a tag other than `!!str` are problems. YAML 1.2 has no merge keys, and a tag would repeat the
  value's own type.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.resolver import BaseResolver

from data_tools.errors import DataError

Path = tuple[str | int, ...]

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
MAX_CHARACTERS = 1_000_000  # of a document, or bytes; the longest recipe in the kit has 8,000
MAX_NODES = 20_000  # keys and values, including those that aliases expand to
MAX_DEPTH = 40  # of nested values; a recipe has 8
MAX_NUMBER = 40  # characters
BYTE_ORDER_MARK = "\ufeff"
_TAG = "tag:yaml.org,2002:"


@dataclass
class Document:
    """A parsed document.

    A path is the tuple of keys and list indices that lead to a value.

    Attributes:
        value: The content as dicts, lists, texts, numbers, truth values and None.
        lines: Dict from the path of each value to the line of its key, from 1.
        problems: For each problem: the path, the line and a message.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Return the line number of the value at `path` (keys) or, if not known, of the nearest value that contains it.

        Parts of `path` that are not in the document are skipped, such as the names of union members that pydantic adds.
        """
        known: Path = ()
        for part in path:
            if (*known, part) in self.lines:
                known = (*known, part)
        return self.lines.get(known, 1)


def _scalar_value(node: yaml.ScalarNode) -> Any:
    """Convert a scalar of YAML 1.2 to its Python value: None, a truth value, a number, or text."""
    text = node.value
    if node.style:  # quoted or block text is always a string
        return text
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text[0] in "tT"
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


class _Builder:
    """Converter of YAML nodes to a Document."""

    def __init__(self) -> None:
        """Create the empty document to which YAML nodes are added."""
        self.document = Document(None)
        self.open_nodes: list[int] = []
        self.count = 0

    def problem(self, path: Path, node: yaml.Node, text: str) -> None:
        """Record a problem of a YAML node, with its line."""
        self.document.problems.append((path, node.start_mark.line + 1, text))

    def build(self, node: yaml.Node, path: Path) -> Any:
        """Convert a node of YAML to a Python value; record its line, and any problem."""
        self.count += 1
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if self.count > MAX_NODES or id(node) in self.open_nodes:
            self.problem(path, node, "the aliases expand without end; write the value in place of the alias")
            return None
        if isinstance(node, yaml.ScalarNode):
            if not node.style and len(node.value) > MAX_NUMBER and _FLOAT.match(node.value):
                self.problem(path, node, f"the number has {len(node.value)} characters; write at most {MAX_NUMBER}")
                return None
            return _scalar_value(node)
        self.open_nodes.append(id(node))
        if isinstance(node, yaml.SequenceNode):
            value: Any = [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        else:
            value = self._mapping(node, path)
        self.open_nodes.pop()
        return value

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        """Convert a mapping of YAML to a dictionary; record problems such as repeated keys."""
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.problem(path, key_node, "a key is a list or a mapping; write text in its place")
                continue
            if key == "<<" and not key_node.style:
                self.problem(path, key_node, "a merge key (<<) is not supported; write the merged keys here")
                continue
            if key in result:
                first = self.document.lines[(*path, key)]
                self.problem((*path, key), key_node, f"the key is given twice (first on line {first}); keep one")
                continue
            self.document.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.build(value_node, (*path, key))
        return result


class _Loader(Composer, CParser, BaseResolver):
    """PyYAML's composer on libyaml's parser, with limits, because its recursion and time grow with the input."""

    def __init__(self, text: str | bytes) -> None:
        """Create a parser of the YAML text `text`, without reading it."""
        CParser.__init__(self, text)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.depth = self.count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read and return the next YAML node. Raises ComposerError for too many or too deep nodes, and unknown tags."""
        self.depth, self.count = self.depth + 1, self.count + 1
        event: Any = self.peek_event()
        for count, limit, what in (
            (self.depth, MAX_DEPTH, "nested levels"),
            (self.count, MAX_NODES, "keys and values"),
        ):
            if count > limit:
                raise yaml.composer.ComposerError(None, None, f"more than {limit} {what}", event.start_mark)
        tag = None if isinstance(event, yaml.AliasEvent) else event.tag
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and tag in ("!", _TAG + "str"):
            node.style = node.style or "'"  # treats it as quoted
        elif tag is not None and not (isinstance(node, yaml.CollectionNode) and tag in (_TAG + "seq", _TAG + "map")):
            name = tag.replace(_TAG, "!!")[:MAX_NUMBER]
            raise yaml.composer.ComposerError(
                None, None, f"the tag {name} is not supported; remove it", event.start_mark
            )
        self.depth -= 1
        return node


def parse(text: str | bytes) -> Document:
    """Parse one YAML document (JSON is YAML too); return its value, the lines of its values, and all problems.

    text: Text, or bytes in UTF-8, or in UTF-16 with a byte order mark. For a syntax error, and for a text larger than
    any that a person writes, the result is an empty document with only this problem.
    """
    if len(text) > MAX_CHARACTERS:
        unit = "characters" if isinstance(text, str) else "bytes"
        problem = f"the text has {len(text):,} {unit}, more than {MAX_CHARACTERS:,}; make it shorter"
        return Document({}, {}, [((), 1, problem)])
    try:
        node = yaml.compose(text, Loader=_Loader)  # type: ignore[arg-type]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        if reason == "found character that cannot start any token" and isinstance(text, str) and mark:
            character = text.removeprefix(BYTE_ORDER_MARK)[mark.index]
            reason = f"found the character {character!a}, which cannot begin a value"
        return Document({}, {}, [((), mark.line + 1 if mark else 1, f"not YAML: {reason}")])
    except UnicodeEncodeError:
        problem = "not YAML: the text contains half a surrogate pair; write the whole character"
        return Document({}, {}, [((), 1, problem)])
    builder = _Builder()
    builder.document.value = {} if node is None else builder.build(node, ())
    return builder.document


def parse_yaml(data: bytes) -> Any:
    """Parse one YAML document and return its value.

    Raises DataError, which begins with `not YAML` and names the line, for the first problem.
    """
    document = parse(data)
    for _, line, text in document.problems:
        raise DataError(f"not YAML (line {line}: {text.removeprefix('not YAML: ')})")
    return document.value
