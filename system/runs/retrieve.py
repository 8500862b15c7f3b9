"""Embedding clips and captions, and the score matrix of queries against clips."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch

from data_tools.cli import Progress, counted, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from submission.formats.score_matrix import Labels, ScoreMatrix, of_blocks
from system.batches.collate import collate
from system.batches.sampler import Item
from system.features.build import Features
from system.models.batch import Batch
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, Embeddings, Ragged, joined

CLIPS_PER_BATCH = 64
SECONDS_PER_BATCH = 64 * 30  # of clips, each as long as the longest of the batch


class EmbeddedPool(NamedTuple):
    """Clips as a model has embedded them.

    clips: (C, D), or ragged series of their frames. norms: (C,) norms of every expert's embedding by its name, where
    the model averages several: the larger, the more it says in the mean.
    """

    clips: Embeddings
    norms: dict[str, np.ndarray]


class RankedPool(NamedTuple):
    """matrix: of the queries and the clips that have frames. norms: of these clips, as in EmbeddedPool."""

    matrix: ScoreMatrix
    norms: dict[str, np.ndarray]


@contextmanager
def _evaluating(model: RetrievalModel) -> Iterator[None]:
    """Without dropout and gradients; afterwards the model trains on if it did before."""
    before = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(before)


def embed_pool(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> EmbeddedPool:
    """Embed clips, in their order, in one pass; in evaluation mode, so that each is always the same."""
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        return _embed_pool(model, clips, features, bar)


def _embed_pool(model: RetrievalModel, clips: Sequence[Clip], features: Features, bar: Progress) -> EmbeddedPool:
    with _evaluating(model):
        batches, order = _batches(clips, features, model.device)
        parts: list[Embedded] = []
        norms: dict[str, list[torch.Tensor]] = {}
        for batch in batches:
            embedded, each = model.audio.with_each(batch.audio)
            parts.append(embedded)
            for name, values in each.items():
                norms.setdefault(name, []).append(values.norm(dim=1))
            bar.advance(len(batch.clip_keys))
        back = order.argsort()
        by_expert = {name: torch.cat(values)[back].cpu().numpy() for name, values in norms.items()}
        return EmbeddedPool(_in_order(parts, order), by_expert)


def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Embeddings:
    """Embeddings of clips, as embed_pool gives them."""
    return embed_pool(model, clips, features).clips


def embed_in_parts(
    model: RetrievalModel, clips: Sequence[Clip], features: Features, size: int
) -> Iterator[tuple[list[Clip], Embeddings]]:
    """Clips and their embeddings, at most `size` at a time, from the shortest to the longest."""
    bank = next(iter(features.banks.values()))
    by_length = sorted(clips, key=lambda clip: bank.rows[features.keys[clip.id]][1])
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        for start in range(0, len(by_length), size):
            part = by_length[start : start + size]
            yield part, _embed_pool(model, part, features, bar).clips


def _in_order(parts: list[Embedded], order: torch.Tensor) -> Embeddings:
    """The parts' rows, the first of which is of clip order[0]. `parts` is emptied: series of all frames are large."""
    if parts[0].lengths is None:
        return joined(parts).rows(order.argsort())
    lengths = torch.cat([part.lengths for part in parts if part.lengths is not None]).to(order)[order.argsort()]
    ends = lengths.cumsum(0).tolist()
    values = parts[0].values.new_empty(ends[-1], parts[0].values.shape[2])
    rows = iter(order.tolist())
    while parts:
        part = parts.pop(0)
        for series, row in zip(part.values, rows, strict=False):
            begin = ends[row - 1] if row else 0
            values[begin : ends[row]] = series[: ends[row] - begin]
    return Ragged(values, lengths)


