"""Table of the ranked clips.

Write and read the table of the clips that a run ranked, scores/ENTRY.clips.csv: their audio files, their lengths, and
the norms of the experts' embeddings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.cli import counted
from data_tools.errors import DataError
from data_tools.manifest import Clip
from data_tools.tables import read_table, write_table
from submission.arrays import Floats, Values
from submission.errors import SubmissionError

NORM = "norm "  # prefix of an expert's column


class Clips(NamedTuple):
    """The C clips that a run ranked, in the order of the score matrix.

    Attributes:
        paths: Audio file of each clip.
        seconds: (C,) length of each clip; NaN if not known.
        norms: Dict from expert to the norm of its embedding of each clip, (C,); empty for an entry that is the mean
            of other entries.
    """

    paths: list[Path]
    seconds: Values
    norms: dict[str, Values]


def write_clips(path: Path, clips: Sequence[Clip], norms: Mapping[str, Floats]) -> None:
    """Write the table of a run's ranked clips, one line per clip, with the norm of every expert's embedding of it.

    norms: Dict from expert to the L2 norms, (C,), of its embeddings of the C clips.
    """
    rows = []
    for row, clip in enumerate(clips):
        seconds = "" if clip.seconds is None else f"{clip.seconds:.3f}"
        rows.append([clip.id, clip.path, seconds, *(f"{values[row]:.6g}" for values in norms.values())])
    write_table(path, ["clip", "path", "seconds", *(f"{NORM}{name}" for name in norms)], rows)


def read_clips(path: Path, clip_ids: Sequence[str]) -> Clips:
    """Read the table of a run's ranked clips. clip_ids: Ids of the clips, in the order of the result.

    Raises SubmissionError for a table that cannot be read or lacks a clip, and for a cell that is not a number.
    """
    try:
        by_clip = {row["clip"]: (line, row) for line, row in read_table(path, ["clip", "path", "seconds"])}
    except DataError as error:
        raise SubmissionError(f"{error}; rank the run again to write its table of clips") from None
    if missing := [clip for clip in clip_ids if clip not in by_clip]:
        raise SubmissionError(
            f"{path}: has no line for {counted(len(missing), 'clip')} of the score matrix (first {missing[0]!r}); "
            "rank the run again"
        )
    lines = [by_clip[clip] for clip in clip_ids]
    header = lines[0][1]

    def read_numbers(name: str) -> Values:
        """Return the column `name` of the table as numbers (C,); NaN for empty cells.

        Raises SubmissionError for other text.
        """
        values = np.full(len(lines), np.nan)
        for number, (line, row) in enumerate(lines):
            try:
                values[number] = float(row[name]) if row[name] else np.nan
            except ValueError:
                raise SubmissionError(
                    f"{path}, line {line}: the column {name} has {row[name]!r}, not a number; rank the run again"
                ) from None
        return values

    return Clips(
        paths=[Path(row["path"]) for _, row in lines],
        seconds=read_numbers("seconds"),
        norms={name.removeprefix(NORM): read_numbers(name) for name in header if name.startswith(NORM)},
    )
