"""Reference for gradient caching: the same parts in one graph."""

import torch

from system.losses.base import BatchScores
from system.models.batch import Batch
from system.models.embeddings import joined
from system.models.retrieval import RetrievalModel
from system.training.step import audio_parts, begin_part, caption_parts


def in_one_graph(model: RetrievalModel, batch: Batch, size: int) -> BatchScores:
    """Scores from the parts that gradient caching embeds, with the random state of each, and one graph of all."""
    sides, seed, number = [], torch.initial_seed(), 0
    for parts in (audio_parts(model, batch, size), caption_parts(model, batch, size)):
        found = []
        for part in parts.parts:
            begin_part(seed, number)
            found.append(part())
            number += 1
        sides.append(joined(found).rows(parts.order))
    return model.batch_scores(batch, *sides)
