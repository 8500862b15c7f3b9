"""Gradients of one update.

Compute the gradients of one update, either for the whole batch in one pass, or for a few items at a time.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from system.batches.loader import divide_into_chunks
from system.compute.device import in_precision, on_device, seed_generators
from system.compute.processes import is_first, process_count, process_index, sum_gradients
from system.losses import terms
from system.losses.diagnostics import diagnose
from system.losses.terms import BatchScores
from system.models.batch import Batch, own_rows
from system.models.embeddings import Embedded, concatenate_embeddings, gather_embeddings
from system.models.retrieval import RetrievalModel
from system.recipe import schema

# B items, N captions


def add_gradients(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str, scaler: GradScaler
) -> dict[str, torch.Tensor]:
    """Add the gradients of a batch's loss to the model's parameters; return the loss and its diagnostics.

    The gradients are scaled by `scaler`.
    With several processes, each embeds its share of the batch and computes the loss of the whole batch. The gradients
    of all processes are summed, so that every process gets the gradients of the whole batch. Random draws depend on
    torch's seed only.

    Returns: A dict with "loss" and the values of `diagnose`. They stay on the GPU, since reading a value would
    wait for the GPU.
    """
    if stage.grad_cache_chunk is None and process_count() == 1:
        return _compute_loss_and_gradients(embed_and_score(model, batch, precision), stage, scaler)
    return _add_gradients_by_chunks(model, batch, stage, precision, scaler)


def read_numbers(values: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Read several values from the GPU as numbers, with a single wait. values: Tensors with one element each."""
    stacked = torch.stack([value.float() for value in values.values()])
    return dict(zip(values, stacked.tolist(), strict=True))


def embed_and_score(model: RetrievalModel, batch: Batch, precision: str) -> BatchScores:
    """Embed a batch, and score all pairs of its clips and captions.

    Embeddings are computed in `precision`. Scores are always computed in float32, for two reasons: a sum over 512 x 512
    hinges exceeds the largest float16, and bfloat16 has no value between 0.996 and 1.
    """
    with in_precision(batch.row_of.device, precision):
        clips, captions = model.embed(batch)
    return model.batch_scores(batch, clips, captions)


def _compute_loss_and_gradients(
    scores: BatchScores, stage: schema.Stage, scaler: GradScaler
) -> dict[str, torch.Tensor]:
    """Compute the loss and its gradients; return a dict with the loss and diagnostics, such as mean scores."""
    loss = terms.total_loss(scores, stage.losses)
    diagnostics = {"loss": loss.detach(), **diagnose(scores, stage.losses)}
    scaler.scale(loss).backward()
    return diagnostics


def _add_gradients_by_chunks(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str, scaler: GradScaler
) -> dict[str, torch.Tensor]:
    """Add the gradients of a batch that is divided into chunks; return the loss and its diagnostics.

    First the gradients of the loss with respect to the embeddings are computed. Then the gradients of the encoders are
    computed, one chunk at a time. With `grad_cache_chunk` (gradient caching), each chunk is first embedded without a
    graph, and later again with a graph. This needs the memory of one chunk, and one more forward pass. Without
    `grad_cache_chunk`, each process has only one chunk, embeds it once, and keeps its graph.

    The random state of a chunk depends on the step and the chunk's number only. The random draws of a chunk are thus
    the same in any process. Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup" (2021).
    """
    seed, size, device = torch.initial_seed(), stage.grad_cache_chunk, batch.row_of.device
    clips, captions = audio_chunks(model, batch, size), caption_chunks(model, batch, size)
    sides: list[list[_Embedding]] = []
    gathered = []
    first = 0
    for side in (clips, captions):
        local = {}
        for number in range(process_index(), len(side.chunks), process_count()):
            begin_chunk(seed, first + number)
            with torch.set_grad_enabled(size is None), in_precision(device, precision):
                local[number] = side.chunks[number]().float()
        leaves = gather_embeddings(list(local.values()), len(side.chunks), device)
        for leaf in leaves:
            leaf.values.requires_grad_()
        found = concatenate_embeddings(leaves).rows(on_device(side.order, device))
        if side is captions and model.text.counts_padding and found.lengths is not None:
            found = Embedded(found.values, torch.full_like(found.lengths, found.values.shape[1]))
        gathered.append(found)
        kept = local if size is None else {}
        sides.append([_Embedding(first + n, side.chunks[n], kept.get(n), leaves[n]) for n in local])
        first += len(side.chunks)
    seed_generators(seed)
    values = _compute_loss_and_gradients(model.batch_scores(batch, *gathered), stage, scaler)
    if not is_first():  # parameters outside the encoders have the full gradient in every process; count it once
        for parameter in model.parameters():
            parameter.grad = None
    for one in [*sides[0], *sides[1]]:
        one.backward(seed, lambda: in_precision(device, precision))
    sum_gradients(parameter for parameter in model.parameters() if parameter.requires_grad)
    return values


