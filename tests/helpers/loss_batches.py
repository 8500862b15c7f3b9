"""Batches of given scores, for tests of losses."""

from typing import Any

import torch

from system.losses.terms import BatchScores, Ranking


def batch_of(
    scores: Any,
    clips: Any = None,
    row_of: Any = None,
    relax: Any = None,
    clip_scores: Any = None,
    caption_scores: Any = None,
    **more: Any,
) -> BatchScores:
    """A batch with these scores (B, N), one caption an item by default.

    clips: the clip of each item; by default all differ. relax: margin factors. Scores within a modality are those
    given, or `scores`.
    """
    scores = torch.as_tensor(scores)
    ids = torch.arange(len(scores)) if clips is None else torch.as_tensor(clips)
    return BatchScores(
        scores,
        torch.arange(len(scores)) if row_of is None else torch.as_tensor(row_of),
        ids[:, None] == ids,
        None if relax is None else torch.as_tensor(relax, dtype=scores.dtype),
        lambda: scores if clip_scores is None else torch.as_tensor(clip_scores),
        lambda: scores if caption_scores is None else torch.as_tensor(caption_scores),
        **more,
    )


def ranking(negatives: str = "all", reduce: str = "sum", margin: float = 0.2, relax: str = "none") -> Ranking:
    settings = {"kind": "ranking", "weight": 1, "margin": margin, "relax": relax}
    return Ranking.model_validate({**settings, "negatives": negatives, "reduce": reduce})
