"""Strict JSON, with checksums.

Reads JSON documents strictly and within limits. Seals documents by a checksum, so that damage is detected.

A sealed document contains, as `checksum`, the sha256 of all other content. Documents of earlier releases have no such
key: they are read, and their damage cannot be detected.
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
MAX_DIGITS = 400  # of a number; the longest float in decimal digits has 327
HALF_PAIR = re.compile("[\ud800-\udfff]")  # half of a surrogate pair: UTF-8 cannot encode it
SEAL = "checksum"
BLOCK = 1 << 22  # bytes of a large file per read

if TYPE_CHECKING:
    from pydantic import BaseModel

    Shape = TypeVar("Shape", bound=BaseModel)
ENDS_BYTES = 2**16  # at each end of a file
VARIED_BYTES = 64  # different values among 4,096 bytes, which sound and compressed sound always have


def parse_json(text: str | bytes, where: str, finite: bool = True, lone_surrogates: bool = False) -> Any:
    r"""Parse a JSON text; return its value. finite: Refuse NaN. lone_surrogates: Accept half of a surrogate pair.

    Args:
        where: Place for the message, such as "wavcaps.json" or "metrics.jsonl, line 3".
        finite: NaN and Infinity are not JSON. Numbers so large that they would become Infinity, such as 1e999, are
            refused too.
        lone_surrogates: For a caller that replaces them. JSON can contain half of a pair ("\ud800"), UTF-8 cannot.
    Raises DataError for text that is not JSON or not UTF-8, a byte order mark, and an object with a repeated key. Also
        for a number of more than MAX_DIGITS digits, too deeply nested lists, and lone surrogates.
    """
    text = _decode(text, where)

    def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Convert the (key, value) pairs of a JSON object to a dict. Raises DataError for a repeated key."""
        items: dict[str, Any] = {}
        for name, value in pairs:
            if name in items:
                raise DataError(f"{where}: the key {name!r} is given twice; keep one")
            items[name] = value
        return items

    def refuse_constant(name: str) -> Any:
        """Raise DataError for a value that JSON does not allow, such as NaN."""
        raise DataError(f"{where}: {name} is not a number in JSON; replace it by a number or null")

    def int_of_digits(digits: str) -> int:
        """Convert the digits of a whole number to an int. Raises DataError for too many digits."""
        if len(digits) > MAX_DIGITS:
            raise DataError(f"{where}: a number has {len(digits)} digits, at most {MAX_DIGITS} are allowed; correct it")
        return int(digits)

    def float_of_digits(digits: str) -> float:
        """Convert the digits of a number with a fraction to a float. Raises DataError if it is too large."""
        if math.isinf(value := float(digits)):
            raise DataError(f"{where}: the number {digits[:MAX_DIGITS]} is too large for a 64-bit float; correct it")
        return value

    strict: dict[str, Any] = {"parse_constant": refuse_constant, "parse_float": float_of_digits} if finite else {}
    try:
        value = json.loads(text, object_pairs_hook=without_repeated_keys, parse_int=int_of_digits, **strict)
        if not lone_surrogates and ("\\u" in text or HALF_PAIR.search(text)):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise DataError(f"{where}: lists or objects are nested too deeply; use fewer levels") from None
    except UnicodeEncodeError as error:
        # The error's text is the whole value as JSON: the part before the half pair shows the place.
        before = error.object[max(0, error.start - 40) : error.start]
        raise DataError(
            f"{where}: contains half a surrogate pair after {before!a}, which UTF-8 cannot encode; write the "
            "whole character"
        ) from None
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None


def _decode(text: str | bytes, where: str) -> str:
    """Decode JSON text. Raises DataError for an encoding other than UTF-8, and for a byte order mark."""
    if encoding := other_encoding(text) if isinstance(text, bytes) else "":
        raise DataError(f"{where}: its encoding is {encoding}, not UTF-8; save it as UTF-8")
    try:
        decoded = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 (at byte {error.start}); save it as UTF-8") from None
    if decoded.startswith("\ufeff"):
        raise DataError(f"{where}: starts with a byte order mark; remove it, or save it as UTF-8 without one")
    return decoded


def other_encoding(data: bytes) -> str:
    """Return "UTF-16" or "UTF-32" if zero bytes or a byte order mark show that encoding, otherwise ""."""
    name = json.detect_encoding(data).upper()
    return "" if name.startswith("UTF-8") else name[:6]


def read_json(path: Path, hint: str) -> Any:
    """Read a JSON file and verify its checksum; return its value without the checksum. hint: End of error messages.

    The hint is advice for a missing or damaged file.
    Raises DataError for a missing or too large file, for text that is not strict JSON, and for a wrong checksum.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, more than the maximum of {MAX_BYTES:,}; {hint}")
    try:
        return unsealed(parse_json(path.read_bytes(), str(path)), str(path))
    except DataError as error:
        raise DataError(f"{error}; {hint}") from None


def read_json_lines(path: Path, hint: str, unfinished: bool = False) -> list[Any]:
    """Read a file of JSON lines; return their values. unfinished: Skip an incomplete last line, which a kill may leave.

    Raises DataError for a missing file, and for a line that is not strict JSON; the message has the line's number.
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
    """Read a JSON file as a pydantic model. Raises DataError as read_json and require_shape do."""
    return require_shape(read_json(path, hint), shape, str(path), hint)


