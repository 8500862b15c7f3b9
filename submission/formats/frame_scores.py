"""Stored probabilities of frames.

Read and write the probability that each frame (short step of a recording) matches a query. A run stores these
probabilities next to the windows that it found.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.files import require_file, writing
from submission.arrays import sizes
from submission.errors import SubmissionError

ARRAYS = ("qids", "lengths", "edges", "frames")


class FrameScores(NamedTuple):
    """Frame probabilities of one query.

    Attributes:
        edges: (T + 1,) times in seconds at which the T frames begin and end.
        frames: (T,) probability that each frame is in a moment of the query, in [0, 1].
    """

    edges: np.ndarray
    frames: np.ndarray


def write_frame_scores(path: Path, scores: Mapping[str, FrameScores]) -> None:
    """Write for each query the probability that each frame is in a moment, to a .npz file. scores: By query id."""
    qids, values = np.array(list(scores), dtype=np.str_), list(scores.values())
    lengths = sizes(value.frames for value in values)
    edges = np.concatenate([value.edges for value in values], dtype=np.float64)
    frames = np.concatenate([value.frames for value in values], dtype=np.float32)
    with writing(path) as file:
        np.savez_compressed(file, qids=qids, lengths=lengths, edges=edges, frames=frames)


def read_frame_scores(path: Path) -> dict[str, FrameScores]:
    """Read the file of write_frame_scores; return a dict from query id to the frames' probabilities, in file order.

    Raises SubmissionError for a damaged file, or one that another program wrote.
    """
    require_file(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            qids, lengths, edges, frames = (file[name] for name in ARRAYS)
        _require_consistent(qids, lengths, edges, frames)
    except Exception as error:  # numpy and zipfile raise many kinds of errors for damaged files
        raise SubmissionError(
            f"{path}: the probabilities of frames cannot be read ({error}); rank the run again to write this file"
        ) from None
    ends = np.cumsum(lengths)
    parts = zip(np.split(edges, (ends + np.arange(1, len(ends) + 1))[:-1]), np.split(frames, ends[:-1]), strict=True)
    return {str(qid): FrameScores(*part) for qid, part in zip(qids, parts, strict=True)}


def _require_consistent(qids: np.ndarray, lengths: np.ndarray, edges: np.ndarray, frames: np.ndarray) -> None:
    """Raises ValueError if the arrays of a file have types or sizes that write_frame_scores never writes."""
    kinds = "".join(array.dtype.kind for array in (qids, lengths, edges, frames))
    if kinds != "Uiff" or any(array.ndim != 1 for array in (qids, lengths, edges, frames)):
        raise ValueError(f"the arrays {', '.join(ARRAYS)} have other types or shapes than `rank --frames` writes")
    if np.any(lengths < 0):
        raise ValueError(f"the array `lengths` contains {lengths.min()}, a negative number of frames")
    if len(qids) != len(lengths) or len(frames) != lengths.sum() or len(edges) != len(frames) + len(qids):
        raise ValueError(f"the sizes of the arrays {', '.join(ARRAYS)} contradict each other")
