"""Hours and disk of a plan.

The hours and the disk space that a recipe needs in total.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from data_tools.cli import about
from system.plan.content import Content
from system.plan.estimates import CORE_FLOPS, GPUS, Estimates
from system.plan.lines import WARNING, Problem, Row
from system.plan.machine import GIB, full_disks
from system.plan.processes import largest_share
from system.plan.stages import count_updates
from system.recipe import schema


def hour_lines(
    recipe: schema.Recipe,
    estimates: Estimates,
    contents: dict[str, Content],
    missing: dict[str, float],
    processes: int,
    gpu: str | None,
) -> Iterator[Row]:
    """Yield a plan's rows on the time for training and frames. missing: Seconds of audio without frames, by expert."""
    updates = {name: count_updates(stage, contents) for name, stage in recipe.stages.items()}
    if not estimates.audio_seconds() or None in updates.values():
        yield Row("time", "total", "unknown until the data is on this machine")
        return
    if estimates.why_unknown:
        yield Row("time", "total", "unknown until the model is on this machine")
        return
    cores, stages = os.cpu_count() or 1, recipe.stages.items()
    frames = sum(missing[name] * expert.cost for name, expert in recipe.model.audio.experts.items())
    flops = sum((updates[name] or 0) * estimates.step_flops(stage) for name, stage in stages)
    training = flops / (cores * CORE_FLOPS)
    if not estimates.decodes_files:
        yield Row("time", "frames", f"{about(frames)} for missing frames" if frames else "no frames are missing")
    yield Row("time", "updates", f"{about(training)} on this CPU's {cores} cores{_time_on_gpus(recipe, flops)}")
    yield Row(
        "time", "total", f"{about(frames + training)} on this CPU's {cores} cores (estimates, without validation)"
    )
    if processes > 1:
        flops = sum(
            (updates[name] or 0)
            * estimates.flops_of(largest_share(stage, estimates, processes), stage.grad_cache_chunk)
            for name, stage in stages
        )
        yield _row_of_processes(frames, flops, processes, gpu)


def _row_of_processes(frames: float, flops: float, processes: int, gpu: str | None) -> Row:
    """Return the plan's row on the time with several processes.

    frames: Seconds that one process on two cores needs for the missing frames. flops: Operations of all updates
    in the process with the largest share of each batch. gpu: Name of the GPU; None: estimate times for all known GPUs.
    """
    speeds = ", ".join(f"{name}s {about(flops / GPUS[name].flops)}" for name in ([gpu] if gpu else GPUS))
    return Row(
        "time",
        f"{processes} processes",
        f"{about(frames / processes)} for missing frames, with two cores per process; updates on {speeds}; the "
        "exchange of gradients takes additional time (estimates)",
    )


def _time_on_gpus(recipe: schema.Recipe, flops: float) -> str:
    """Describe how long `flops` operations take on known GPUs; "" without stages."""
    precisions = {stage.precision for stage in recipe.stages.values()}
    if not precisions:
        return ""
    slowest = "float32" if "float32" in precisions else precisions.pop()
    speeds = ", ".join(f"{name} {about(flops / gpu.speed(slowest))}" for name, gpu in GPUS.items())
    return f"; {speeds} (assumed speeds, for the A40 from published runs; none was measured)"


def disk_lines(
    recipe: schema.Recipe, estimates: Estimates, missing: dict[str, float], runs: Path, copies: int
) -> Iterator[Row | Problem]:
    """Yield a plan's row on the space for checkpoints of `copies` runs, and a problem for each disk without space.

    missing: Dict from expert to the seconds of audio without frames, which need space, too.
    """
    size = 0.0 if estimates.why_unknown else copies * estimates.checkpoint_bytes
    if copies and not estimates.why_unknown:
        several = "" if copies == 1 else f" of {copies} runs"
        yield Row("disk", f"checkpoints{several}", f"at most {size / GIB:.2f} GiB in {runs}/ (estimate)")
    seconds = estimates.audio_seconds() or 1.0
    frames = sum(estimates.bank_bytes[name] * missing[name] / seconds for name in missing)
    for folders, fault in full_disks({Path(recipe.banks): frames, runs: size}):
        yield Problem(WARNING, folders, fault)
