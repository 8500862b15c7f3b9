"""Embedding clips and captions, and the score matrix of queries against clips."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from data_tools.cli import Progress, counted, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from submission.formats.score_matrix import ScoreMatrix
from system.batches.collate import collate
from system.batches.sampler import Item
from system.compute.distributed import count, dealt_back, gather_objects, index
from system.features.build import Features
from system.models.gathered import gather_parts
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, joined

CLIPS_PER_BATCH = 64


class EmbeddedPool(NamedTuple):
    """Clips as a model has embedded them.

    clips: (C, D), or a padded series. norms: (C,) norms of every expert's embedding by its name, where the model
    averages several: the larger, the more it says in the mean.
    """

    clips: Embedded
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
    """Embed clips, in their order, in one pass; in evaluation mode, so that each is always the same. Of several
    processes each embeds its share, and all get all."""
    with progress("embedding clips", math.ceil(len(clips) / count()), "clip", keep=False) as bar:
        return _embed_pool(model, clips, features, bar, index(), count())


def _embed_pool(
    model: RetrievalModel,
    clips: Sequence[Clip],
    features: Features,
    bar: Progress,
    process: int = 0,
    processes: int = 1,
) -> EmbeddedPool:
    """process, processes: by which of how many it is done together."""
    with _evaluating(model):
        groups, order = _groups(clips, features, model.device)
        parts: list[Embedded] = []
        norms: list[dict[str, torch.Tensor]] = []
        for group in groups[process::processes]:
            batch = collate([Item(clips[i], ()) for i in group], features).to(model.device)
            embedded, each = model.audio.with_each(batch.audio)
            parts.append(embedded)
            norms.append({name: values.norm(dim=1).cpu() for name, values in each.items()})
            bar.advance(len(group))
        if processes > 1:
            parts = gather_parts(parts, [len(group) for group in groups], model.device)
            norms = dealt_back(gather_objects(norms))
        back = order.argsort().cpu()
        names = norms[0] if norms else {}
        by_expert = {name: torch.cat([one[name] for one in norms])[back].numpy() for name in names}
        return EmbeddedPool(_in_order(parts, order), by_expert)


def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Embedded:
    """Embeddings of clips, as embed_pool gives them."""
    return embed_pool(model, clips, features).clips


def embed_in_parts(
    model: RetrievalModel, clips: Sequence[Clip], features: Features, size: int
) -> Iterator[tuple[list[Clip], Embedded]]:
    """Clips and their embeddings, at most `size` at a time, from the shortest to the longest."""
    bank = next(iter(features.banks.values()))
    by_length = sorted(clips, key=lambda clip: bank.rows_of(features.keys[clip.id]))
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        for start in range(0, len(by_length), size):
            part = by_length[start : start + size]
            yield part, _embed_pool(model, part, features, bar).clips


def _in_order(parts: list[Embedded], order: torch.Tensor) -> Embedded:
    """The parts' rows, the first of which is of clip order[0]. `parts` is emptied: series of all frames are large."""
    if parts[0].lengths is None:
        return joined(parts).rows(order.argsort())
    longest, dim = max(part.values.shape[1] for part in parts), parts[0].values.shape[2]
    values = parts[0].values.new_zeros(len(order), longest, dim)
    lengths = torch.zeros_like(order)
    for rows in order.split([len(part.values) for part in parts]):
        part = parts.pop(0)
        values[rows, : part.values.shape[1]] = part.values
        if part.lengths is not None:
            lengths[rows] = part.lengths.to(lengths)
    return Embedded(values, lengths)


def _groups(clips: Sequence[Clip], features: Features, device: torch.device) -> tuple[list[list[int]], torch.Tensor]:
    """Which clips make a batch, and which clip each of their rows is of. Neighbours in length share a batch, so that
    little is padded; padding changes no embedding."""
    first = next(iter(features.banks))
    order = sorted(range(len(clips)), key=lambda i: len(features.frames(first, clips[i].id)))
    groups = [order[start : start + CLIPS_PER_BATCH] for start in range(0, len(order), CLIPS_PER_BATCH)]
    return groups, torch.tensor(order, device=device)


def embed_texts_together(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """What embed_texts gives; of several processes each embeds its share, and all get all."""
    if count() == 1:
        return embed_texts(model, texts)
    shares = [list(range(first, len(texts), count())) for first in range(count())]
    here = [embed_texts(model, [texts[i] for i in shares[index()]])] if shares[index()] else []
    order = torch.tensor([row for share in shares for row in share], device=model.device).argsort()
    return joined(gather_parts(here, [len(share) for share in shares], model.device)).rows(order)


def score_together(model: RetrievalModel, captions: Embedded, clips: Embedded) -> np.ndarray:
    """(Q, C) scores as model.score_matrix gives them; of several processes each scores its share of the captions, and
    all get all."""
    if count() == 1:
        return model.score_matrix(captions, clips)
    rows = np.array_split(np.arange(len(captions.values)), count())[index()].tolist()
    return np.concatenate(gather_objects(model.score_matrix(captions.rows(rows), clips)))


def embed_texts(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """Embeddings of texts, (N, D) in their order, in evaluation mode."""
    with _evaluating(model):
        found: Embedded = model.text(texts)
        return found


def vectors(embedded: Embedded) -> np.ndarray:
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
    return ScoreMatrix(
        values=values,
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
    """Scores of every query against every clip that has frames, (Q, C) float32, higher is better.

    The clips are embedded once. Raises KitError when nothing can be ranked.
    """
    pool = [clip for clip in clips if clip.id in features.keys]
    if not pool or not queries:
        raise KitError(f"nothing to rank: {len(pool)} readable clips, {counted(len(queries), 'query')}")
    embedded, norms = embed_pool(model, pool, features)
    with torch.inference_mode():
        values = score_together(model, embed_texts_together(model, [query.text for query in queries]), embedded)
    return RankedPool(matrix_of(values, pool, queries, facts), norms)
