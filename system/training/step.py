"""Gradients of one update.

Usually the whole batch is embedded in one pass, and its loss goes back through that pass. Two things divide a batch:

- chunks (`grad_cache_chunk`): a few items are embedded at a time, since a whole pass does not fit into the memory;
- processes: each GPU embeds its share of the items.

Yet the loss compares all clips with all captions, so it cannot be divided. Both are solved in one way: the parts are
embedded, their embeddings are joined, the loss of the whole batch gives the gradient of each embedding, and each part
takes the gradients of its own embeddings back into the encoders. Chunk i belongs to process i % n; without chunks, each
process has one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from system.batches.loader import divide_into_chunks
from system.devices import in_precision, seed_generators
from system.losses import terms
from system.losses.terms import BatchScores, Ranking, Term, WeightedTriplet, margin_violations
from system.models.batch import Batch, Embedded, gather_embeddings, join_embeddings, own_rows
from system.models.retrieval import RetrievalModel
from system.processes import is_first, process_count, process_index, sum_gradients
from system.recipe import schema

# B items, N captions


class Chunk(NamedTuple):
    """Clips or captions that are embedded together."""

    rows: list[int]  # of the batch
    embed: Callable[[], Embedded]


def add_gradients(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str, scaler: GradScaler
) -> dict[str, torch.Tensor]:
    """Add the scaled gradients of a batch's loss.

    With several processes, each embeds its share of the batch and computes the loss of the whole batch; the gradients
    are summed, so that every process has those of the whole batch. Random draws depend on torch's seed only.

    Returns:
        The loss and its diagnostics. They stay on the GPU, since reading a value would wait for it.
    """
    if stage.grad_cache_chunk is None and process_count() == 1:
        return _backward(embed_and_score(model, batch, precision), stage, scaler)
    return _add_gradients_by_chunks(model, batch, stage, precision, scaler)


def read_numbers(values: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Read numbers from the GPU with a single wait."""
    stacked = torch.stack([value.float() for value in values.values()])
    return dict(zip(values, stacked.tolist(), strict=True))


def embed_and_score(model: RetrievalModel, batch: Batch, precision: str) -> BatchScores:
    """Embed a batch, and score all its pairs.

    Embeddings are computed in `precision`. Scores are always computed in float32, for two reasons: a sum over 512 x 512
    hinges exceeds the largest float16, and bfloat16 has no value between 0.996 and 1.
    """
    with in_precision(model.device, precision):
        clips, captions = model.audio(batch.audio), model.text(batch.captions)
    return model.batch_scores(batch, clips, captions)


def _backward(scores: BatchScores, stage: schema.Stage, scaler: GradScaler) -> dict[str, torch.Tensor]:
    loss = terms.total_loss(scores, stage.losses)
    found = {"loss": loss.detach(), **diagnose(scores, stage.losses)}
    scaler.scale(loss).backward()
    return found


@torch.no_grad()
def diagnose(batch: BatchScores, losses: Sequence[Term]) -> dict[str, torch.Tensor]:
    """Compute mean scores, and shares of violated margins.

    The margins are those of the first term with hinges.

    Returns:
        positive: of matching pairs. hardest_negative: of the hardest negatives, 0 without any. violations, and
        violations_relaxed for a relaxed margin; negatives that the loss does not choose count too.
    """
    highest = batch.scores.masked_fill(batch.same_clip, -math.inf)
    highest = torch.cat([highest.amax(0), highest.amax(1)])
    known, negative = highest.isfinite(), ~batch.same_clip
    hardest = highest.where(known, 0.0).sum() / known.sum().clamp(min=1)
    found = {"positive": batch.scores.diagonal().mean(), "hardest_negative": hardest}
    hinges = [
        term
        for term in losses
        if isinstance(term, Ranking) or (isinstance(term, WeightedTriplet) and term.clamp == "each")
    ]
    if not hinges:
        return found
    for relaxed in (False, True) if hinges[0].needs_relevance else (False,):
        gaps = margin_violations(batch, hinges[0].margin, relaxed)
        above = torch.stack([(negative & (gap > 0)).sum() for gap in gaps]).sum()
        found["violations_relaxed" if relaxed else "violations"] = above / (2 * negative.sum().clamp(min=1))
    return found


