"""Embedding clips and captions, and the score matrix of queries against clips."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from submission.formats.score_matrix import ScoreMatrix
from system.batches.collate import Batch, collate
from system.batches.sampler import Item
from system.features.build import Features
from system.models.retrieval import RetrievalModel
from system.models.score import Embedded, joined

CLIPS_PER_BATCH = 64


@torch.inference_mode()
def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features, device: torch.device) -> Embedded:
    """Embeddings of clips, (C, D) in their order; the model is put into evaluation mode, so each is always the same."""
    model.eval()
    batches, order = _batches(clips, features, device)
    return _in_order([model.audio(batch.audio) for batch in batches], order)


def _in_order(parts: list[Embedded], order: torch.Tensor) -> Embedded:
    """The parts' rows, the first of which is of clip order[0]. `parts` is emptied: series of all frames are large."""
    if parts[0].lengths is None:
        return joined(parts).rows(order.argsort())
    longest, dim = max(part.values.shape[1] for part in parts), parts[0].values.shape[2]
    values = parts[0].values.new_zeros(len(order), longest, dim)
    lengths = torch.zeros_like(order)
    for places in order.split([len(part.values) for part in parts]):
        part = parts.pop(0)
        values[places, : part.values.shape[1]] = part.values
        if part.lengths is not None:
            lengths[places] = part.lengths.to(lengths)
    return Embedded(values, lengths)


@torch.inference_mode()
def expert_norms(
    model: RetrievalModel, clips: Sequence[Clip], features: Features, device: torch.device
) -> dict[str, np.ndarray]:
    """(C,) norms of every expert's embedding of the clips, in their order: the larger, the more it says in the mean."""
    model.eval()
    batches, order = _batches(clips, features, device)
    back = order.argsort()
    parts = [{name: each.norm(dim=1) for name, each in model.audio.each(batch.audio).items()} for batch in batches]
    return {name: torch.cat([part[name] for part in parts])[back].cpu().numpy() for name in parts[0]}


def _batches(clips: Sequence[Clip], features: Features, device: torch.device) -> tuple[Iterator[Batch], torch.Tensor]:
    """Batches of clips, and which clip each of their rows is of. Neighbours in length share a batch, so that
    little is padded; padding changes no embedding."""
    first = next(iter(features.banks))
    order = sorted(range(len(clips)), key=lambda i: len(features.frames(first, clips[i].id)))
    groups = (order[start : start + CLIPS_PER_BATCH] for start in range(0, len(order), CLIPS_PER_BATCH))
    batches = (collate([Item(clips[i], ()) for i in group], features).to(device) for group in groups)
    return batches, torch.tensor(order, device=device)


@torch.inference_mode()
def embed_texts(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """Embeddings of texts, (N, D) in their order; the model is put into evaluation mode."""
    model.eval()
    return model.text(texts)


def require_readable(model: RetrievalModel, queries: Sequence[Query]) -> None:
    """KitError for queries of which the model knows no word: it would score all clips alike."""
    unknown = set(model.text.unreadable([query.text for query in queries]))
    named = [query for query in queries if query.text in unknown]
    if named:
        raise KitError(
            f"{len(named)} queries have no word that the model knows, the first has the id {named[0].id}: "
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


def score_matrix(
    model: RetrievalModel,
    clips: Sequence[Clip],
    queries: Sequence[Query],
    features: Features,
    device: torch.device,
    facts: dict[str, Any],
) -> ScoreMatrix:
    """Scores of every query against every clip that has frames, (Q, C) float32, higher is better.

    Raises KitError when nothing can be ranked.
    """
    pool = [clip for clip in clips if clip.id in features.keys]
    if not pool or not queries:
        raise KitError(f"nothing to rank: {len(pool)} readable clips, {len(queries)} queries")
    texts = [query.text for query in queries]
    with torch.inference_mode():
        values = model.score(embed_clips(model, pool, features, device), embed_texts(model, texts)).T.float()
    return matrix_of(np.ascontiguousarray(values.cpu().numpy()), pool, queries, facts)
