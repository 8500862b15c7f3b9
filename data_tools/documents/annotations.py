"""Published queries of moments, and the faults of their windows.

These files have one of two forms: JSON lines with one query each (CASTELLA's and Clotho-Moment's *_release.jsonl, the
blind list of 2026), or a JSON list of recordings (json/en/*.json in github.com/line/CASTELLA).
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.documents.json_lines import (
    TRUE_WINDOWS,
    WINDOWS,
    fault_of_text,
    first_object,
    parse_objects,
    query_faults,
    recording_faults,
)
from data_tools.documents.json_text import other_encoding, parse_json
from data_tools.documents.problems import Problem
from data_tools.errors import DataError
from data_tools.files import read_text

ROUNDED_UP_SECONDS = 2.0  # published windows may exceed the recording by this, because their ends are rounded up

NO_LENGTH = "windows of no length"
REVERSED = "reversed windows"
BEFORE = "windows that begin before the recording"
BEHIND = "windows that lie outside the recording"
OVER = "windows that end at most 2 s after the recording"
FAR_OVER = "windows that end more than 2 s after the recording"
NONE_LEFT = "queries without a window left"
TWO_LENGTHS = "recordings of two lengths"
NO_SECONDS = "recordings without a length"
# Treatment of each fault in training data.
DONE = {
    NO_LENGTH: "dropped",
    REVERSED: "dropped",
    BEFORE: "clipped to the recording",
    BEHIND: "dropped",
    OVER: "clipped to the recording",
    FAR_OVER: "clipped to the recording",
    NONE_LEFT: "left out",
    TWO_LENGTHS: "the first length is used",
    NO_SECONDS: "windows are kept unchanged",
}
KEPT = "kept as published, because this split is scored"  # in val and test, for windows past a recording's end
SPLIT_OF_NAME = re.compile(  # in a file's name without its suffix
    r"(?:^|_)(train|val|test|development|validation|evaluation)(?:_release)?$"
)
TRAINED = ("train", "development")  # splits whose windows are not scored
_SAID = {
    NO_LENGTH: "has no length",
    REVERSED: "ends before it starts",
    BEFORE: "begins before the recording",
    BEHIND: "is outside",
    OVER: "ends after the end",
    FAR_OVER: "ends far after the end",
}

Window = tuple[float, float]


class Fault(NamedTuple):
    """A fault in a published file that is still readable.

    Attributes:
        where: Place in the file, such as `line 3` or `item 3, moment 2`.
        kind: Kind of the fault, such as `windows of no length`.
        text: Description of this fault.
        done: How the fault was repaired.
    """

    where: str
    kind: str
    text: str
    done: str

    @property
    def sentence(self) -> str:
        """The fault as one line of text: its place in the file, its description, and its repair."""
        return f"{self.where}: {self.text}: {self.done}"


class PublishedQuery(NamedTuple):
    """A published query. windows: After repair, in seconds, in the file's order; None in a blind list."""

    where: str
    qid: str
    text: str
    vid: str
    windows: list[Window] | None


@dataclass
class Annotations:
    """Content of a published file of moments.

    Attributes:
        is_scored: True for the splits val and test. Their windows past a recording's end are not changed, because the
            official scorer uses them.
        queries: Queries in the order of the file.
        seconds: Dict from the id of a recording to its length; None if the file does not state it. It also contains the
            recordings without queries.
        captions: Dict from the id of a recording to the caption of the whole recording.
        faults: Faults of the file, which were repaired.
    """

    is_scored: bool = False

    queries: list[PublishedQuery] = field(default_factory=list)
    seconds: dict[str, float | None] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add_fault(self, where: str, kind: str, text: str, done: str | None = None) -> None:
        """Record a fault of the file. done: How it was repaired; None: in the usual way for this kind of fault."""
        self.faults.append(Fault(where, kind, text, done or DONE[kind]))

    @property
    def is_blind(self) -> bool:
        """Whether the file has queries, but no true windows."""
        return bool(self.queries) and all(query.windows is None for query in self.queries)


def is_annotation(path: Path) -> bool:
    """Return whether a file has published moments: its first line is a query, or it is a list of recordings.

    A UTF-16 file counts as such a file too, so that its reader can report the encoding.
    """
    data = _first_line(path)
    return bool(other_encoding(data)) or _begins_as_published(path, data)


def has_published_form(path: Path) -> bool:
    """Return whether a UTF-8 file begins like published moments, as is_annotation describes; False for UTF-16."""
    return _begins_as_published(path, _first_line(path))


def _first_line(path: Path) -> bytes:
    """Return the first line of a file, or its first MiB."""
    with path.open("rb") as file:
        return file.readline(1 << 20)


def _begins_as_published(path: Path, data: bytes) -> bool:
    """Return whether a file begins like published moments. data: Its first line."""
    if path.suffix == ".json":
        return data.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    first = first_object(data)
    return {"qid", "vid"} <= first.keys() and WINDOWS not in first