Chunk = Callable[[], Embedded]


class Chunks(NamedTuple):
    """The chunks of a batch's clips, or of its captions, including chunks of other processes.

    chunks: Functions that each embed the rows of a chunk. sizes: Number of rows of each chunk. order: For each row of
    the batch, its index among the rows of all chunks.
    """

    chunks: list[Chunk]
    sizes: list[int]
    order: torch.Tensor


class _Embedding(NamedTuple):
    """A chunk that this process has embedded.

    number: Number of the chunk, which determines its random state. chunk: Function that embeds the chunk. found:
    Embedding with its graph; None if the graph was not kept. leaf: Copy of the embedding that the loss uses.
    """

    number: int
    chunk: Chunk
    found: Embedded | None
    leaf: Embedded

    def backward(self, seed: int, in_precision: Callable[[], AbstractContextManager[object]]) -> None:
        """Propagate gradients from a chunk's embedding to the encoder.

        If the chunk was embedded without a graph, it is first embedded again, with the same random draws as before.
        seed: Seed of these draws. in_precision: Returns a context manager that sets the precision of embedding.
        """
        found = self.found
        if found is None:
            begin_chunk(seed, self.number)
            with in_precision():
                found = self.chunk().float()
        values = found.values
        if values.requires_grad:  # a frozen encoder without a projection has no trainable parameters
            gradient = self.leaf.values.grad
            assert gradient is not None
            values.backward(gradient if gradient.ndim == 2 else gradient[:, : values.shape[1]])


def begin_chunk(seed: int, number: int) -> None:
    """Set torch's random state for the chunk `number` of a training step. seed: Seed of the training step."""
    seed_generators(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def audio_chunks(model: RetrievalModel, batch: Batch, size: int | None) -> Chunks:
    """Divide a batch's clips into chunks of `size` clips of similar length. size: None for one chunk per process."""
    lengths = next(iter(batch.audio.values())).lengths
    chunks = batch.chunks or divide_into_chunks(lengths.tolist(), size, 1)
    position = {row: n for n, row in enumerate(own_rows(batch.chunks))} if batch.chunks else {}

    def embed_rows(rows: list[int]) -> Embedded:
        """Embed the clips at the indexes `rows` of the batch."""
        audio = batch.audio
        if size is not None:
            positions = torch.tensor([position.get(row, row) for row in rows])
            audio = {name: series.rows(positions) for name, series in audio.items()}
        found: Embedded = model.audio(audio)  # a process's only chunk keeps its width: see `pad_to_batch` of collate
        return found

    return _make_chunks(embed_rows, chunks)


def caption_chunks(model: RetrievalModel, batch: Batch, size: int | None) -> Chunks:
    """Divide a batch's captions into chunks; with a `size`, the captions of a chunk have similar lengths.

    size: Number of items whose captions are in a chunk, on average; None for one chunk per process.
    """
    if size is not None:
        size = math.ceil(size * len(batch.captions) / len(batch.clip_keys))
    lengths = model.text.lengths(batch.captions) if size is not None else [0] * len(batch.captions)
    rows = divide_into_chunks(lengths, size, process_count())
    return _make_chunks(lambda rows: model.text([batch.captions[i] for i in rows]), rows)


def _make_chunks(embedded: Callable[[list[int]], Embedded], rows: list[list[int]]) -> Chunks:
    """Return each chunk's embedding function and size, and the indexes that put all embeddings in the batch's order.

    embedded: Function that embeds the clips or captions at given indexes. rows: Indexes of each chunk.
    """
    order = torch.tensor([row for chunk in rows for row in chunk]).argsort()
    return Chunks([partial(embedded, chunk) for chunk in rows], [len(chunk) for chunk in rows], order)
