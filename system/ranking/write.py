"""Write scores block by block.

Write a ranker's scores of any clips and queries, or the best clips of every query, block by block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import replacing, require_other
from data_tools.manifest import Query, caption_queries, read_queries
from submission.editions import CUSTOM, get_edition
from submission.formats.csv_files import write_best
from submission.formats.pairs import Pair, write_pairs
from submission.formats.score_matrix import write_blocks
from submission.ordering import require_finite
from system.ranking.base import Pool, Ranker, matrix_labels
from system.ranking.listing import Listed, list_clips

# Q queries, C clips


def rank_files(
    open_model: Callable[[], Ranker],
    audio: Path,
    queries: Path | None,
    split: str | None,
    out: Path,
    top: int | None = None,
    allow_unknown: bool = False,
) -> None:
    """Rank the clips of a folder or a manifest for a file of queries, and print what was written.

    Args:
        open_model: Opens the ranker, after the files have been read.
        queries: Captions (.csv, .txt); None: the captions of the clips.
    """
    if top is None and out.suffix != ".npy":
        hint = "; for ranked lists (.csv) add --top K" if out.suffix == ".csv" else ""
        raise KitError(f"--out {out}: the name of a score matrix must end in .npy{hint}")
    if top is not None and out.suffix not in (".csv", ".jsonl"):
        raise KitError(f"--out {out}: with --top, it must end in .csv for ranked lists, or .jsonl for a judge's pairs")
    require_other(out, [path for path in (queries, audio) if path])
    listed = list_clips(audio, split)
    asked = caption_queries(listed.clips) if queries is None else read_queries(queries)
    if not asked:
        raise KitError(f"{audio} has no captions as queries; name a file of queries after it")
    ranked = write_ranking(open_model(), listed, asked, out, top, allow_unknown)
    best = "" if top is None else f"{counted(top, 'best clip')}, of "
    print(f"wrote {out}: {counted(len(asked), 'query')} x {best}{counted(ranked, 'clip')}")


def write_embeddings(ranker: Ranker, listed: Listed, out: Path, normalize: bool = True) -> None:
    """Write embeddings of clips and of their captions (.npz): kind, id, text and embedding (N, D) of each.

    Args:
        normalize: Scale vectors to length 1, so that their products are cosine scores.
    """
    pool = ranker.open(listed)
    clips, captions = pool.clips, caption_queries(pool.clips)
    sounds = ranker.clip_vectors(pool, normalize)
    texts = ranker.text_vectors([caption.text for caption in captions], normalize) if captions else sounds[:0]
    with replacing(out) as part, part.open("wb") as file:
        np.savez(
            file,
            kind=["clip"] * len(clips) + ["caption"] * len(captions),
            id=[clip.id for clip in clips] + [caption.id for caption in captions],
            text=[clip.path for clip in clips] + [caption.text for caption in captions],
            embedding=np.concatenate([sounds, texts]),
        )
    sizes = f"{counted(len(clips), 'clip')}, {counted(len(captions), 'caption')}"
    print(f"wrote {out}: {sizes}, {counted(sounds.shape[1], 'value')} per embedding")


def write_ranking(
    ranker: Ranker,
    listed: Listed,
    queries: Sequence[Query],
    out: Path,
    top: int | None = None,
    allow_unknown: bool = False,
) -> int:
    """Rank clips, and write all scores or only the `top` clips of each query. Returns: The number of ranked clips.

    Only readable clips are ranked. The file is the score matrix (.npy). With `top`, it is a ranked CSV in the format
    of the edition `custom`, or pairs of a query and a clip (.jsonl), which a user's own program can score. Clips with
    equal scores are ordered by file name.

    Raises: KitError if `top` exceeds the number of clips, for queries without any known word (unless allow_unknown),
        and for a query whose clip is missing or broken. SubmissionError if two queries or clips would be identical in
        a ranked CSV.
    """
    _require_enough_clips(top, len(listed.clips))
    if not allow_unknown:
        ranker.require_known_words(queries)
    pool = ranker.open(listed)
    _require_enough_clips(top, len(pool.clips))
    _require_relevant_clips(queries, listed, pool)
    labels, blocks = matrix_labels(pool.clips, queries, ranker.facts), ranker.scores(queries, pool)
    out.parent.mkdir(parents=True, exist_ok=True)
    if top is None:
        write_blocks(out, labels, blocks)
    else:
        best, scores = [], []
        for block in blocks:
            require_finite(block)
            best.append(pool.order.best(block, top))
            scores.append(np.take_along_axis(block, best[-1], axis=1))
        if out.suffix == ".jsonl":
            write_pairs(out, _query_clip_pairs(pool, queries, np.concatenate(best), np.concatenate(scores)))
        else:
            write_best(labels, np.concatenate(best), out, replace(get_edition(CUSTOM), ranking_length=top))
    return len(pool.clips)


def _query_clip_pairs(pool: Pool, queries: Sequence[Query], best: np.ndarray, scores: np.ndarray) -> Iterator[Pair]:
    """Yield the pairs of every query and each of its best clips. best: (Q, K) indexes in the pool. scores: (Q, K)."""
    for query, rows, values in zip(queries, best.tolist(), scores.tolist(), strict=True):
        for rank, (row, value) in enumerate(zip(rows, values, strict=True), 1):
            clip = pool.clips[row]
            yield Pair(query.id, query.text, clip.id, str(clip.path), value, rank)


def _require_enough_clips(top: int | None, clips: int) -> None:
    """Raise KitError if `top`, the number of clips per query, exceeds the number of clips."""
    if top is not None and top > clips:
        raise KitError(f"--top {top}: only {counted(clips, 'clip')} can be ranked; give {clips} or fewer")


def _require_relevant_clips(queries: Sequence[Query], listed: Listed, pool: Pool) -> None:
    """Raise KitError if the relevant clip of a query cannot be ranked."""
    absent = {clip_id for query in queries for clip_id in query.relevant or []} - {clip.id for clip in pool.clips}
    if absent:
        reasons = {clip.id: pool.skipped[clip.path] for clip in listed.clips if clip.path in pool.skipped}
        first = min(absent)
        raise KitError(
            f"{counted(len(absent), 'relevant clip')} of queries cannot be ranked, first {first} "
            f"({reasons.get(first, 'not among the ranked clips')}); repair the clips, or remove their queries"
        )