def _batches(clips: Sequence[Clip], features: Features, device: torch.device) -> tuple[Iterator[Batch], torch.Tensor]:
    """Batches of clips, and which clip each of their rows is of. Neighbours in length share a batch, so that
    little is padded; padding changes no embedding."""
    first = next(iter(features.banks))
    lengths = [len(features.frames(first, clip.id)) for clip in clips]
    order = sorted(range(len(clips)), key=lengths.__getitem__)
    groups = _groups([lengths[i] for i in order], [clips[i].seconds or 0.0 for i in order])
    batches = (collate([Item(clips[i], ()) for i in order[group]], features).to(device) for group in groups)
    return batches, torch.tensor(order, device=device)


def _groups(lengths: Sequence[int], seconds: Sequence[float]) -> Iterator[slice]:
    """Clips by rising length -> those of a batch: at most CLIPS_PER_BATCH that take SECONDS_PER_BATCH when each is
    filled to the longest, and of which at most half is filling; or one clip.

    lengths: frames of every clip, rising. seconds: of every clip, 0 where that is not known.
    """
    begin = total = 0
    for end, length in enumerate(lengths):
        count = end + 1 - begin
        longest = max(seconds[begin : end + 1])
        full = count > CLIPS_PER_BATCH or count * longest > SECONDS_PER_BATCH or count * length > 2 * (total + length)
        if full and end > begin:
            yield slice(begin, end)
            begin, total = end, 0
        total += length
    if len(lengths) > begin:
        yield slice(begin, len(lengths))


def embed_texts(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """Embeddings of texts, (N, D) in their order, in evaluation mode."""
    with _evaluating(model):
        found: Embedded = model.text(texts)
        return found


def vectors(embedded: Embeddings) -> np.ndarray:
    """(N, D) float32. KitError for a model that has no one vector a clip or text."""
    if embedded.lengths is not None:
        raise KitError("this model compares frames with words and has no one vector of them; use rank")
    found: np.ndarray = embedded.values.float().cpu().numpy()
    return found


def require_readable(model: RetrievalModel, queries: Sequence[Query]) -> None:
    """KitError for queries of which the model knows no word: it would score all clips alike."""
    unknown = set(model.text.unreadable([query.text for query in queries]))
    if named := [query for query in queries if query.text in unknown]:
        raise KitError(
            f"the model knows no word of {counted(len(named), 'query')}, the first has the id {named[0].id}: "
            f"{named[0].text[:60]!r}; reword them, use a pre-trained text encoder, or rank with --allow-unknown"
        )


def matrix_of(
    values: np.ndarray, clips: Sequence[Clip], queries: Sequence[Query], facts: dict[str, Any]
) -> ScoreMatrix:
    """The score matrix of (Q, C) values."""
    labels = labels_of(clips, queries, facts)
    return ScoreMatrix(values, **{field.name: getattr(labels, field.name) for field in fields(labels)})


def labels_of(clips: Sequence[Clip], queries: Sequence[Query], facts: dict[str, Any]) -> Labels:
    """What the rows and columns of the queries' scores against the clips stand for."""
    return Labels(
        query_ids=[query.id for query in queries],
        query_texts=[query.text for query in queries],
        clip_ids=[clip.id for clip in clips],
        file_names=[clip.file_name for clip in clips],
        relevant=[query.relevant for query in queries],
        facts=facts,
    )


def rank_pool(
    model: RetrievalModel, clips: Sequence[Clip], queries: Sequence[Query], features: Features, facts: dict[str, Any]
) -> RankedPool:
    """Scores of every query against every clip that has frames, (Q, C) float32, higher is better; of large pools in a
    temporary file.

    The clips are embedded once. Raises KitError when nothing can be ranked.
    """
    pool = [clip for clip in clips if clip.id in features.keys]
    if not pool or not queries:
        raise KitError(f"nothing to rank: {len(pool)} readable clips, {counted(len(queries), 'query')}")
    embedded, norms = embed_pool(model, pool, features)
    captions = embed_texts(model, [query.text for query in queries])
    return RankedPool(of_blocks(labels_of(pool, queries, facts), model.score_blocks(captions, embedded)), norms)
