"""Train the stages of a recipe, in order.

A stage is one loop over its steps. Every random draw is a function of (seed, stage, step), so that a run that resumes
at any step goes on as if nothing had happened.
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from data_tools.cli import counted
from data_tools.cli import progress as progress_bar
from data_tools.errors import KitError
from data_tools.files import write_json
from submission.editions import format_metric
from submission.runs.record import EpochLine
from system.batches.loader import read_batches
from system.devices import memory_errors, seed_generators, tf32_products
from system.losses import terms
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
from system.processes import (
    broadcast_from_first,
    first_before_others,
    gather,
    is_first,
    on_first,
    process_count,
)
from system.recipe import schema
from system.recipe.data import Data
from system.runs import checkpoints
from system.runs.checkpoints import Progress
from system.runs.folder import Run
from system.runs.open import load_start_weights
from system.training.schedule import ends_early, learning_rate, parameter_groups, set_training_mode
from system.training.step import add_gradients, read_numbers
from system.training.teachers import embed_by_teachers
from system.training.tracking import EVERY, Tracking, metrics_by_step
from system.training.validation import ClipValidation, MomentValidation, collapse_messages

log = logging.getLogger(__name__)

LOWER_RATE = "lower the learning rate in a new run"  # cure for values that are not finite
Validated = tuple[dict[str, float], dict[str, float]]  # metrics, and spreads of embeddings


def train(
    recipe: schema.Recipe,
    run: Run,
    data: Data,
    model: RetrievalModel,
    initial: Mapping[str, torch.Tensor],
    relevance: Relevance | None,
    track: Tracking,
) -> None:
    """Train the stages that are not finished.

    Each begins with the initial model, or with weights that it names.

    Args:
        initial: Weights of the model before training.
        relevance: CIDEr-D of the captions; None if no loss needs it.
        track: Gets every line of metrics.jsonl.
    """
    uses_chunks = any(stage.grad_cache_chunk for stage in recipe.stages.values())
    if process_count() > 1 and model.device.type == "cuda" and not uses_chunks:
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # statistics of the whole batch
    earlier: list[EpochLine] = []
    for name, stage in recipe.stages.items():
        if (run.folder / name / "done.json").exists():
            log.info("stage %s is already finished and not trained again", name)
        else:
            model.load_state_dict(initial)
            chunk = "set or lower grad_cache_chunk (the same gradients), or " if recipe.model.embeds_in_chunks else ""
            with memory_errors(f"stage {name}: batch_size {stage.batch_size}", f"{chunk}lower batch_size"):
                train_stage(recipe, name, run, data, model, relevance, earlier, track)
        earlier += checkpoints.read_done(run.folder / name).lines
    _report(run, track, earlier)


def _report(run: Run, track: Tracking, lines: Sequence[EpochLine]) -> None:
    """Write and send the lines of all epochs so far."""
    on_first(lambda: run.write_metrics(lines))
    track.lines(lines)


def train_stage(
    recipe: schema.Recipe,
    name: str,
    run: Run,
    data: Data,
    model: RetrievalModel,
    relevance: Relevance | None,
    earlier: list[EpochLine],
    track: Tracking,
) -> None:
    """Train one stage from its last state.

    Args:
        earlier: Lines of metrics.jsonl of the stages before it.
    """
    stage, number, device = recipe.stages[name], list(recipe.stages).index(name), model.device
    folder = run.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    precision = stage.precision if device.type == "cuda" else "float32"
    if precision != stage.precision:
        log.warning("stage %s: precision %s needs CUDA; this machine computes in float32", name, stage.precision)
    sampler = data.sampler(name, stage, (recipe.seed, number))
    steps = sampler.steps_of_all if stage.steps_per_epoch == "all" else stage.steps_per_epoch
    relevance = relevance if terms.need_relevance(stage.losses) else None
    with first_before_others():
        teachers = embed_by_teachers(recipe, stage, run, data, device)
    watched = [item for source in stage.monitor.data for item in data.items(source, stage.unit)]
    kind = MomentValidation if stage.unit == "moment" else ClipValidation
    validate = kind(watched, stage, data.features, relevance, teachers, precision)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups, decay = parameter_groups(model, stage.optimizer), stage.optimizer.weight_decay
    optimizer = torch.optim.AdamW(groups, weight_decay=decay, fused=device.type == "cuda" or None)
    scaler = GradScaler(device.type, enabled=precision == "fp16")
    parts = {"optimizer": optimizer, "scaler": scaler}
    progress = checkpoints.resume(folder, precision, model, **parts)
    if not progress.step:
        _load_start(recipe, name, run, model)
    _report(run, track, [*earlier, *progress.lines])
    earlier_steps = max((step for step, _ in metrics_by_step(earlier)), default=0)
    made = read_batches(
        sampler, data.features, relevance, device, teachers,
        longest=recipe.model.audio.training_frames,
        chunk=stage.grad_cache_chunk,
        pad_to_batch=not recipe.model.embeds_in_chunks,
        step=progress.step,
    )  # fmt: skip
    epochs, total, saved = counted(stage.epochs, "epoch"), stage.epochs * steps, time.monotonic()
    log.info("stage %s: training %s of %s each, from step %d on", name, epochs, counted(steps, "step"), progress.step)
    with (
        closing(made) as batches,
        tf32_products(device),
        progress_bar(name, total, "step", progress.step) as bar,
        _interrupts() as asked,
        track.profiled(folder) as profile_step,
    ):
        while progress.step < total and not (progress.step % steps == 0 and ends_early(stage.stop, progress.history)):
            step = progress.step
            seed_generators(int(np.random.SeedSequence([recipe.seed, number, step]).generate_state(1)[0]))
            set_training_mode(model, stage.optimizer, step, trained)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(stage, group["base_lr"], step, steps, progress.history)
            with progress.timed("data"):
                batch = next(batches)
            with progress.timed("step"):
                optimizer.zero_grad()
                found = add_gradients(model, batch, stage, precision, scaler)
                scaler.unscale_(optimizer)
                found["norm"] = clip_grad_norm_(trained, stage.max_grad_norm or math.inf)
                values = read_numbers(found)  # waits for the GPU
            norm = values.pop("norm")
            is_finite = math.isfinite(values["loss"]) and math.isfinite(norm)
            if not (is_finite or scaler.is_enabled()):
                raise KitError(f"stage {name}, step {step}: loss or gradients are not finite; {LOWER_RATE}")
            scaler.step(optimizer)  # skips an update whose fp16 gradients overflow
            scaler.update()
            progress.add(values if is_finite else None)
            profile_step()
            bar.set_postfix_str(f"loss {values['loss']:.4f}" if is_finite else "update skipped", refresh=False)
            bar.update()
            rate, ends_epoch = optimizer.param_groups[0]["lr"], progress.step % steps == 0
            if progress.step % EVERY == 0 and not ends_epoch:
                shown = {f"{name}/steps/loss": values["loss"], f"{name}/steps/lr": rate}
                track.step(earlier_steps + progress.step, shown)
            if ends_epoch:
                broadcast_from_first(model)
                _finish_epoch(name, progress, steps, rate, lambda: validate(model))
            stops = any(gather(asked()))
            if ends_epoch or time.monotonic() - saved > 60 * (stage.save_minutes or math.inf) or stops:
                saved = time.monotonic()
                if is_first():
                    with progress.timed("saving"):
                        checkpoints.save(folder, progress, stage.monitor.keep, ends_epoch, precision, model, **parts)
            if ends_epoch:
                _report(run, track, [*earlier, *progress.lines])
            if stops:
                log.warning("stopped at step %d of stage %s", progress.step, name)
                raise KeyboardInterrupt
    for parameter in trained:  # a stage may end while `frozen_start` freezes some
        parameter.requires_grad_()
    if progress.step < total:
        log.info("stage %s ends early: see its setting stop", name)
    on_first(lambda: write_json(folder / "done.json", progress.document()))


def _finish_epoch(name: str, progress: Progress, steps: int, rate: float, validate: Callable[[], Validated]) -> None:
    """Validate the model, and add the epoch's line of metrics."""
    place = f"stage {name}, step {progress.step}"
    if not progress.counted:
        raise KitError(f"{place}: fp16 skipped all updates of an epoch; set precision to bf16")
    with progress.timed("validation"):
        values, spreads = on_first(validate)
    if lost := [f"{metric} {value}" for metric, value in values.items() if not math.isfinite(value)]:
        raise KitError(f"{place}: validation is not finite ({', '.join(lost)}); {LOWER_RATE}")
    times = {key: round(seconds, 2) for key, seconds in progress.times.items()}
    skipped = {"skipped": steps - progress.counted} if progress.counted < steps else {}
    figures = {key: value / progress.counted for key, value in progress.sums.items()} | skipped | {"lr": rate} | spreads
    known = {"stage": name, "epoch": progress.step // steps, "step": progress.step, "validation": values}
    known |= {"times": times, "seconds": round(sum(progress.times.values()), 2)}
    line = EpochLine.model_validate(known | figures | {"collapsed": collapse_messages(spreads)})
    progress.lines += [line]
    progress.sums, progress.counted, progress.times = {}, 0, {}
    shown = " ".join(f"{metric} {format_metric(metric, value)}" for metric, value in values.items())
    log.info("stage %s, epoch %d: training loss %.4f; validation %s", name, line.epoch, line.loss, shown)
    for sign in line.collapsed:
        log.warning("stage %s, epoch %d: the model has COLLAPSED: %s; lower the learning rate", name, line.epoch, sign)


def _load_start(recipe: schema.Recipe, name: str, run: Run, model: RetrievalModel) -> None:
    """Load the weights that a stage starts from."""
    start = recipe.stages[name].start_from
    if isinstance(start, schema.FromStage):
        taken = checkpoints.load_checkpoint(model, run.folder / start.stage, start.checkpoint)
        log.info("stage %s starts from the checkpoint %s", name, taken)
    elif isinstance(start, schema.FromModel):
        load_start_weights(model, start, Path(recipe.banks))
        log.info("stage %s starts from the model %s", name, start.folder)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C or SIGTERM wait until a step is done.

    A second signal ends the process at once. In a thread of a program, signals are the program's. Several processes ask
    each other at every step, so that all end at the same one.
    """
    signals: list[int] = []

    def note(number: int, _: object) -> None:
        if signals and process_count() == 1:  # torchrun repeats a signal to its processes
            raise KeyboardInterrupt
        signals.append(number)

    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in ours}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