def _add_gradients_by_chunks(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str, scaler: GradScaler
) -> dict[str, torch.Tensor]:
    """Add the same gradients, from the parts of a batch.

    The batch is divided into chunks (gradient caching), or among processes.
    With `grad_cache_chunk`, chunks are embedded without a graph and, once the gradients of embeddings are known, again,
    with the same random draws: one more forward pass in the memory of one chunk. Without it, a process embeds its chunk
    of clips and its chunk of captions once, and keeps the graph.

    Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021).
    """
    seed, size = torch.initial_seed(), stage.grad_cache_chunk
    sides = audio_chunks(model, batch, size), caption_chunks(model, batch, size)
    chunks = [*sides[0], *sides[1]]

    def embed(number: int) -> Embedded:
        begin_chunk(seed, number)
        with in_precision(model.device, precision):
            return chunks[number].embed().float()

    with torch.set_grad_enabled(size is None):
        own = {number: embed(number) for number in range(process_index(), len(chunks), process_count())}
    leaves = gather_embeddings(list(own.values()), len(chunks), model.device)
    for leaf in leaves:
        leaf.values.requires_grad_()
    clips = _in_order(leaves[: len(sides[0])], sides[0])
    captions = _in_order(leaves[len(sides[0]) :], sides[1])
    if model.text.counts_padding and captions.lengths is not None:
        captions = Embedded(captions.values, torch.full_like(captions.lengths, captions.values.shape[1]))
    seed_generators(seed)
    values = _backward(model.batch_scores(batch, clips, captions), stage, scaler)
    if not is_first():  # parameters outside the encoders have the full gradient in every process; count it once
        model.zero_grad()
    for number, kept in own.items():
        found = (kept if size is None else embed(number)).values
        gradient = leaves[number].values.grad
        if found.requires_grad and gradient is not None:  # not those of a frozen encoder
            found.backward(gradient if gradient.ndim == 2 else gradient[:, : found.shape[1]])
    sum_gradients(parameter for parameter in model.parameters() if parameter.requires_grad)
    return values


def _in_order(parts: list[Embedded], chunks: list[Chunk]) -> Embedded:
    """Join chunks' embeddings, in the order of the batch."""
    return join_embeddings(parts, [torch.tensor(chunk.rows) for chunk in chunks])


def begin_chunk(seed: int, number: int) -> None:
    """Set torch's random state for a chunk of a step."""
    seed_generators(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def audio_chunks(model: RetrievalModel, batch: Batch, size: int | None) -> list[Chunk]:
    """Divide a batch's clips into chunks of similar length.

    Args:
        size: Clips of a chunk; None: one chunk per process.
    """
    lengths = next(iter(batch.audio.values())).lengths
    chunks = batch.chunks or divide_into_chunks(lengths.tolist(), size, 1)
    place = {row: n for n, row in enumerate(own_rows(batch.chunks))} if batch.chunks else {}

    def embed(rows: list[int]) -> Embedded:
        audio = batch.audio
        if size is not None:  # a process's only chunk keeps its width: see `pad_to_batch` of collate
            places = torch.tensor([place.get(row, row) for row in rows])
            audio = {name: series.rows(places) for name, series in audio.items()}
        found: Embedded = model.audio(audio)
        return found

    return [Chunk(rows, partial(embed, rows)) for rows in chunks]


def caption_chunks(model: RetrievalModel, batch: Batch, size: int | None) -> list[Chunk]:
    """Divide a batch's captions into chunks of similar length.

    Args:
        size: Items whose captions make a chunk; None: one chunk per process.
    """
    lengths = [0] * len(batch.captions)
    if size is not None:
        size, lengths = math.ceil(size * len(batch.captions) / len(batch.clip_keys)), model.text.lengths(batch.captions)
    chunks = divide_into_chunks(lengths, size, process_count())
    return [Chunk(rows, partial(model.text, [batch.captions[row] for row in rows])) for rows in chunks]
