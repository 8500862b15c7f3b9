"""Rank, search and embed clips for the verbs.

Scores are written block by block, so that any number of clips fits.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError, kit_errors
from data_tools.files import replacing, require_other
from data_tools.manifest import Clip, Query, caption_queries, read_queries
from submission.editions import CUSTOM, EDITIONS, get_edition
from submission.formats.csv_files import write_best
from submission.formats.pairs import Pair, write_pairs
from submission.formats.score_matrix import write_blocks
from submission.metrics.summary import Summary, ranks_in_matrix, summarise, summarise_matrix
from system.ranking.embedding import embed_texts, require_known_words, vectors
from system.ranking.entries import matrix_labels
from system.retriever import Hit, Pool, Retriever, list_clips, load_model

# Q queries, C clips, K best clips

SHOWN_WINDOWS = 3  # of a hit


def rank_files(
    open_model: Callable[[], Retriever],
    audio: Path,
    queries: Path | None,
    split: str | None,
    out: Path | None,
    top: int | None,
    allow_unknown: bool,
) -> None:
    """Rank clips, and write all scores or the best.

    The file is a score matrix (.npy); with `top` a ranked CSV of the edition `custom`, or pairs of a query and a clip
    (.jsonl), which a user's own program can score.

    Args:
        open_model: Opens the model, after the files have been read.
        queries: Captions (.csv, .txt); None: those of the clips.
    """
    if out is None or out.suffix not in ([".npy"] if top is None else [".csv", ".jsonl"]):
        known = "scores (.npy), or with --top ranked lists (.csv) or a judge's pairs (.jsonl)"
        raise KitError(f"--out {out or 'is missing'}: name a file for {known}; --score prints metrics")
    require_other(out, [path for path in (queries, audio) if path])
    clips, asked = _listed(audio, queries, split)
    retriever = open_model()
    pool = _pool(retriever, clips, asked, allow_unknown)
    if top is not None and top > len(pool.clips):
        raise KitError(f"--top {top}: only {counted(len(pool.clips), 'clip')} can be ranked; give fewer")
    labels = matrix_labels(pool.clips, asked, retriever.facts.document())
    texts = [query.text for query in asked]
    out.parent.mkdir(parents=True, exist_ok=True)
    if top is None:
        write_blocks(out, labels, retriever.score_blocks(texts, pool))
    else:
        best, scores = retriever.best(texts, pool, top)
        if out.suffix == ".jsonl":
            write_pairs(out, _query_clip_pairs(pool, asked, best, scores))
        else:
            write_best(labels, best, out, replace(get_edition(CUSTOM), ranking_length=top))
    size = "" if top is None else f"{counted(top, 'best clip')}, of "
    print(f"wrote {out}: {counted(len(asked), 'query')} x {size}{counted(len(pool.clips), 'clip')}")


@kit_errors
def evaluate(
    model: Retriever | str | PathLike[str],
    audio: str | PathLike[str],
    split: str | None = None,
) -> Summary:
    """Rank clips for their captions, and return the metrics.

    They are those that `lbar submit score` prints: `values` has them by name, `lines()` with intervals as text.

    Args:
        model: An open one, or what `load_model` opens.
        audio: A manifest (.jsonl).
        split: Of the manifest; None: all.
    """
    clips, asked = _listed(Path(audio), None, split)
    retriever = model if isinstance(model, Retriever) else load_model(model)
    matrix = retriever.matrix(asked, _pool(retriever, clips, asked, False))
    edition = EDITIONS.get(retriever.facts.edition or "")  # of moments: none
    return summarise_matrix(matrix, edition) if edition else summarise(ranks_in_matrix(matrix))


def _listed(audio: Path, queries: Path | None, split: str | None) -> tuple[Sequence[Clip], list[Query]]:
    clips = list_clips(audio, split)
    asked = caption_queries(clips) if queries is None else read_queries(queries)
    if not asked:
        raise KitError(f"{audio} has no captions as queries; name a file of queries after it")
    return clips, asked


def _pool(retriever: Retriever, clips: Sequence[Clip], asked: Sequence[Query], allow_unknown: bool) -> Pool:
    """Embed the clips.

    All queries must have known words, and relevant clips that can be ranked.
    """
    if not allow_unknown:
        require_known_words(retriever.model, asked)
    pool = retriever.open(clips)
    relevant = {clip_id for query in asked for clip_id in query.relevant or []}
    if absent := relevant - {clip.id for clip in pool.clips}:
        reasons = {clip.id: pool.skipped[clip.path] for clip in clips if clip.path in pool.skipped}
        first = f"{min(absent)} ({reasons.get(min(absent), 'not among the clips')})"
        raise KitError(f"{counted(len(absent), 'relevant clip')} cannot be ranked, first {first}; repair them")
    return pool


def _query_clip_pairs(pool: Pool, queries: Sequence[Query], best: np.ndarray, scores: np.ndarray) -> Iterator[Pair]:
    for query, rows, values in zip(queries, best.tolist(), scores.tolist(), strict=True):
        for rank, (row, value) in enumerate(zip(rows, values, strict=True), 1):
            clip = pool.clips[row]
            yield Pair(query.id, query.text, clip.id, str(clip.path), value, rank)


def write_embeddings(retriever: Retriever, listed: Sequence[Clip], out: Path, normalize: bool) -> None:
    """Write embeddings of clips and of their captions (.npz).

    The file has the arrays kind, id, text and embedding (N, D).

    Args:
        normalize: Scale vectors to length 1, so that their products are cosine scores.
    """
    pool = retriever.open(listed)
    clips, captions = pool.clips, caption_queries(pool.clips)
    sounds = texts = vectors(pool.embedded, normalize)
    texts = texts[:0]
    if captions:
        texts = vectors(embed_texts(retriever.model, [caption.text for caption in captions]), normalize)
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


def print_found(retriever: Retriever, clips: Sequence[Clip], texts: Sequence[str], top: int, as_json: bool) -> None:
    """Print the best clips of each text, with times."""
    if not all(text.strip() for text in texts):
        raise KitError("a query is empty; describe a sound, or leave it out")
    retriever.require_known(texts)  # before clips are embedded
    pool = retriever.open(clips)
    found: list[dict[str, Any]] = [
        {"query": text, "unknown": retriever.model.text.unknown_words(text), "clips": list(map(_shown, hits))}
        for text, hits in zip(texts, retriever.search(texts, pool, top), strict=True)
    ]
    if as_json:
        print(json.dumps({"clips": len(pool.clips), "skipped": dict(pool.skipped), "queries": found}))
        return
    for one in found:
        print(one["query"])
        if one["unknown"]:
            print(f"      words that the model does not know: {', '.join(one['unknown'])}")
        for rank, clip in enumerate(one["clips"], 1):
            times = ", ".join(f"{start:.2f} to {end:.2f} s" for start, end in clip["windows"] or ())
            print(f"{rank:4}  {clip['score']:7.4f}  {clip['path']}  {times}".rstrip())


def _shown(hit: Hit) -> dict[str, Any]:
    """Return a hit's path, score and best windows (seconds)."""
    windows = hit.located and [(round(one.start, 3), round(one.end, 3)) for one in hit.located.windows[:SHOWN_WINDOWS]]
    return {"path": hit.path, "score": round(hit.score, 6), "windows": windows}
