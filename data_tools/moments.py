"""Queries of long recordings with windows (CASTELLA, QVHighlights).

One JSON line per query:

    {"qid": "x_1", "query": "A dog barks", "duration": 60, "vid": "x", "relevant_windows": [[3, 5], [10, 12]]}

A blind list has no windows. `vid` is the name of the recording's file without its suffix.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from data_tools.errors import KitError
from data_tools.files import write_text
from data_tools.manifest import TRAINING_SPLITS, Clip, check_caption, read_lines

Window = tuple[float, float]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A query and its windows.

    Attributes:
        id: Id of the query, as published.
        text: Query.
        clip: Id of the recording in the manifest.
        windows: [start, end] in seconds, in any order; None if unknown (a blind list). In scored splits a window may
            end after the recording.
    """

    id: str
    text: str
    clip: str
    windows: list[Window] | None


@validated(frozen=True, slots=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="ignore"))
class Published:
    """A line of a published file."""

    qid: str | int
    query: str
    vid: Annotated[str, Field(min_length=1)]
    duration: Annotated[float, Field(gt=0)] | None = None
    relevant_windows: list[Window] | None = None


_LINE = TypeAdapter(Published)


def read_published(path: Path) -> Iterator[tuple[str, Published]]:
    """Yield (place, query) for each line of a published file.

    Raises KitError for a bad line, and a repeated query id.
    """
    line_of: dict[str, int] = {}
    for number, line in read_lines(path, _LINE):
        where = f"{path}, line {number}"
        check_caption(line.query, where)
        if (first := line_of.setdefault(str(line.qid), number)) != number:
            raise KitError(f"{where}: the query id {line.qid!r} is already on line {first}; keep one of them")
        yield where, line


def repaired(window: Window, seconds: float | None) -> tuple[Window | None, str]:
    """Clip a window to its recording.

    Args:
        window: Start and end, in seconds.
        seconds: Length of the recording; None: unknown, or the end must stay as published.

    Returns:
        The clipped window (None: nothing is left), and its fault; "" without one.

    >>> repaired((70, 81), 83), repaired((5, 5), 83), repaired((80, 84), 83)
    (((70, 81), ''), (None, 'has no length, or ends before it starts'), ((80, 83), 'is not inside the recording'))
    """
    start, end = window
    if end <= start:
        return None, "has no length, or ends before it starts"
    last = end if seconds is None else min(end, seconds)
    inside = max(start, 0.0), last
    if inside == window:
        return window, ""
    return (inside if inside[1] > inside[0] else None), "is not inside the recording"


def read_moments(path: Path, clips: Sequence[Clip], skip_unknown: bool = False) -> list[Moment]:
    """Return the moments of a published file; windows of training splits are clipped to their recordings.

    In validation and test splits a window's end stays as published, because the official scorer uses it. Windows
    without a length are dropped, and queries without a window left. The log says how many.

    Args:
        path: JSON lines.
        clips: Recordings of all splits of a manifest.
        skip_unknown: Leave out queries of other recordings.

    Raises:
        KitError: A line is not a query, or its recording is not among the clips.
    """
    clip_of, faults = by_name(clips), Counter[str]()
    moments = []
    for where, line in read_published(path):
        clip = clip_of.get(line.vid)
        if clip is None:
            if skip_unknown:
                continue
            raise KitError(f"{where}: the recording {line.vid} is not in the manifest; name the manifest that has it")
        windows = line.relevant_windows
        if windows is not None:
            length = (line.duration or clip.seconds) if clip.split in TRAINING_SPLITS else None
            found = [repaired(window, length) for window in windows]
            windows = [window for window, _ in found if window]
            faults.update(f"a window {fault}" for _, fault in found if fault)
            if not windows:
                faults["no window is left, and the query is dropped"] += 1
                continue
        moments.append(Moment(id=str(line.qid), text=line.query, clip=clip.id, windows=windows))
    if faults:
        log.warning("%s: %s", path, "; ".join(f"{count:,} times {fault}" for fault, count in faults.items()))
    return moments


def by_name(clips: Iterable[Clip]) -> dict[str, Clip]:
    """Return each recording by its file's name without suffix. Raises KitError for two recordings of one name."""
    found: dict[str, Clip] = {}
    for clip in clips:
        if (other := found.setdefault(PurePath(clip.file_name).stem, clip)).id != clip.id:
            raise KitError(f"{other.id} and {clip.id} have the same name; rename one of the files")
    return found


def inside_recordings(moments: Iterable[Moment], clips: Iterable[Clip]) -> list[Moment]:
    """Return the moments without windows that begin after the end of their audio; the log says how many.

    Raises KitError if none is left.
    """
    seconds = {clip.id: clip.seconds for clip in clips}
    left, outside = [], 0
    for moment in moments:
        end, windows = seconds.get(moment.clip), moment.windows
        if windows is not None and end is not None:
            inside = [window for window in windows if window[0] < end]
            outside += len(windows) - len(inside)
            if not inside:
                continue
            moment = replace(moment, windows=inside)
        left.append(moment)
    if outside and not left:
        raise KitError(f"all {outside:,} windows begin after the end of their recordings")
    if outside:
        log.warning("left out %d windows that begin after the end of their recordings", outside)
    return left


def write_moments(path: Path, moments: Sequence[Moment], clips: Iterable[Clip]) -> None:
    """Write moments in the published format, or as a blind list if their windows are unknown.

    Args:
        path: File; it appears complete or not at all.
        moments: Moments.
        clips: At least their recordings.
    """
    clip_of, lines = {clip.id: clip for clip in clips}, []
    by_name(clip_of[moment.clip] for moment in moments)
    for moment in moments:
        clip = clip_of[moment.clip]
        line: dict[str, Any] = {"qid": moment.id, "query": moment.text}
        if (seconds := clip.seconds) is not None:
            line["duration"] = int(seconds) if seconds == int(seconds) else seconds
        line["vid"] = PurePath(clip.file_name).stem
        if moment.windows is not None:
            line["relevant_windows"] = moment.windows
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    if not lines:
        raise KitError(f"{path}: not written, because no query is left")
    write_text(path, "".join(lines))
