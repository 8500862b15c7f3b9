"""Files of a run's entry.

The table of ranked clips, scores/ENTRY.clips.csv, and the probabilities of frames.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_tools.files import require_file, writing
from data_tools.manifest import Clip
from submission.errors import SubmissionError
from submission.ordering import sizes

if TYPE_CHECKING:
    import pandas as pd

NORM = "norm "  # prefix of an expert's column


def write_clips(path: Path, clips: Sequence[Clip], norms: Mapping[str, np.ndarray]) -> None:
    """Write the table of a run's ranked clips.

    Args:
        norms: (C,) norms of each expert's embeddings of the clips.
    """
    import pandas as pd

    columns = {
        "clip": [clip.id for clip in clips],
        "path": [clip.path for clip in clips],
        "seconds": ["" if clip.seconds is None else f"{clip.seconds:.3f}" for clip in clips],
        **{f"{NORM}{name}": [f"{value:.6g}" for value in values] for name, values in norms.items()},
    }
    with writing(path) as file:
        pd.DataFrame(columns).to_csv(file, index=False)


def read_clips(path: Path, clip_ids: Sequence[str]) -> "pd.DataFrame":
    """Read the table of ranked clips, ordered by ids."""
    import pandas as pd

    require_file(path)
    table = pd.read_csv(path, dtype={"clip": str, "path": str}, keep_default_na=False, na_values={"seconds": [""]})
    if missing := set(clip_ids) - set(table["clip"]):
        raise SubmissionError(f"{path}: no line for the clip {min(missing)!r}; rank the run again")
    return table.set_index("clip").loc[list(clip_ids)]


class FrameScores(NamedTuple):
    """Probabilities of the frames of a recording.

    Attributes:
        edges: (T + 1,) of the frames, in seconds.
        frames: (T,) probability to be in a moment.
    """

    edges: np.ndarray
    frames: np.ndarray


def write_frame_scores(path: Path, scores: Mapping[str, FrameScores]) -> None:
    """Write the probabilities of frames, by query id, as .npz."""
    values = list(scores.values())
    with writing(path) as file:
        np.savez_compressed(
            file,
            qids=np.array(list(scores), dtype=np.str_),
            lengths=sizes(value.frames for value in values),
            edges=np.concatenate([value.edges for value in values], dtype=np.float64),
            frames=np.concatenate([value.frames for value in values], dtype=np.float32),
        )


def read_frame_scores(path: Path) -> dict[str, FrameScores]:
    """Read the probabilities of frames, by query id."""
    require_file(path)
    with np.load(path, allow_pickle=False) as file:
        qids, lengths, edges, frames = (file[name] for name in ("qids", "lengths", "edges", "frames"))
    ends = np.cumsum(lengths)
    parts = zip(np.split(edges, (ends + np.arange(1, len(ends) + 1))[:-1]), np.split(frames, ends[:-1]), strict=True)
    return {str(qid): FrameScores(*part) for qid, part in zip(qids, parts, strict=True)}
