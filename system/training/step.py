"""The gradients of one update: of the whole batch at once, or embedded a few items at a time."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch.amp.grad_scaler import GradScaler

from system.losses import terms
from system.losses.base import BatchScores
from system.models.batch import Batch
from system.models.retrieval import RetrievalModel
from system.models.similarity import Embedded, joined
from system.recipe import schema

# B items, N captions


def gradients(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str, scaler: GradScaler
) -> dict[str, float]:
    """Add the gradients of the stage's loss to the model's parameters, scaled by `scaler`.

    Returns "loss" and what `terms.diagnose` gives. When the loss is not finite, no gradient is added.
    """
    if stage.grad_cache_chunk is None:
        return _backward(embedded_scores(model, batch, precision), stage, scaler)
    return _by_parts(model, batch, stage, stage.grad_cache_chunk, precision, scaler)


def embedded_scores(model: RetrievalModel, batch: Batch, precision: str) -> BatchScores:
    """Scores of a batch: embeddings in 16 bits where asked for, scores always in float32.

    A sum over 512 x 512 hinges passes the largest float16, and bfloat16 has no room between 0.996 and 1.
    """
    with _in_precision(batch, precision):
        clips, captions = model.embed(batch)
    return model.batch_scores(batch, clips, captions)


def _in_precision(batch: Batch, precision: str) -> AbstractContextManager[object]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return torch.autocast(batch.row_of.device.type, dtype, enabled=precision != "float32")


def _backward(scores: BatchScores, stage: schema.Stage, scaler: GradScaler) -> dict[str, float]:
    loss = terms.total(scores, stage.losses)
    seen = {"loss": loss.detach(), **terms.diagnose(scores, stage.losses)}
    values = dict(zip(seen, torch.stack(list(seen.values())).tolist(), strict=True))  # one wait for the GPU, not five
    if math.isfinite(values["loss"]):
        scaler.scale(loss).backward()
    return values


def _by_parts(
    model: RetrievalModel, batch: Batch, stage: schema.Stage, size: int, precision: str, scaler: GradScaler
) -> dict[str, float]:
    """Gradient caching, `size` items a part.

    Embed part by part without a graph, take the loss's gradients at the embeddings, then embed each part again with a
    graph and the same random state, and go on from there. Memory is that of one part; the time is one more forward
    pass. Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021).
    """
    clip_parts, clip_indices = audio_parts(model, batch, size)
    text_parts, text_indices = caption_parts(model, batch, size)
    parts = [*clip_parts, *text_parts]
    states = []
    leaves = []
    with torch.no_grad(), _in_precision(batch, precision):
        for part in parts:
            states.append(_random_state(batch.row_of.device))
            leaves.append(part().float())
    for leaf in leaves:
        leaf.values.requires_grad_()
    clips = joined(leaves[: len(clip_parts)]).rows(clip_indices)
    captions = joined(leaves[len(clip_parts) :]).rows(text_indices)
    values = _backward(model.batch_scores(batch, clips, captions), stage, scaler)
    if math.isfinite(values["loss"]):
        for part, state, leaf in zip(parts, states, leaves, strict=True):
            torch.set_rng_state(state[0])
            if state[1] is not None:
                _set_random_state_of_gpu(state[1], batch.row_of.device)
            with _in_precision(batch, precision):
                again = part().float()
            if again.values.requires_grad:  # a frozen encoder without a projection has nothing to train
                again.values.backward(leaf.values.grad)
    return values


Part = Callable[[], Embedded]


def audio_parts(model: RetrievalModel, batch: Batch, size: int) -> tuple[list[Part], torch.Tensor]:
    """Functions that embed `size` clips of like length each, and where each clip of the batch is among all of them."""
    order = next(iter(batch.audio.values())).lengths.argsort(stable=True)

    def embedded(rows: torch.Tensor) -> Embedded:
        found: Embedded = model.audio({name: series.rows(rows) for name, series in batch.audio.items()})
        return found

    return [partial(embedded, rows) for rows in order.split(size)], order.argsort()


def caption_parts(model: RetrievalModel, batch: Batch, size: int) -> tuple[list[Part], torch.Tensor]:
    """Functions that embed the captions of `size` items each, by length, and where each caption is among all."""
    order = torch.tensor(model.text.lengths(batch.captions)).argsort(stable=True)
    groups = order.split(math.ceil(size * len(order) / len(batch.clip_keys)))
    parts: list[Part] = [partial(model.text, [batch.captions[i] for i in rows.tolist()]) for rows in groups]
    return parts, order.argsort().to(batch.row_of.device)


def _random_state(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    if device.type == "cpu":
        return torch.get_rng_state(), None
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state()
    return torch.get_rng_state(), on_gpu


def _set_random_state_of_gpu(state: torch.Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.mps.set_rng_state(state)
