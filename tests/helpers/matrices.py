"""Small score matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from submission.formats.score_matrix import ScoreMatrix


def matrix_of(
    values: Any, facts: dict[str, Any] | None = None, prefix: str = "c", relevant: Sequence[int] | None = None
) -> ScoreMatrix:
    """Return a score matrix where clip i, or clip relevant[i], is relevant to query i."""
    array = np.array(values, dtype=np.float32)
    clips = [f"{prefix}{n}" for n in range(array.shape[1])]
    return ScoreMatrix(
        values=array,
        query_ids=[f"q{n}" for n in range(len(array))],
        query_texts=[f"text {n}" for n in range(len(array))],
        clip_ids=clips,
        file_names=[f"{clip}.wav" for clip in clips],
        relevant=[[clips[n]] for n in relevant or range(len(array))],
        facts=facts or {},
    )
