"""Estimates for several processes.

Estimate the memory and time of each of several processes of torchrun, and the bytes that they exchange.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from system.plan.estimates import BYTES, GPUS, Estimates, Load
from system.plan.lines import MISTAKE, WARNING, Problem, Row
from system.plan.machine import GIB, MIB
from system.recipe import schema

# n processes, B clips and N captions of a batch, D embedding, P trainable parameters

SHAPE_BYTES = 24  # three integers with the shape of the embeddings, per side and process
NUMBER_BYTES = 8  # the length of a series


class Exchange(NamedTuple):
    """Bytes that every process receives in a step: of all processes' embeddings, and of their summed gradients."""

    embeddings: float
    gradients: float


def rows_of_share(rows: float, chunk: int | None, processes: int) -> int:
    """Return how many of a batch's `rows` (clips or captions) the busiest process gets. chunk: Rows per chunk, or None.

    Without `chunk`, the result is ceil(rows / n) for n processes. With `chunk`, the rows are divided into parts of
    `chunk` rows, which the processes share. The result is then ceil(parts / n) x chunk. If the last part is smaller and
    the first process computes it, the missing rows are subtracted.
    """
    whole = math.ceil(rows)
    if chunk is None:
        return math.ceil(whole / processes)
    parts = math.ceil(whole / chunk)
    lacking = parts * chunk - whole if (parts - 1) % processes == 0 else 0
    return math.ceil(parts / processes) * chunk - lacking


def exchanged_bytes(stage: schema.Stage, estimates: Estimates, processes: int) -> Exchange:
    """Estimate the bytes that processes exchange in one training step.

    Every process receives the embeddings of all n processes, with each share padded to the largest share.

    Embeddings: 4 n D (b L + c W) + 48 n bytes. An embedding has D values. The largest share has b clips and c captions.
    For vectors, L = W = 1. For series, L is the number of frames of the longest clip, and W is 20 words; 8 n (b + c)
    bytes are added for the lengths of the series.
    Gradients: 4 P bytes, for P parameters.
    """
    load, model = estimates.load(stage), estimates.recipe.model
    chunk = stage.grad_cache_chunk
    captions = None if chunk is None else math.ceil(chunk * load.captions / load.clips)
    clip_rows = rows_of_share(load.clips, chunk, processes)
    caption_rows = rows_of_share(load.captions, captions, processes)
    frames, words, lengths = 1.0, 1.0, 0
    if model.score.of_series:
        expert = next(iter(model.audio.experts.values()))
        frames, words, lengths = load.longest * expert.frames_per_second, 20.0, NUMBER_BYTES
    numbers = BYTES * model.text.dim * (clip_rows * frames + caption_rows * words)
    embeddings = processes * (numbers + lengths * (clip_rows + caption_rows) + 2 * SHAPE_BYTES)
    return Exchange(embeddings, BYTES * float(sum(estimates.parameters_by_part.values())))


def largest_share(stage: schema.Stage, estimates: Estimates, processes: int) -> Load:
    """Return the busiest process's share of a batch: numbers of clips and captions, and lengths of the clips."""
    load = estimates.load(stage)
    rows = rows_of_share(load.clips, stage.grad_cache_chunk, processes)
    return load._replace(clips=rows, captions=load.captions * rows / load.clips)


def process_lines(
    name: str, stage: schema.Stage, estimates: Estimates, processes: int, gpu: str | None
) -> Iterator[Row | Problem]:
    """Yield a plan's row on a stage with several processes, and problems of processes without work.

    The row has the memory of a process, the time of its share of a step, and the exchanged bytes.

    Memory: All weights, gradients and AdamW's moments, and the activations of the largest share of a batch. Several
    processes also need the gathered embeddings, the gradients of these embeddings, and a second copy of the gradients
    of the weights, to sum the gradients of all processes.
    Time: Operations of the largest share. The time of the exchange is not included; it depends on the network.
    """
    share, sent = largest_share(stage, estimates, processes), exchanged_bytes(stage, estimates, processes)
    memory = {
        precision: sum(estimates.memory_parts(stage, precision, share).values()) + 2 * sent.embeddings + sent.gradients
        for precision in ("float32", stage.precision)
    }
    on_gpu = f", {memory[stage.precision] / GIB:.1f} GiB in {stage.precision}" if stage.precision != "float32" else ""
    flops = estimates.flops_of(share, stage.grad_cache_chunk)
    times = [f"{card} {1000 * flops / GPUS[card].flops:.1f} ms" for card in ([gpu] if gpu else GPUS)]
    fact = (
        f"per process {memory['float32'] / GIB:.1f} GiB in float32{on_gpu}; a step has "
        f"{flops / 1e12:.2f} TFLOP{', ' + ', '.join(times) if stage.precision != 'float32' else ''}; each "
        f"process receives {_format_bytes(sent.embeddings)} of embeddings and {_format_bytes(sent.gradients)} of "
        "gradients (estimates)"
    )
    yield Row("stages", f"{name} on {processes} processes", fact)
    if stage.batch_size < processes:
        fault = f"batch_size {stage.batch_size} is less than the {processes} processes; start fewer processes"
        yield Problem(MISTAKE, f"stage {name}", fault)
        return
    parts = math.ceil(stage.batch_size / stage.grad_cache_chunk) if stage.grad_cache_chunk else processes
    if parts < processes:
        fitting = stage.batch_size // processes
        idle = (
            f"grad_cache_chunk {stage.grad_cache_chunk} leaves {processes - parts} processes idle; set it to {fitting}"
        )
        yield Problem(WARNING, f"stage {name}", idle)


def _format_bytes(size: float) -> str:
    """Format a number of bytes in MiB or KiB."""
    return f"{size / MIB:,.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"
