"""Files of a run's entry.

The table of ranked clips, scores/ENTRY.clips.csv, and the probabilities of frames.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.files import require_file, writing
from data_tools.manifest import Clip
from data_tools.tables import read_table, write_table
from submission.errors import SubmissionError


def write_clips(path: Path, clips: Sequence[Clip]) -> None:
    """Write the table of a run's ranked clips."""
    rows = [[clip.id, clip.path, "" if clip.seconds is None else f"{clip.seconds:.3f}"] for clip in clips]
    write_table(path, ["clip", "path", "seconds"], rows)


def read_clips(path: Path, clip_ids: Sequence[str]) -> list[dict[str, str]]:
    """Read the table of ranked clips, ordered by ids."""
    rows = {row["clip"]: row for _, row in read_table(path, ["clip", "path", "seconds"])}
    if missing := set(clip_ids) - rows.keys():
        raise SubmissionError(f"{path}: no line for the clip {min(missing)!r}; rank the run again")
    return [rows[clip] for clip in clip_ids]


class FrameScores(NamedTuple):
    """Probabilities of the frames of a recording.

    Attributes:
        edges: (T + 1,) of the frames, in seconds.
        frames: (T,) probability to be in a moment.
    """

    edges: np.ndarray
    frames: np.ndarray


def write_frame_scores(path: Path, scores: Mapping[str, FrameScores]) -> None:
    """Write the probabilities of frames as .npz.

    The arrays of a query are called `edges QID` and `frames QID`.
    """
    arrays = {f"{part} {qid}": values for qid, one in scores.items() for part, values in one._asdict().items()}
    with writing(path) as file:
        np.savez_compressed(file, **arrays)


def read_frame_scores(path: Path) -> dict[str, FrameScores]:
    """Read the probabilities of frames, by query id."""
    require_file(path)
    with np.load(path) as file:
        qids = [name.removeprefix("edges ") for name in file if name.startswith("edges ")]
        return {qid: FrameScores(file[f"edges {qid}"], file[f"frames {qid}"]) for qid in qids}
