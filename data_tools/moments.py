"""Files of moments.

Reads and writes moments: queries of long recordings, one JSON line each, with the windows that match them.
"""

import json
import logging
from collections.abc import Container, Iterable
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, Strict, model_serializer

from data_tools.cli import counted
from data_tools.documents.annotations import has_published_form
from data_tools.documents.lines import Line, Text, read_lines, unique_items, write_lines
from data_tools.errors import DataError
from data_tools.files import write_text
from data_tools.manifest import Clip, check_caption

NO_MOMENTS = "is not a file of moments, one line of JSON per query; make one by data_tools castella or scenes --moments"

log = logging.getLogger(__name__)

Second = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _require_order(window: tuple[float, float]) -> tuple[float, float]:
    """Return a window unchanged. Raises ValueError if it does not end after its start."""
    if window[1] <= window[0]:
        raise ValueError("the window must end after it starts")
    return window


Window = Annotated[tuple[Second, Second], Strict(False), AfterValidator(_require_order)]  # a list in the file


class Moment(Line):
    """A query and its windows in a recording.

    Attributes:
        id: Id of the query, as published.
        clip: Id of the recording in the manifest.
        windows: [start, end] in seconds, at least one, in any order; None if unknown (a blind list). A window may end
            after the recording.
        found_by: Names of the models that found the windows. Such windows may be used for training, but not for
            validation, ranking or fitting. None, and not written, for true windows.
    """

    text: str
    clip: Text
    windows: Annotated[list[Window], Field(min_length=1)] | None
    found_by: Text | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the moment as a dict for JSON, without an empty `found_by`."""
        content: dict[str, Any] = write(self)
        return content if self.found_by else {key: value for key, value in content.items() if key != "found_by"}


def read_moments(path: Path | str) -> list[Moment]:
    """Read all moments of a file.

    Raises DataError with file and line for bad lines, bad texts, and a repeated id.
    """
    path = Path(path)
    if path.is_file() and has_published_form(path):
        raise DataError(
            f"{path}: is in the format that CASTELLA publishes, not a file of moments; convert it to a manifest "
            "and moments by lbar data castella"
        )
    moments = unique_items(read_lines(path, Moment, NO_MOMENTS), path)
    for number, moment in enumerate(moments, 1):
        check_caption(moment.text, f"{path}, line {number}")
    return moments


def inside_recordings(moments: Iterable[Moment], clips: Iterable[Clip]) -> list[Moment]:
    """Remove windows that begin after the end of the recording; return the moments that still have windows.

    The end of a recording is the clip's length. A warning states the numbers of dropped windows and moments. Moments of
    a blind list are not changed. Raises DataError if moments were given and none remains.
    """
    seconds = {clip.id: clip.seconds for clip in clips}
    given, remaining, n_outside = list(moments), [], 0
    for moment in given:
        end = seconds.get(moment.clip)
        if moment.windows is None or end is None:
            remaining.append(moment)
            continue
        windows = [window for window in moment.windows if window[0] < end]
        n_outside += len(moment.windows) - len(windows)
        if windows:
            remaining.append(moment.model_copy(update={"windows": windows}))
    hint = "lbar data check MANIFEST --moments FILE lists these windows"
    if given and not remaining:
        moments_text = counted(len(given), "moment", ",")
        raise DataError(f"all windows of {moments_text} begin after the end of their recording; {hint}")  # prose: ok
    if n_outside:
        message = (
            "left out windows that begin after the end of their recording (%s), and moments with only such "
            "windows (%s); %s"
        )
        log.warning(message, f"{n_outside:,}", f"{len(given) - len(remaining):,}", hint)
    return remaining


def require_recordings(moments: Iterable[Moment], ids: Container[str], path: Path | str, manifest: Path | str) -> None:
    """Raise DataError if the recording of a moment is not in the manifest, because the moment would be left out.

    ids: Ids of all clips of the manifest. path, manifest: Files of the moments and of the clips, for the message.
    """
    if unknown := next((moment for moment in moments if moment.clip not in ids), None):
        raise DataError(
            f"{path}: recording {unknown.clip} of moment {unknown.id} is not in {manifest}; "
            "name the manifest that was made with these moments"
        )


def require_true(moments: Iterable[Moment], use: str) -> None:
    """Raise DataError if models found the windows of any moment. use: Purpose of the moments, for the message."""
    if found := next((moment for moment in moments if moment.found_by), None):
        raise DataError(
            f"{use} needs true windows, but the windows of moment {found.id} were found by {found.found_by}; use "
            "a data source with true windows"
        )


def write_moments(path: Path | str, moments: Iterable[Moment]) -> None:
    """Write moments, one per line. Raises DataError for no moments and for a repeated id."""
    write_lines(Path(path), moments)


def require_names(clips: Iterable[Clip]) -> None:
    """Raise DataError if two recordings have the same name: published files identify recordings by name."""
    clip_of: dict[str, str] = {}
    for clip in clips:
        vid = PurePath(clip.file_name).stem
        if (other := clip_of.setdefault(vid, clip.id)) != clip.id:
            raise DataError(f"{clip.id} and {other} would both have the published id {vid}; rename one of the files")


def write_published(path: Path, queries: Iterable[tuple[Moment, Clip]]) -> None:
    """Write queries with their recordings in CASTELLA's format, or as a blind list, for `submission score`.

    A recording is named by its file's name without the suffix. `duration` is omitted if a clip's length is unknown,
    `relevant_windows` if a moment's windows are unknown. The file appears complete or not at all.
    Raises DataError for two recordings with the same name.
    """
    listed, lines = list(queries), []
    require_names(clip for _, clip in listed)
    for moment, clip in listed:
        vid = PurePath(clip.file_name).stem
        line: dict[str, Any] = {"qid": moment.id, "query": moment.text}
        if clip.seconds is not None:
            line["duration"] = int(clip.seconds) if clip.seconds == int(clip.seconds) else clip.seconds
        line["vid"] = vid
        if moment.windows is not None:
            line["relevant_windows"] = moment.windows
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
