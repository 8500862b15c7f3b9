"""Moments: a line of JSON a query of a long recording, with the windows in which it is heard."""

import json
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Strict
from pydantic_core import PydanticCustomError

from data_tools.documents.lines import Line, Text, read_lines, unique_items, write_lines
from data_tools.files import write_text
from data_tools.manifest import Clip, check_caption

NO_MOMENTS = (
    "is no file of moments, a line of JSON a query; python -m data_tools castella or scenes --moments makes one"
)

Second = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _in_order(window: tuple[float, float]) -> tuple[float, float]:
    if window[1] <= window[0]:
        raise PydanticCustomError("window", "should end after it starts")
    return window


Window = Annotated[tuple[Second, Second], Strict(False), AfterValidator(_in_order)]  # a list in the file


class Moment(Line):
    """A sentence, and when it is heard in a recording.

    id: of the query, as published. clip: id of the recording in the manifest. windows: [start, end] in seconds, in any
    order, and at least one; None where they are not known (a blind list). A window may end behind the recording.
    """

    text: str
    clip: Text
    windows: Annotated[list[Window], Field(min_length=1)] | None


def read_moments(path: Path | str) -> list[Moment]:
    """All moments of a file. Raises DataError with file and line for bad lines, bad texts, and an id that comes
    twice."""
    path = Path(path)
    moments = unique_items(read_lines(path, Moment, NO_MOMENTS), path)
    for number, moment in enumerate(moments, 1):
        check_caption(moment.text, f"{path}, line {number}")
    return moments


def write_moments(path: Path | str, moments: Iterable[Moment]) -> None:
    """Write moments, one a line. Raises DataError for none and for an id that comes twice."""
    write_lines(Path(path), moments)


def write_published(path: Path, queries: Iterable[tuple[Moment, Clip]]) -> None:
    """Write queries with their recordings as CASTELLA is published, or as a blind list: what submission scores against.

    A recording is known by its file's name without the suffix. duration is left out where a clip's length is not known,
    relevant_windows where a moment's windows are not. The file appears whole or not at all.
    """
    lines = []
    for moment, clip in queries:
        line: dict[str, Any] = {"qid": moment.id, "query": moment.text}
        if clip.seconds is not None:
            line["duration"] = int(clip.seconds) if clip.seconds == int(clip.seconds) else clip.seconds
        line["vid"] = PurePath(clip.file_name).stem
        if moment.windows is not None:
            line["relevant_windows"] = moment.windows
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
