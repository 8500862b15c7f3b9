"""Measure a training step of each stage (`check --step`)."""

import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.devices import tf32_products
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.runs.open import build_model, training_vocabulary
from system.training.schedule import parameter_groups
from system.training.step import add_gradients

SECONDS, CAPTION = 30.0, "a dog barks " * 5  # of a clip, if the data is not on this machine

Clips = Mapping[str, Sequence[Clip]]


def measure(recipe: schema.Recipe, clips_of: Clips, steps: Mapping[str, int], device: torch.device) -> Iterator[str]:
    """Yield seconds, memory and hours of each stage.

    The model has random weights. The clips of a batch are silence, and as long as the longest clip; the captions
    are the longest ones.

    Args:
        clips_of: The clips of each data source.
        steps: Of an epoch of each stage; 0 if they are unknown.
    """
    model = build_model(recipe, training_vocabulary(recipe, clips_of), device).train()
    for name, stage in recipe.stages.items():
        yield f"{name}: {_measure_stage(recipe, stage, model, clips_of, steps[name], device)}"


def _measure_stage(
    recipe: schema.Recipe, stage: schema.Stage, model: RetrievalModel, clips_of: Clips, steps: int, device: torch.device
) -> str:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, stage.optimizer))

    def train_step(clips: int, chunk: int) -> float:
        """Train a step in chunks, and return its seconds."""
        batch = _longest_batch(recipe, stage, clips_of, clips).to(device)
        in_chunks = stage.model_copy(update={"grad_cache_chunk": chunk if chunk < clips else None})
        return _step(model, in_chunks, optimizer, batch)

    most, in_chunks = stage.grad_cache_chunk or stage.batch_size, recipe.model.embeds_in_chunks
    size = _largest(train_step, 1 if in_chunks else 2, most, device)  # batch norms need two
    if size < most and not in_chunks:
        return f"a batch of {most} does not fit into the memory of {device}; lower batch_size to {size}"
    seconds = train_step(stage.batch_size, size)
    hours = stage.epochs * steps * seconds / 3600
    total = f", {hours:.1f} h" if hours else ""
    advice = f"; {most} clips at a time do not fit: set grad_cache_chunk to {size}" if size < most else ""
    return f"{seconds:.3g} s and {_peak(device) / 2**30:.1f} GiB per step on {device}{total}{advice}"


def _longest_batch(recipe: schema.Recipe, stage: schema.Stage, clips_of: Clips, size: int) -> Batch:
    clips = [clip for source in stage.train.data for clip in clips_of[source]]
    seconds = max((clip.seconds or 0 for clip in clips), default=0) or SECONDS
    longest = sorted((text for clip in clips for text in clip.captions), key=len, reverse=True) or [CAPTION]
    drawn = stage.captions_per_clip or 1
    limit = drawn if isinstance(drawn, int) else sys.maxsize
    most = sorted((min(len(clip.captions), limit) for clip in clips if clip.captions), reverse=True) or [1]
    counts = np.resize(most, size)
    captions = list(itertools.islice(itertools.cycle(longest), int(counts.sum())))
    audio, longest_crop = {}, recipe.model.audio.training_frames or sys.maxsize
    for name, expert in recipe.model.audio.experts.items():
        frames = min(max(1, round(seconds * expert.frames_per_second)), longest_crop)
        values = torch.zeros(size, frames, expert.dim, dtype=getattr(torch, expert.dtype))
        audio[name] = Series(values, torch.full((size,), frames))
    row_of = torch.arange(size).repeat_interleave(torch.from_numpy(counts))
    factors = torch.ones(size, size) if any(term.needs_relevance for term in stage.losses) else None
    teachers = {name: torch.zeros(size, len(row_of)) for term in stage.losses for name in term.taught_by}
    labels = torch.zeros(size, 1, dtype=torch.bool) if stage.unit == "moment" else None
    return Batch([str(row) for row in range(size)], audio, captions, row_of, factors, teachers, labels)


def _step(model: RetrievalModel, stage: schema.Stage, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Train a step, and return its seconds."""
    began = time.monotonic()
    precision = stage.precision if model.device.type == "cuda" else "float32"
    with tf32_products(model.device):
        optimizer.zero_grad()
        add_gradients(model, batch, stage, precision, GradScaler(enabled=False))
        optimizer.step()
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.monotonic() - began


def _largest(step: Callable[[int, int], float], size: int, most: int, device: torch.device) -> int:
    """Return how many clips fit into memory, up to `most`.

    Their number is doubled until a GPU, or half of this machine's memory, is full.
    """
    try:
        step(size, size)
    except torch.OutOfMemoryError as error:
        raise KitError("a step does not fit into this GPU even with one clip; use one with more memory") from error
    with suppress(torch.OutOfMemoryError):
        while size < most and (device.type == "cuda" or _peak(device) < _machine_memory() / 2):
            step(min(2 * size, most), min(2 * size, most))
            size = min(2 * size, most)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return size


def _peak(device: torch.device) -> float:
    """Return the most bytes used by this process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _machine_memory() -> float:
    """Return the bytes of this machine's or container's memory."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # no container
        memory = min(memory, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory
