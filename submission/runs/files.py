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
    """Write the probabilities of frames, by query id, as .npz.

    arr_0, arr_1 and so on are in the order of qids: edges of frames, then their probabilities and NaN.
    """
    tables = [np.stack([one.edges, np.append(one.frames, np.nan)]) for one in scores.values()]
    with writing(path) as file:
        np.savez_compressed(file, *tables, qids=np.array(list(scores), dtype=np.str_))


def read_frame_scores(path: Path) -> dict[str, FrameScores]:
    """Read the probabilities of frames, by query id."""
    require_file(path)
    with np.load(path, allow_pickle=False) as file:
        tables = [file[f"arr_{number}"] for number in range(len(file["qids"]))]
        return {str(qid): FrameScores(own[0], own[1, :-1]) for qid, own in zip(file["qids"], tables, strict=True)}