def read_annotations(path: Path) -> Annotations:
    """Read a published file of moments; drop or clip faulty windows, and record every fault.

    In val and test, which are scored, windows past the end of a recording stay as published.
    Raises DataError, with file and line or item, for other files, a repeated query id, and missing texts. Also for
    lengths that are not numbers above 0, windows that are not two numbers, and a file where only some queries have
    windows.
    """
    split = SPLIT_OF_NAME.search(path.stem)
    annotations = Annotations(is_scored=split is not None and split[1] not in TRAINED)
    lines: dict[str, str] = {}
    for where, content in _read_recordings(path) if path.suffix == ".json" else _read_queries(path):
        _add_item(annotations, content, where, f"{path}, {where}", lines)
    if any(query.windows is None for query in annotations.queries) and not annotations.is_blind:
        raise DataError(f"{path}: only some queries have relevant_windows; add them to all, or remove them from all")
    return annotations


def _read_queries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("line N", query) for each line of a published file of queries. Raises DataError for a bad line."""
    for line_or_problem in parse_objects(read_text(path).encode()):
        if isinstance(line_or_problem, Problem):
            raise DataError(f"{path}, {line_or_problem}")
        yield f"line {line_or_problem.line}", line_or_problem.content


def _read_recordings(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the queries of a JSON list of recordings, in the form that the lines of *_release.jsonl have.

    For a recording without queries, it yields one item that has no query text.
    """
    items = parse_json(read_text(path), str(path))
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{path}: not a list of recordings, each with yid, duration and moments; correct it")
    for number, item in enumerate(items, 1):
        where = f"item {number}"
        moments = item.get("moments")
        if not isinstance(moments, list) or not all(isinstance(moment, dict) for moment in moments):
            raise DataError(
                f"{path}, {where}: moments must be a list of objects with local_caption and timestamps; correct it"
            )
        common = {"vid": item.get("yid"), "duration": item.get("duration"), "caption": item.get("global_caption")}
        if not moments:
            yield where, common
        for part, moment in enumerate(moments, 1):
            query = {"qid": f"{item.get('yid')}_{part}", "query": moment.get("local_caption")}
            yield f"{where}, moment {part}", common | query | {"relevant_windows": moment.get("timestamps")}


def _add_item(
    annotations: Annotations, content: dict[str, Any], where: str, source: str, lines: dict[str, str]
) -> None:
    """Check a query or recording, repair its windows, and add it and its faults to `annotations`.

    content: The parsed query or recording. where: Its place in the file, such as `line 3`. source: The same place,
    preceded by the file's path. lines: Dict from the id of each earlier query to its place in the file.
    """
    is_asked = "qid" in content or "caption" not in content
    for problem, _ in query_faults(content) if is_asked else recording_faults(content):
        raise DataError(f"{source}: {problem}")
    vid, seconds = content["vid"], content.get("duration")
    if vid not in annotations.seconds and seconds is None:
        annotations.add_fault(where, NO_SECONDS, f"the recording {vid!r} has no duration")
    known = annotations.seconds.setdefault(vid, seconds)
    if known != seconds:
        here, before = (f"{length:.10g} s" if length else "not given" for length in (seconds, known))
        annotations.add_fault(
            where, TWO_LENGTHS, f"the length of the recording {vid!r} is {here}, but {before} earlier in the file"
        )
    if content.get("caption"):
        if fault := fault_of_text(content, "caption"):
            problem, _ = fault
            raise DataError(f"{source}: {problem}")
        annotations.captions[vid] = content["caption"]
    if not is_asked:
        return
    qid, text = content["qid"], content["query"]
    if qid in lines:
        raise DataError(f"{source}: the query id {qid!r} is already in {lines[qid]}; keep one of them")
    lines[qid] = where
    if TRUE_WINDOWS not in content:
        annotations.queries.append(PublishedQuery(where, qid, text, vid, None))
        return
    kept, windows = [], content[TRUE_WINDOWS]
    for window in map(tuple, windows):
        remaining, kind = repaired_window(window, known)
        if kind:
            is_behind = kind in (BEHIND, OVER, FAR_OVER)
            length_text = f" of a recording of {known:.10g} s" if is_behind else ""
            shown = f"[{window[0]:.10g}, {window[1]:.10g}]"
            keeps = is_behind and annotations.is_scored and window[0] >= 0
            remaining = window if keeps else remaining
            annotations.add_fault(
                where, kind, f"{qid}: the window {shown} {_SAID[kind]}{length_text}", KEPT if keeps else None
            )
        if remaining:
            kept.append(remaining)
    if kept:
        annotations.queries.append(PublishedQuery(where, qid, text, vid, kept))
    else:
        annotations.add_fault(where, NONE_LEFT, f"{qid}: the query has no window" + (" left" if windows else ""))


def repaired_window(window: Window, seconds: float | None) -> tuple[Window | None, str]:
    """Return a window clipped to its recording (None: dropped), and the kind of its fault; "" without a fault.

    seconds: Length of the recording; None if unknown.

    >>> repaired_window((70, 81), 83), repaired_window((5, 5), 83), repaired_window((80, 84), 83)
    (((70, 81), ''), (None, 'windows of no length'), ((80, 83), 'windows that end at most 2 s after the recording'))
    """
    start, end = window
    if end == start:
        return None, NO_LENGTH
    if end < start:
        return None, REVERSED
    if seconds is not None and start >= seconds:
        return None, BEHIND
    if seconds is not None and end > seconds:
        return (max(start, 0), seconds), OVER if end - seconds <= ROUNDED_UP_SECONDS else FAR_OVER
    if start < 0:
        return ((0, end), BEFORE) if end > 0 else (None, BEHIND)
    return window, ""
