"""Stages of a plan.

The training stages of a plan: updates, data, learning rates, memory and time of a step.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from data_tools.cli import about, counted
from data_tools.errors import KitError
from system.batches.augment import Augmentation
from system.batches.augment_settings import Augment
from system.plan.content import Content
from system.plan.decoding import decoding_lines
from system.plan.estimates import CORE_FLOPS, GPUS, Estimates
from system.plan.lines import MISSING, MISTAKE, WARNING, Problem, Row
from system.plan.machine import GIB
from system.recipe import schema
from system.runs.weights import trained_files

LARGEST_MEMORY = 8192 * GIB
MEMORY_SHARE = 0.8  # of the machine's memory that an estimate may use; Python and torch need the rest
GPU_SHARE = 0.9  # of a GPU's memory; CUDA's context takes about 0.5 GiB, and its cache has gaps

_TRAIN_FIRST = "no trained model is in this folder; train it first, or name the folder of a run or exported model"


def count_updates(stage: schema.Stage, contents: dict[str, Content]) -> int | None:
    """Return the number of updates (training steps) of a stage; None if its data is not known.

    For a missing manifest, the size that the recipe expects is used.
    """
    if stage.steps_per_epoch != "all":
        return stage.epochs * stage.steps_per_epoch
    items = [contents[source].expected_item_count(stage.unit) for source in stage.train.data]
    return stage.epochs * (sum(items) // stage.batch_size) if all(items) else None


def missing_model_problem(where: str, folder: Path, made_before: Collection[Path]) -> Iterator[Problem]:
    """Yield a problem if the trained model in `folder` is missing, unless an earlier run makes it (`made_before`).

    where: Beginning of the message: the part of the recipe that uses the model, such as "teacher NAME".
    made_before: Folders of models that earlier runs of a study will train.
    """
    if folder in made_before:
        return
    try:
        trained_files(folder)
    except KitError as error:
        has_begun = (folder / "resolved.json").exists()
        yield Problem(MISSING, f"{where} {folder}", str(error) if has_begun else _TRAIN_FIRST)


def stage_lines(
    name: str, stage: schema.Stage, contents: dict[str, Content], made_before: Collection[Path]
) -> Iterator[Row | Problem]:
    """Yield the plan's rows about a stage, and its problems. made_before: Models that earlier runs will train.

    The rows are on updates, data, initial model and augmentation.
    """
    yield Row("stages", name, _updates_text(stage, contents))
    yield Row("stages", f"{name} data", _data_text(stage, contents))
    items = sum(contents[source].items(stage.unit) for source in stage.train.data)
    if all(contents[source].items(stage.unit) for source in stage.train.data) and items < stage.batch_size:
        fault = f"batch_size {stage.batch_size} is more than the {counted(items, 'item')} of the stage's data; lower it"
        yield Problem(MISTAKE, f"stage {name}", fault)
    monitored = sum(contents[source].items("clip") for source in stage.monitor.data)
    if stage.unit != "moment" and all(contents[source].clips for source in stage.monitor.data) and monitored < 2:
        fault = f"validation needs two clips with captions, but has {monitored}; name other sources in monitor.data"
        yield Problem(MISTAKE, f"stage {name}", fault)
    for term in stage.losses:
        if idle := term.idle_setting:
            yield Problem(WARNING, f"stage {name}, loss {term.kind}", f"has no effect: {idle}")
    if warning := _warm_up_warning(stage, count_updates(stage, contents)):
        yield Problem(WARNING, f"stage {name}", warning)
    if isinstance(stage.start_from, schema.FromModel):
        folder = Path(stage.start_from.folder)
        before = " (trained by an earlier run of this study)" if folder in made_before else ""
        yield Row("stages", f"{name} start", f"weights of {folder}{before}")
        yield from missing_model_problem(f"stage {name} starts from", folder, made_before)
    if stage.augment is not None:
        yield from _augment_lines(name, stage, stage.augment, contents)


def unused_setting_warnings(recipe: schema.Recipe) -> Iterator[Problem]:
    """Yield a warning for each setting without effect, such as a teacher that no loss uses.

    An unused section `relevance` gets no warning, since other runs of a study may use it.
    """
    terms = [term for stage in recipe.stages.values() for term in stage.losses]
    factors = [point.factor for point in recipe.relevance.relax] if recipe.relevance else []
    if any(term.needs_relevance for term in terms) and set(factors) == {1}:
        yield Problem(WARNING, "relevance.relax", "relax has no effect: all its factors are 1; lower some factors")
    if recipe.model.learned_temperature is not None and not any(term.learned_temperature for term in terms):
        cure = "set `temperature: learned` in a loss, or remove learned_temperature"
        yield Problem(
            WARNING, "model.learned_temperature", f"learned_temperature has no effect: no loss uses it; {cure}"
        )
    used = {name for term in terms for name in term.taught_by}
    used |= {name for entry in recipe.rank.values() for name in entry.teacher_names}
    for name in (name for name in recipe.teachers if name not in used):
        yield Problem(
            WARNING, f"teachers.{name}", f"teacher {name} has no effect: no loss or rank entry uses it; remove it"
        )


def _updates_text(stage: schema.Stage, contents: dict[str, Content]) -> str:
    """Describe the number of updates (training steps) of a stage."""
    count = count_updates(stage, contents)
    updates = "unknown number of" if count is None else f"{count:,}"
    drawn = "" if count is None else f", {count * stage.batch_size:,} {stage.unit}s in total"
    each = "1 caption" if stage.captions_per_clip == 1 else f"{stage.captions_per_clip} captions"
    captions = f", {each} per clip" if stage.unit == "clip" else ""
    return f"{updates} updates of {stage.batch_size} {stage.unit}s{captions}{drawn}"


def _warm_up_warning(stage: schema.Stage, updates: int | None) -> str | None:
    """Return a warning if the learning rate of a stage never reaches its full value; None if it does."""
    schedule = stage.schedule
    if isinstance(schedule, schema.Schedule) and updates is not None and schedule.warmup_steps > updates:
        return (
            f"{schedule.warmup_steps:,} steps of warm-up, but only {counted(updates, 'update', ',')}: the learning "
            f"rate only reaches {100 * updates / schedule.warmup_steps:.0f} % of its full value; shorten the warm-up"
        )
    if isinstance(schedule, schema.EpochSchedule) and schedule.warmup_epochs > stage.epochs:
        return (
            f"{schedule.warmup_epochs:g} epochs of warm-up, but only {counted(stage.epochs, 'epoch')}: the learning "
            f"rate only reaches {100 * stage.epochs / schedule.warmup_epochs:.0f} % of its full value; shorten the "
            "warm-up"
        )
    return None


def _data_text(stage: schema.Stage, contents: dict[str, Content]) -> str:
    """Describe the training data of a stage."""
    items = [(source, contents[source].items(stage.unit)) for source in stage.train.data]
    sizes = " + ".join(f"{source} {count:,}" if count else f"{source} (missing)" for source, count in items)
    power = stage.train.short_moments
    return f"{sizes}, mixed by {stage.train.mix}" + (
        f", moments drawn in proportion to seconds^-{power:g}" if power else ""
    )


def _augment_lines(
    name: str, stage: schema.Stage, settings: Augment, contents: dict[str, Content]
) -> Iterator[Row | Problem]:
    """Yield a plan's row on the augmentation of training data, and problems of the augmentation files.

    If the clips are known, the row also states how well these files fit the clips.
    """
    notes = ""
    if missing := [file for file in settings.files() if not Path(file).exists()]:
        fault = f"augmentation files not found: {', '.join(missing)}; correct the paths"
        yield Problem(MISSING, f"stage {name} augment", fault)
    elif all(contents[source].clips for source in stage.train.data):
        try:
            clips = [clip for source in stage.train.data for clip in contents[source].clips]
            notes = "".join(f"; {note}" for note in Augmentation(settings, clips).notes)
        except KitError as error:
            yield Problem(MISTAKE, f"stage {name} augment", str(error))
    yield Row("stages", f"{name} augment", f"{settings.describe()}{notes}")


def rate_lines(name: str, settings: schema.AdamW, parts: dict[str, int], updates: int | None) -> Iterator[Row]:
    """Yield a plan's rows on learning rates of parts, and on parts frozen at the start.

    parts: Dict from part to its number of trainable parameters. updates: Number of the stage's training steps; None:
    not known.
    """
    counts = {"audio": sum(parts.values()) - parts["text"], **parts}
    rest = sum(parts.values()) - sum(counts[part] for part in settings.lr_by_part)
    if settings.lr_by_part:
        rates = [f"{part} {rate:g} ({counts[part]:,} parameters)" for part, rate in settings.lr_by_part.items()]
        yield Row(
            "stages", f"{name} rates", f"{', '.join(rates)}, all other parts {settings.lr:g} ({rest:,} parameters)"
        )
    for part, steps in settings.frozen_start.items():
        every = ", which are all steps of the stage" if updates is not None and steps >= updates else ""
        frozen = f"{part} ({counts[part]:,} parameters) is frozen for the first {steps:,} steps{every}"
        yield Row("stages", f"{name} frozen", frozen)


def cost_lines(
    name: str, stage: schema.Stage, estimates: Estimates, gpu_bytes: float | None, memory_bytes: float | None
) -> Iterator[Row | Problem]:
    """Yield a plan's rows on memory and time of a training step, and a problem if the step needs too much memory.

    The limit is the memory of the GPU or, without a GPU, of the machine.
    """
    cpu, gpu = (estimates.memory(stage, precision) for precision in ("float32", stage.precision))
    on_gpu = f", {gpu / GIB:.1f} GiB on a GPU in {stage.precision}" if stage.precision != "float32" else ""
    yield Row(
        "stages", f"{name} memory", f"{cpu / GIB:.1f} GiB in float32{on_gpu}, without Python and torch (estimate)"
    )
    parts = estimates.memory_parts(stage, stage.precision).items()
    counted_parts = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts if size >= GIB / 20)
    yield Row("stages", f"{name} parts", f"{counted_parts or 'each part below 0.05'} GiB in {stage.precision}")
    if estimates.decodes_files:
        yield from decoding_lines(name, stage, estimates)
    else:
        yield Row("stages", f"{name} frames", _frames_text(stage, estimates, gpu, gpu_bytes))
    yield Row("stages", f"{name} step", _step_text(stage, estimates))
    if cpu > LARGEST_MEMORY:
        fault = f"a step would need {cpu / GIB:,.0f} GiB, which no machine has; make the layers or the batch smaller"
        yield Problem(MISTAKE, f"stage {name}", fault)
    if gpu_bytes is not None and gpu > GPU_SHARE * gpu_bytes:
        yield _memory_warning(name, stage, estimates, "the GPU", gpu_bytes, GPU_SHARE)
    if gpu_bytes is None and memory_bytes is not None and cpu > MEMORY_SHARE * memory_bytes:
        in_float32 = stage.model_copy(update={"precision": "float32"})
        yield _memory_warning(name, in_float32, estimates, "this machine", memory_bytes, MEMORY_SHARE)


def _frames_text(stage: schema.Stage, estimates: Estimates, step: float, gpu_bytes: float | None) -> str:
    """Describe where a stage's frames are stored in training. step: Bytes that a training step needs on a GPU."""
    if stage.augment and stage.augment.mix:
        return "read from the banks at every step, since clips are mixed"
    size = estimates.bytes_of_frames(stage)
    if stage.frames_on != "auto":
        where = "on the GPU" if stage.frames_on == "gpu" else "read ahead from the banks"
        return f"{size / GIB:.1f} GiB, {where}, as set by `frames_on`"
    if gpu_bytes is None:
        return (
            f"{size / GIB:.1f} GiB; kept on the GPU if a step leaves twice this memory free, or read ahead from the "
            "banks"
        )
    fits = 2 * size < GPU_SHARE * gpu_bytes - step
    return f"{size / GIB:.1f} GiB, {'on the GPU' if fits else 'read ahead from the banks'}"