def require_shape(content: Any, shape: "type[Shape]", where: str, hint: str) -> "Shape":
    """Convert parsed JSON to an object of the pydantic model `shape`. Raises DataError if it does not fit.

    where: Name of the file, and line if any, for the message. hint: Advice at the end of the message.
    The message has one line per fault.
    """
    from pydantic import ValidationError

    from data_tools.documents.strict import faults_of

    try:
        return shape.model_validate(content)
    except ValidationError as error:
        raise DataError(
            "\n".join(f"{where} is damaged ({fault})" for fault in faults_of(error)) + f"; {hint}"
        ) from None


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, completely or not at all; an object gets a checksum."""
    value = sealed(value) if isinstance(value, dict) else value
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the document with its checksum as the last key."""
    return {**document, SEAL: _checksum(document)}


def unsealed(document: Any, where: str) -> Any:
    """Verify a document's checksum and return the document without it. Raises DataError for a wrong checksum.

    A value without a checksum is returned unchanged.
    """
    if not isinstance(document, dict) or SEAL not in document:
        return document
    content = {name: value for name, value in document.items() if name != SEAL}
    if document[SEAL] != _checksum(content):
        raise DataError(f"{where} is damaged: its checksum does not match its content")
    return content


def _checksum(document: dict[str, Any]) -> str:
    """Return the sha256 of the document's values: blanks and the order of keys do not count."""
    values = json.loads(json.dumps(document))  # keys and tuples as a reader will get them
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read now. Raises OSError, with the file's name, for an unreadable file."""
    return checksum_of(path, "sha256")


def checksum_of(path: Path, kind: str) -> str:
    """Return a checksum of a file. kind: Name of the algorithm in hashlib, such as "md5". Raises as sha256_of does."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def quick_sha256(path: Path) -> str:
    """Return a checksum of a file's size, and of its first and last 64 KiB (ENDS_BYTES), without reading the rest.

    If both ends are nearly constant, as in digital silence, the result is the sha256 of all bytes, because different
    files of equal length often have such ends in common. Raises OSError for a missing or unreadable file.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(ENDS_BYTES)
        file.seek(max(0, size - ENDS_BYTES))
        last = file.read(ENDS_BYTES)
    if all(len(set(part[::16])) < VARIED_BYTES for part in (first, last)):
        return sha256_of(path)
    return hashlib.sha256(f"{size}\n".encode() + first + last).hexdigest()


def require_unharmed(path: Path, sha256: str | None, hint: str) -> None:
    """Raise DataError for a missing file, and for another checksum than `sha256`, if given. hint: Advice for errors."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {hint}")
    if sha256 is not None and sha256_of(path) != sha256:
        raise DataError(f"{path} is damaged: its checksum differs from the one noted when it was written; {hint}")


class StoredLines:
    """Lines of a large UTF-8 text file, by their numbers, read on demand. Only LF ends a line."""

    def __init__(self, path: Path) -> None:
        """Open the file `path` for reading. The first pass of `read` finds its lines."""
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._state = self._state_now()
        self._starts = array("q")  # first byte of every line, and the end of the last one

    def _state_now(self) -> tuple[int, int]:
        """Return the file's current size, and the time of its last change."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def require_unchanged(self) -> None:
        """Raise DataError if the file was changed after it was opened."""
        if self._state_now() != self._state:
            raise DataError(f"{self.path} was changed while it was in use; run the command again")

    def line(self, row: int) -> bytes:
        """Return a line, with its line end. row: Index of the line among those that `read` has yielded, from 0."""
        start = self._starts[row]
        return os.pread(self._file, self._starts[row + 1] - start, start)

    def read(self) -> Iterator[list[str]]:
        """Yield all lines of the file, without line ends, in lists of some thousand lines. Call this only once.

        Raises DataError for text that is not UTF-8.
        """
        import numpy as np

        start = 0
        self._starts.append(start)
        for block in self._blocks():
            if not start and block.startswith(codecs.BOM_UTF8):
                start = self._starts[0] = len(codecs.BOM_UTF8)
                block = block[start:]
            if b"\0" in block:
                read_text(self.path)  # raises an error that names the line
            try:
                lines = block.decode().split("\n")
            except UnicodeDecodeError:
                read_text(self.path)  # raises an error that names the line
                raise
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            self._starts.frombytes((ends + start + 1).astype(np.int64).tobytes())
            start += len(block) + 1
            self._starts.append(start)
            yield lines

    def _blocks(self) -> Iterator[bytes]:
        """Yield the file in blocks of some thousand whole lines, without the line end after a block."""
        rest, at = b"", 0
        while block := os.pread(self._file, BLOCK, at):
            at += len(block)
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole
        if rest:
            yield rest
