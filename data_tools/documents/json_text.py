"""JSON documents: read strictly and within bounds, and sealed, so that damage is noticed.

A sealed document holds, under `checksum`, the sha256 of all else that it holds. Documents of earlier releases have no
such key: they are read, and nothing can be said of their damage.
"""

import codecs
import hashlib
import json
import math
import os
import re
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from data_tools.errors import DataError
from data_tools.files import read_text, write_text

MAX_BYTES = 1 << 30  # of a document; the score matrix of 6,000 clips and 30,000 captions has 5 MB of ids and texts
MAX_DIGITS = 400  # of a number; the longest float that is written out has 327
HALF_PAIR = re.compile("[\ud800-\udfff]")  # of surrogates: text that UTF-8 cannot hold
SEAL = "checksum"
BLOCK = 1 << 22  # bytes of a large file that are read at a time

if TYPE_CHECKING:
    from pydantic import BaseModel

    Shape = TypeVar("Shape", bound=BaseModel)


def parse_json(text: str | bytes, where: str, finite: bool = True, lone_surrogates: bool = False) -> Any:
    """The value of a JSON text.

    where: named in the message, such as "wavcaps.json" or "metrics.jsonl, line 3". finite: refuse NaN and Infinity,
    which are not JSON, and numbers so large that they would become Infinity, such as 1e999. lone_surrogates: let half
    a surrogate pair through, for a caller that replaces it: JSON can write it ("\\ud800"), but UTF-8 cannot hold it.
    Raises DataError for text that is not JSON or not UTF-8, a byte order mark, an object with a key given twice, a
    number of more than MAX_DIGITS digits, lists within lists without end, and lone surrogates.
    """
    text = _decoded(text, where)

    def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise DataError(f"{where}: the key {name!r} is given twice; keep one")
            found[name] = value
        return found

    def refused(name: str) -> Any:
        raise DataError(f"{where}: {name} is no JSON number")

    def whole(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise DataError(f"{where}: a number has {len(digits)} digits, more than {MAX_DIGITS}")
        return int(digits)

    def number(digits: str) -> float:
        if math.isinf(value := float(digits)):
            raise DataError(f"{where}: the number {digits[:MAX_DIGITS]} is too large")
        return value

    strict: dict[str, Any] = {"parse_constant": refused, "parse_float": number} if finite else {}
    try:
        value = json.loads(text, object_pairs_hook=without_repeated_keys, parse_int=whole, **strict)
        if not lone_surrogates and ("\\u" in text or HALF_PAIR.search(text)):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise DataError(f"{where}: lists or objects lie too deep within each other") from None
    except UnicodeEncodeError as error:
        # That of the whole value written as JSON: what stands before the half pair says where to look.
        before = error.object[max(0, error.start - 40) : error.start]
        problem = f"text that UTF-8 cannot hold (half a surrogate pair after {before!a})"
        raise DataError(f"{where}: {problem}; write the whole character") from None
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None


def _decoded(text: str | bytes, where: str) -> str:
    """The text of JSON. Raises DataError for another encoding than UTF-8, and for a byte order mark."""
    if other := other_encoding(text) if isinstance(text, bytes) else "":
        raise DataError(f"{where}: {other}, not UTF-8; save it as UTF-8")
    try:
        found = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    if found.startswith("\ufeff"):
        raise DataError(f"{where}: starts with a byte order mark; remove it, or save it as UTF-8 without one")
    return found


def other_encoding(data: bytes) -> str:
    """UTF-16 or UTF-32, if JSON is encoded so, as its zero bytes or its byte order mark show; "" for another."""
    name = json.detect_encoding(data).upper()
    return "" if name.startswith("UTF-8") else name[:6]


def read_json(path: Path, hint: str) -> Any:
    """The value of a JSON file, its seal checked and taken off.

    hint: what to do about a file that is missing or damaged, the end of the message's sentence.
    Raises DataError as parse_json does, and for a missing file and a seal that does not fit.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}; {hint}")
    try:
        return unsealed(parse_json(path.read_bytes(), str(path)), str(path))
    except DataError as error:
        raise DataError(f"{error}; {hint}") from None


def read_json_lines(path: Path, hint: str, unfinished: bool = False) -> list[Any]:
    """The values of a file of JSON lines. unfinished: a last line without an end, which a kill may leave, is skipped.

    Raises DataError as parse_json does, naming the line.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {hint}") from None
    lines += [rest] if rest and not unfinished else []
    try:
        return [parse_json(line, f"{path}, line {number}", finite=False) for number, line in enumerate(lines, 1)]
    except DataError as error:
        raise DataError(f"{error}; {hint}") from None


def read_shaped(path: Path, shape: "type[Shape]", hint: str) -> "Shape":
    """A JSON file as a pydantic model. Raises DataError as read_json does, and as require_shape."""
    return require_shape(read_json(path, hint), shape, str(path), hint)


def require_shape(content: Any, shape: "type[Shape]", where: str, hint: str) -> "Shape":
    """JSON content as a pydantic model. where: a file, or a line of it. Raises DataError for content of another shape,
    a line a fault, the hint at the end of the last."""
    from pydantic import ValidationError

    from data_tools.documents.strict import faults_of

    try:
        return shape.model_validate(content)
    except ValidationError as error:
        raise DataError(
            "\n".join(f"{where} is damaged ({fault})" for fault in faults_of(error)) + f"; {hint}"
        ) from None


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, whole or not at all; an object is sealed."""
    value = sealed(value) if isinstance(value, dict) else value
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its checksum as the last key."""
    return {**document, SEAL: _checksum(document)}


def unsealed(document: Any, where: str) -> Any:
    """The document without its checksum; what is no object, or has none, as it is.

    Raises DataError where the checksum does not fit.
    """
    if not isinstance(document, dict) or SEAL not in document:
        return document
    content = {name: value for name, value in document.items() if name != SEAL}
    if document[SEAL] != _checksum(content):
        raise DataError(f"{where} is damaged: its checksum does not fit what it holds")
    return content


def _checksum(document: dict[str, Any]) -> str:
    """sha256 of the document's values: blanks and the order of keys do not count."""
    values = json.loads(json.dumps(document))  # keys and tuples as they will be read
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read now. Raises OSError, with the file's name, for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def require_unharmed(path: Path, sha256: str | None, hint: str) -> None:
    """Raises DataError for a file that is missing or is not the one whose sha256 was noted; None: none was noted."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}")
    if sha256 is not None and sha256_of(path) != sha256:
        raise DataError(f"{path} is damaged: it has not the checksum that was noted when it was written; {hint}")


class StoredLines:
    """The lines of a large text file, by their numbers, read when they are asked for. UTF-8; "\n" alone ends a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._state = self._state_now()
        self._starts = array("q")  # first byte of every line, and what would be that of another one

    def _state_now(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def require_unchanged(self) -> None:
        """DataError where the file was changed since it was opened."""
        if self._state_now() != self._state:
            raise DataError(f"{self.path} was changed while it was in use; run the command again")

    def line(self, row: int) -> bytes:
        """A line, with its end. row: from 0 on, of those that `read` has given."""
        start = self._starts[row]
        return os.pread(self._file, self._starts[row + 1] - start, start)

    def read(self) -> Iterator[list[str]]:
        """All lines, without their ends, some thousand at a time; once. DataError for what is not UTF-8."""
        import numpy as np

        start = 0
        self._starts.append(start)
        for block in self._blocks():
            if not start and block.startswith(codecs.BOM_UTF8):
                start = self._starts[0] = len(codecs.BOM_UTF8)
                block = block[start:]
            if b"\0" in block:
                read_text(self.path)  # which names the line
            try:
                lines = block.decode().split("\n")
            except UnicodeDecodeError:
                read_text(self.path)  # says which line
                raise
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            self._starts.frombytes((ends + start + 1).astype(np.int64).tobytes())
            start += len(block) + 1
            self._starts.append(start)
            yield lines

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, some thousand at a time, without the last one's end."""
        rest, at = b"", 0
        while block := os.pread(self._file, BLOCK, at):
            at += len(block)
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole
        if rest:
            yield rest
