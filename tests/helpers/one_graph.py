"""Reference for gradient caching: the same chunks in one graph."""

import torch

from system.losses.terms import BatchScores
from system.models.batch import Batch, join_embeddings
from system.models.retrieval import RetrievalModel
from system.training.step import audio_chunks, begin_chunk, caption_chunks


def in_one_graph(model: RetrievalModel, batch: Batch, size: int) -> BatchScores:
    """Scores from the chunks that gradient caching embeds, with the random state of each, and one graph of all."""
    sides, seed, number = [], torch.initial_seed(), 0
    for chunks in (audio_chunks(model, batch, size), caption_chunks(model, batch, size)):
        found = []
        for chunk in chunks:
            begin_chunk(seed, number)
            found.append(chunk.embed())
            number += 1
        sides.append(join_embeddings(found, [torch.tensor(chunk.rows) for chunk in chunks]))
    return model.batch_scores(batch, *sides)
