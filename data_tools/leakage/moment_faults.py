"""Faults of files of moments.

Finds faults in files of moments: in published files (with their repair), and in the kit's own files.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath

from data_tools.documents.annotations import is_annotation, read_annotations
from data_tools.documents.strict import Report
from data_tools.manifest import Clip
from data_tools.moments import Moment, read_moments

NO_CLIP = "moments of a clip that is in no manifest"
BEHIND = "windows after the end of their clip"


class MomentFault(Report):
    """A fault in a file of moments. where: File and line. done: Treatment of the fault; null: the user must fix it."""

    where: str
    finding: str
    text: str
    done: str | None


def moment_faults(paths: Iterable[Path], clips: Collection[Clip]) -> tuple[list[MomentFault], set[str]]:
    """Return the faults of files of moments, and the ids of all clips that have moments in these files.

    A file has the published format of CASTELLA, or the kit's own format of moments. clips: Clips of a manifest, for
    their ids and lengths. Raises DataError for any other file.
    """
    seconds: dict[str, float | None] = {}
    faults: list[MomentFault] = []
    with_queries: set[str] = set()
    for path in paths:
        if path.is_file() and is_annotation(path):
            published = read_annotations(path)
            for where, kind, text, done in published.faults:
                faults.append(MomentFault(where=f"{path}, {where}", finding=kind, text=text, done=done))
            vids = {query.vid for query in published.queries}
            with_queries |= {clip.id for clip in clips if PurePath(clip.file_name).stem in vids}
            continue
        seconds = seconds or {clip.id: clip.seconds for clip in clips}
        moments = read_moments(path)
        with_queries |= {moment.clip for moment in moments}
        for line, moment in enumerate(moments, 1):
            faults += _faults_of_moment(moment, seconds, f"{path}, line {line}")
    return faults, with_queries


def _faults_of_moment(moment: Moment, seconds: Mapping[str, float | None], where: str) -> Iterator[MomentFault]:
    """Yield the faults of one moment: an unknown clip, or windows after the clip's end.

    seconds: Dict from clip id to the length of the clip; None if unknown. where: Place of the moment, for the message.
    """
    if moment.clip not in seconds:
        yield MomentFault(where=where, finding=NO_CLIP, text=f"{moment.id}: unknown clip {moment.clip}", done=None)
        return
    length = seconds[moment.clip]
    for start, end in moment.windows or ():
        if length is not None and end > length:
            text = f"{moment.id}: the window [{start:.10g}, {end:.10g}] ends after the clip of {length:.10g} s"
            is_outside = start >= length
            done = "training ignores this window" if is_outside else "the window is cut at the end of the clip"
            yield MomentFault(where=where, finding=BEHIND, text=text, done=done)
