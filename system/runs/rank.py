"""Any clips ranked for any queries by a trained model: all scores, or the best clips of every query. The scores are
computed and written a block of queries after the other, and never held at once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Query
from submission.editions import CUSTOM, get_edition
from submission.formats.ranked_csv import write_best
from submission.formats.score_matrix import Labels, write_blocks
from submission.ordering import ClipOrder, require_finite
from system.runs.open import Trained
from system.runs.pool import Listed, embed
from system.runs.retrieve import embed_texts, labels_of, require_readable

# Q queries, C clips


def rank(
    trained: Trained, listed: Listed, queries: list[Query], out: Path, cache: Path, allow_unknown: bool = False
) -> int:
    """Write the score matrix of queries against the clips that are whole; returns how many those are. KitError when a
    query asks for a clip that is absent or broken."""
    labels, blocks = _scores(trained, listed, queries, cache, allow_unknown)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_blocks(out, labels, blocks)
    return len(labels.clip_ids)


def rank_best(
    trained: Trained,
    listed: Listed,
    queries: list[Query],
    out: Path,
    cache: Path,
    top: int,
    allow_unknown: bool = False,
) -> int:
    """Write the best `top` clips of every query as a ranked CSV with the columns of the edition custom, which are the
    first ones of the matrix that `rank` writes, in submission.ordering's order; returns how many clips were ranked.

    KitError for a `top` beyond the clips, and as of rank; SubmissionError where a ranked CSV could not tell two queries
    or clips apart.
    """
    _require_deep(top, len(listed.clips))
    labels, blocks = _scores(trained, listed, queries, cache, allow_unknown)
    _require_deep(top, len(labels.clip_ids))
    order = ClipOrder(labels.file_names)
    best = []
    for block in blocks:
        require_finite(block)
        best.append(order.best(block, top))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_best(labels, np.concatenate(best), out, replace(get_edition(CUSTOM), ranking_length=top))
    return len(labels.clip_ids)


def _require_deep(top: int, clips: int) -> None:
    if top > clips:
        raise KitError(f"--top {top}: the pool has {counted(clips, 'clip')}; give {clips} or fewer")


def _scores(
    trained: Trained, listed: Listed, queries: list[Query], cache: Path, allow_unknown: bool
) -> tuple[Labels, Iterator[np.ndarray]]:
    """What rows and columns are, and (n, C) scores of n queries after the others."""
    if not allow_unknown:
        require_readable(trained.model, queries)
    pool = embed(trained, listed, cache)
    absent = {clip_id for query in queries for clip_id in query.relevant or []} - {clip.id for clip in pool.clips}
    if absent:
        reasons = {clip.id: pool.skipped[clip.path] for clip in listed.clips if clip.path in pool.skipped}
        first = min(absent)
        raise KitError(
            f"{counted(len(absent), 'clip')} that queries ask for cannot be ranked, first {first} "
            f"({reasons.get(first, 'it is not among the clips')}); repair them, or drop these queries"
        )
    labels = labels_of(pool.clips, queries, trained.facts.document())
    captions = embed_texts(trained.model, [query.text for query in queries])
    return labels, trained.model.score_blocks(captions, pool.embedded)