def _step_text(stage: schema.Stage, estimates: Estimates) -> str:
    """Describe the operations and the time of a training step."""
    flops, cores = estimates.step_flops(stage), os.cpu_count() or 1
    times = [f"{about(flops / (cores * CORE_FLOPS))} on this CPU's {cores} cores"]
    times += [f"{gpu} {1000 * flops / speed.speed(stage.precision):.1f} ms" for gpu, speed in GPUS.items()]
    return f"{flops / 1e12:.2f} TFLOP, {', '.join(times)} (estimates; not measured on a GPU)"


def _memory_warning(
    name: str, stage: schema.Stage, estimates: Estimates, machine: str, size: float, share: float
) -> Problem:
    """Return a warning that a stage's batch does not fit into memory, with the smallest change that helps.

    machine: Name of the GPU or the machine, for the message. size: Bytes of memory. share: Usable share of the memory.
    """
    in_chunks = estimates.recipe.model.embeds_in_chunks
    smaller = estimates.grad_cache_that_fits(stage, share * size) if in_chunks else None
    halves = machine == "the GPU" and stage.precision == "float32"
    if halves and estimates.memory(stage, "bf16") <= share * size:
        cure = "set precision to bf16"
    elif smaller:
        cure = f"set grad_cache_chunk to {smaller}, which gives the same gradients in a third more time"
    else:
        cure = "lower batch_size"
    return Problem(
        WARNING,
        f"stage {name}",
        f"batch_size {stage.batch_size} does not fit into {machine}'s {size / GIB:.1f} GiB of memory: {cure}",
    )
