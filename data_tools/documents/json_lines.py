"""Strict JSON lines.

Reads JSON lines strictly, with line numbers, one object per line. Finds the faults of published queries of moments.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from data_tools.documents.problems import Fault, Problem, shown
from data_tools.errors import DataError
from data_tools.files import parse_json

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_SECONDS = 1e9  # a larger positive or negative time is a mistake
# Beginnings of files that are not JSON lines.
_KINDS = {
    b"\x93NUMPY": "a NumPy file",
    b"PK\x03\x04": "a zip archive",
    b"[": "one list of JSON",
}

TRUE_WINDOWS = "relevant_windows"
WINDOWS = "pred_relevant_windows"  # key in an answer

Window = list[float]  # [start, end] or [start, end, score]; seconds


class Object(NamedTuple):
    """An object on a line. line: Its number, from 1."""

    line: int
    content: dict[str, Any]


def parse_objects(data: bytes) -> Iterator[Object | Problem]:
    """Yield the objects of a file of JSON lines, one at a time; yield a Problem in place of a bad line.

    Lines end with LF or CR LF, optional for the last one. Bad lines are empty, not UTF-8, not JSON or not an object,
    or contain repeated keys, NaN, Infinity, or numbers so large that they would become Infinity. A file that is not
    JSON lines at all (empty, UTF-16, one list) yields a single Problem on line 1.
    """
    if not data.strip():
        yield Problem(1, "the file is empty", "empty file")
        return
    if kind := next((name for start, name in _KINDS.items() if data.startswith(start)), None):
        problem = f"the file is {kind}, not lines of JSON; write one object per line, in UTF-8"
        yield Problem(1, problem, "another kind of file")
        return
    if data.startswith(_BYTE_ORDER_MARK):
        data = data.removeprefix(_BYTE_ORDER_MARK)
        yield Problem(1, "the file starts with a byte order mark; save it as UTF-8 without one", "byte order mark")
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, start=1):
        if not line.strip():
            yield Problem(number, "the line is empty; remove it", "a line is empty")
            continue
        try:
            content = parse_json(line, "line")
        except DataError as error:
            yield Problem(number, str(error).removeprefix("line: "), "not JSON")
            continue
        if isinstance(content, dict):
            yield Object(number, content)
        else:
            yield Problem(number, f"the line must be an object {{...}}, not {shown(repr(content))}", "no object")


def first_object(data: bytes) -> dict[str, Any]:
    """Return the first object of a file of JSON lines; {} for a file without objects."""
    return next((line.content for line in parse_objects(data) if isinstance(line, Object)), {})


def fault_of_text(content: dict[str, Any], key: str) -> Fault | None:
    """Describe the fault of a required text value: missing, not a text, or blank; None for a valid text."""
    if key not in content:
        return f"{key} is missing", f"no {key}"
    if not isinstance(content[key], str):
        hint = "put it in double quotes" if isinstance(content[key], int | float) else "write it as text"
        return f"{key} must be text, not {shown(repr(content[key]))}; {hint}", f"{key} is no text"
    return None if content[key].strip() else (f"{key} is empty", f"an empty {key}")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def query_faults(content: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of a published query: of its ids, its text, its recording's duration, and its true windows."""
    for key in ("qid", "query"):
        if fault := fault_of_text(content, key):
            yield fault
    yield from recording_faults(content)
    if WINDOWS in content and TRUE_WINDOWS not in content:
        yield (
            f"{WINDOWS} is a key of found windows, not of queries; give the file of the queries",
            "an answer",
        )
    windows = content.get(TRUE_WINDOWS, [])
    if not isinstance(windows, list):
        yield f"{TRUE_WINDOWS} must be a list of [start, end], not {shown(repr(windows))}", "no list of windows"
    else:
        yield from window_faults(windows, frozenset({2}), "[start, end]")


def recording_faults(content: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of a published recording's id (`vid`) and duration. A missing duration is no fault."""
    if fault := fault_of_text(content, "vid"):
        yield fault
    duration = content.get("duration")
    if duration is not None and (not is_number(duration) or duration <= 0):
        yield f"duration must be a number of seconds above 0, not {shown(repr(duration))}", "no duration"


def window_faults(windows: list[Any], widths: frozenset[int], form: str) -> Iterator[Fault]:
    """Yield the faults of windows. widths: Allowed numbers of values per window. form: Correct form, for messages."""
    for number, window in enumerate(windows, start=1):
        if not isinstance(window, list) or len(window) not in widths:
            yield f"window {number} must be {form}, not {shown(repr(window))}", "no window"
        elif not all(map(is_number, window)):
            yield f"window {number} contains a value that is not a number: {shown(repr(window))}", "no number"
        elif any(abs(second) > _MAX_SECONDS for second in window[:2]):
            yield f"window {number} has a time beyond {_MAX_SECONDS:g} s: {shown(repr(window))}", "no time"


def seconds(value: float) -> str:
    """Format a number of seconds for messages.

    >>> seconds(300.0), seconds(2.25)
    ('300 s', '2.25 s')
    """
    return f"{value:.10g} s"
