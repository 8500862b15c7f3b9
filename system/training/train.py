"""Train the stages of a recipe, in order.

A stage is one loop over its steps. Every random draw is a function of (seed, stage, step), so that a run that resumes
at any step goes on as if nothing had happened.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from data_tools.cli import counted
from data_tools.cli import progress as progress_bar
from data_tools.errors import KitError
from submission.editions import format_metric
from submission.runs.record import EpochLine
from system.batches.loader import Teachers, read_batches
from system.compute.device import memory_errors, seed_generators, tf32_products
from system.compute.processes import (
    broadcast_from_first,
    first_before_others,
    gather,
    is_first,
    on_first,
    process_count,
)
from system.losses import terms
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
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
from system.training.validation import MomentValidation, Validation, collapse_messages

log = logging.getLogger(__name__)

Validate = Callable[[RetrievalModel], tuple[dict[str, float], dict[str, float]]]  # metrics, and spreads of embeddings


def train(
    recipe: schema.Recipe, run: Run, data: Data, model: RetrievalModel, relevance: Relevance | None, track: Tracking
) -> None:
    """Train the stages that are not finished; each begins with the initial model, or with weights that it names.

    Args:
        model: With its initial weights.
        relevance: CIDEr-D of the captions; None if no loss needs it.
        track: Gets every line of metrics.jsonl.
    """
    uses_chunks = any(stage.grad_cache_chunk for stage in recipe.stages.values())
    if process_count() > 1 and model.device.type == "cuda" and not uses_chunks:
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # statistics of the whole batch
    initial = {name: value.cpu().clone() for name, value in model.state_dict().items()}  # not in a GPU's memory
    earlier: list[EpochLine] = []
    for name, stage in recipe.stages.items():
        folder = run.folder / name
        if (folder / "done.json").exists():
            log.info("stage %s is already finished and not trained again", name)
        else:
            model.load_state_dict(initial)
            chunk = "set grad_cache_chunk, or a lower one, which gives the same gradients, or "
            cure = f"{chunk if recipe.model.embeds_in_chunks else ''}lower batch_size"
            with memory_errors(f"stage {name}: batch_size {stage.batch_size}", cure):
                train_stage(recipe, name, run, data, model, relevance, earlier, track)
        earlier += checkpoints.read_done(folder).lines
    on_first(lambda: run.write_metrics(earlier))
    track.lines(earlier)


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
    """Train one stage from its last state. earlier: Lines of metrics.jsonl of the stages before it."""
    stage, number, device = recipe.stages[name], list(recipe.stages).index(name), model.device
    folder, precision = run.folder / name, _precision(name, stage, device)
    folder.mkdir(parents=True, exist_ok=True)
    sampler = data.sampler(name, stage, (recipe.seed, number))
    steps = sampler.steps_of_all if stage.steps_per_epoch == "all" else stage.steps_per_epoch
    relevance = relevance if terms.need_relevance(stage.losses) else None
    with first_before_others():
        teachers = embed_by_teachers(recipe, stage, run, data, device)
    validate = _validation(stage, data, relevance, teachers, precision)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups, decay = parameter_groups(model, stage.optimizer), stage.optimizer.weight_decay
    optimizer = torch.optim.AdamW(groups, weight_decay=decay, fused=device.type == "cuda" or None)
    scaler = GradScaler(device.type, enabled=precision == "fp16")
    at = _resume(folder, precision, model, optimizer, scaler)
    if len(set(gather(at.step))) > 1:
        raise KitError(f"stage {name}: the processes are at different steps; share {run.folder} among the machines")
    if not at.step:
        _load_start(name, stage.start_from, run, model, Path(recipe.banks))
    on_first(lambda: run.write_metrics([*earlier, *at.lines]))
    track.lines([*earlier, *at.lines])
    earlier_steps = max((step for step, _ in metrics_by_step(earlier)), default=0)
    made = read_batches(
        sampler, data.features, relevance, device, teachers,
        longest=recipe.model.audio.training_frames,
        chunk=stage.grad_cache_chunk,
        pad_to_batch=not recipe.model.embeds_in_chunks,
        step=at.step,
    )  # fmt: skip
    epochs, total, saved = counted(stage.epochs, "epoch"), stage.epochs * steps, time.monotonic()
    log.info("stage %s: training %s of %s each, from step %d on", name, epochs, counted(steps, "step"), at.step)
    with (
        closing(made) as batches,
        tf32_products(device),
        progress_bar(name, total, "step", at.step) as bar,
        _interrupts() as asked,
        track.profiled(folder) as profile_step,
    ):
        while at.step < total and not (at.step % steps == 0 and ends_early(stage.stop, at.history)):
            seed_generators(int(np.random.SeedSequence([recipe.seed, number, at.step]).generate_state(1)[0]))
            set_training_mode(model, stage.optimizer, at.step, trained)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(stage, group["base_lr"], at.step, steps, at.history)
            with at.timed("data"):
                batch = next(batches)
            with at.timed("step"):
                optimizer.zero_grad()
                found = add_gradients(model, batch, stage, precision, scaler)
                scaler.unscale_(optimizer)
                found["norm"] = clip_grad_norm_(trained, stage.max_grad_norm or math.inf)
                values = read_numbers(found)  # waits for the GPU
            is_finite = math.isfinite(values["loss"]) and math.isfinite(values.pop("norm"))
            if not (is_finite or scaler.is_enabled()):
                raise KitError(f"stage {name}, step {at.step}: loss or gradients are not finite; {_lower_rate(folder)}")
            scaler.step(optimizer)  # skips an update whose fp16 gradients overflow
            scaler.update()
            at.add(values if is_finite else None)
            profile_step()
            bar.set_postfix_str(f"loss {values['loss']:.4f}" if is_finite else "update skipped", refresh=False)
            bar.update()
            if at.step % EVERY == 0 and at.step % steps:
                rate = optimizer.param_groups[0]["lr"]
                track.step(earlier_steps + at.step, {f"{name}/steps/loss": values["loss"], f"{name}/steps/lr": rate})
            if ends_epoch := at.step % steps == 0:
                _finish_epoch(name, at, steps, optimizer, model, validate, folder)
                on_first(lambda: run.write_metrics([*earlier, *at.lines]))
            stops = any(gather(asked()))
            if ends_epoch or time.monotonic() - saved > 60 * (stage.save_minutes or math.inf) or stops:
                saved = time.monotonic()
                if is_first():
                    keep, parts = stage.monitor.keep, {"optimizer": optimizer, "scaler": scaler}
                    with at.timed("saving"):
                        checkpoints.save(folder, at, keep, ends_epoch, precision, model, **parts)
            if ends_epoch:
                track.lines([*earlier, *at.lines])
            if stops:
                log.warning("stopped at step %d of stage %s", at.step, name)
                raise KeyboardInterrupt
    for parameter in trained:  # a stage may end while `frozen_start` freezes some
        parameter.requires_grad_()
    if at.step < total:
        log.info("stage %s ends early: see its setting stop", name)
    with first_before_others():
        if is_first():
            checkpoints.write_done(folder, at)


def _finish_epoch(
    name: str,
    at: Progress,
    steps: int,
    optimizer: torch.optim.Optimizer,
    model: RetrievalModel,
    validate: Validate,
    folder: Path,
) -> None:
    """Validate the model, and add the epoch's line of metrics."""
    skipped = steps - at.counted
    broadcast_from_first(model)
    if not at.counted:
        raise KitError(f"stage {name}, step {at.step}: fp16 skipped all updates of an epoch; set precision to bf16")
    with at.timed("validation"):
        values, spreads = on_first(lambda: validate(model))
    if lost := [f"{metric} {value}" for metric, value in values.items() if not math.isfinite(value)]:
        raise KitError(
            f"stage {name}, step {at.step}: validation is not finite ({', '.join(lost)}); {_lower_rate(folder)}"
        )
    figures = {"stage": name, "epoch": at.step // steps, "step": at.step}
    figures |= {key: value / at.counted for key, value in at.sums.items()} | ({"skipped": skipped} if skipped else {})
    times = {key: round(seconds, 2) for key, seconds in at.times.items()}
    figures |= {"lr": optimizer.param_groups[0]["lr"], "seconds": round(sum(at.times.values()), 2), "times": times}
    line = EpochLine.model_validate(figures | spreads | {"validation": values, "collapsed": collapse_messages(spreads)})
    at.lines.append(line)
    at.sums, at.counted, at.times = {}, 0, {}
    shown = " ".join(f"{metric} {format_metric(metric, value)}" for metric, value in values.items())
    log.info("stage %s, epoch %d: training loss %.4f; validation %s", name, line.epoch, line.loss, shown)
    for sign in line.collapsed:
        log.warning("stage %s, epoch %d: the model has COLLAPSED: %s; lower the learning rate", name, line.epoch, sign)


def _lower_rate(folder: Path) -> str:
    """Return the cure for values that are not finite."""
    state = folder / "last.pt"
    known = f"{state} has the state of an earlier step" if state.exists() else "this run has saved no state"
    return f"lower the learning rate in a new run ({known})"


def _precision(name: str, stage: schema.Stage, device: torch.device) -> str:
    if device.type == "cuda" or stage.precision == "float32":
        return stage.precision
    log.warning("stage %s: precision %s needs a CUDA GPU, so this machine computes in float32", name, stage.precision)
    return "float32"


def _resume(
    folder: Path, precision: str, model: RetrievalModel, optimizer: torch.optim.Optimizer, scaler: GradScaler
) -> Progress:
    """Restore the last state of a stage. Raises KitError if it was computed in another precision."""
    state = checkpoints.load_state(folder)
    if state is None:
        return Progress()
    if state["precision"] != precision:
        raise KitError(
            f"{folder} was started with precision {state['precision']}, but this machine computes in {precision}; "
            "resume it on a machine like the first, or start a new run"
        )
    checkpoints.load_tensors(model, state["model"], folder / "last.pt")
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    found: Progress = state["progress"]
    return found


def _load_start(
    name: str,
    start: schema.FromScratch | schema.FromStage | schema.FromModel,
    run: Run,
    model: RetrievalModel,
    banks: Path,
) -> None:
    """Load the weights of another stage or model, if `start_from` names one."""
    if isinstance(start, schema.FromStage):
        taken = checkpoints.load_checkpoint(model, run.folder / start.stage, start.checkpoint)
        log.info("stage %s starts from the checkpoint %s", name, taken)
    elif isinstance(start, schema.FromModel):
        load_start_weights(model, start, banks)
        log.info("stage %s starts from the model %s", name, start.folder)


def _validation(
    stage: schema.Stage, data: Data, relevance: Relevance | None, teachers: Teachers, precision: str
) -> Validate:
    """Return the validation after each epoch of a stage."""
    sources = stage.monitor.data
    if stage.unit == "moment":
        annotated = {name: (data.readable_clips(name), data.moments[name]) for name in sources}
        return MomentValidation(annotated, stage, data.features, precision)
    clips = [clip for name in sources for clip in data.readable_clips(name)]
    return Validation(clips, stage, data.features, relevance, teachers, precision)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM wait until the step is done; a second one ends the process at once.

    Several processes ask each other at every step, so that all end at the same one.
    """
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        signals.append(number)
        for one in before if process_count() == 1 else ():  # torchrun repeats a signal to its processes
            signal.signal(one, signal.default_int_handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
