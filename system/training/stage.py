"""Train one stage.

Train one stage in steps, with validation and checkpoints after every epoch. Training can be resumed after any step.
"""

import json
import logging
import math
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from data_tools.cli import Progress, counted, progress
from data_tools.errors import KitError
from data_tools.files import checksum, write_json
from submission.editions import format_metric
from submission.runs.record import EpochLine
from system.batches.collate import Feed
from system.batches.teachers import Teachers
from system.compute.device import seed_generators, tf32_products
from system.compute.distributed import (
    any_process,
    broadcast_from_first,
    first_before_others,
    in_step,
    is_first,
    is_orphan,
    on_first,
)
from system.losses import terms
from system.losses.relevance.relax import Relevance
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.recipe.data import Data
from system.runs import checkpoints
from system.runs.folder import Run
from system.runs.open import load_start_weights
from system.training.interrupt import Interrupted, interruptible
from system.training.moment_validation import MomentValidation
from system.training.parts import FrozenStart, parameter_groups, prepare_for_stage
from system.training.same_everywhere import require_same_state, require_same_work, warn_of_batch_shares
from system.training.schedule import describe_stop, ends_early, learning_rates
from system.training.step import add_gradients, read_numbers
from system.training.teachers import open_teachers
from system.training.tracking import Tracking
from system.training.validation import Validation, Watching, collapse_messages

SKIPPED_LIMIT = 20  # updates in a row whose fp16 loss is not finite
LEAST_SCALE = 2.0**-10  # of fp16 losses, which starts at 65,536: below it, gradients are not finite at any scale

log = logging.getLogger(__name__)


class StageTraining:
    """Training of one stage of one run."""

    def __init__(
        self,
        recipe: schema.Recipe,
        name: str,
        run: Run,
        data: Data,
        model: RetrievalModel,
        relevance: Relevance | None,
        tracking: Tracking,
    ) -> None:
        """Prepare the stage `name`. model: The model to train, with initial weights. tracking: Receives the metrics."""
        stage = recipe.stages[name]
        require_same_work(name, stage, data)
        self.name, self.stage, self.run, self.model, self.tracking = name, stage, run, model, tracking
        self.banks, self.folder, self.device = Path(recipe.banks), run.folder / name, model.device
        self.seed = (recipe.seed, list(recipe.stages).index(name))
        self.sampler = data.sampler(name, stage, self.seed)
        self.steps = self.sampler.steps_of_all if stage.steps_per_epoch == "all" else stage.steps_per_epoch
        if shared := data.count_shared_clips(stage.train.data, stage.monitor.data):
            size = counted(shared, "recording")
            log.warning("stage %s: training and validation use the same %s; change monitor.data", name, size)
        relevance = relevance if terms.need_relevance(stage.losses) else None
        teachers = None
        if taught_by := list(dict.fromkeys(teacher for term in stage.losses for teacher in term.taught_by)):
            with first_before_others():
                teachers = open_teachers(taught_by, recipe, name, run, data, model.device)
        self.precision = stage.precision if self.device.type == "cuda" else "float32"
        self.validation = _build_validation(stage, data, relevance, teachers, self.precision)
        pad_to_batch, longest = not recipe.model.embeds_in_chunks, recipe.model.audio.training_frames
        made_of = self.sampler, data.features, relevance, self.device, teachers
        self.feed = partial(Feed, *made_of, longest, stage.grad_cache_chunk, pad_to_batch, stage.frames_on)
        self._interrupted = checkpoints.load_state(self.folder)  # None: the stage begins
        if self._interrupted is None:
            self._load_initial_weights()
        groups, self.rates = parameter_groups(model, stage.optimizer)
        decay, is_fused = stage.optimizer.weight_decay, self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=stage.optimizer.lr, weight_decay=decay, fused=is_fused or None)
        self.frozen_start = FrozenStart(model, stage.optimizer)
        warn_of_batch_shares(name, recipe)
        prepare_for_stage(model, stage)
        self.scaler = GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.best: checkpoints.BestEpochs = {}
        self.step = 0
        self.lines: list[EpochLine] = []  # metrics of the finished epochs
        self.writer = checkpoints.CheckpointWriter(self.folder)
        self.sums: dict[str, float] = {}  # sums of loss and diagnostics over the epoch so far
        self.seconds = 0.0  # duration of the epoch so far, including earlier processes
        self.skipped = self.skipped_in_a_row = 0  # updates of the epoch so far, and of the last steps
        self.saved_at, self.saved_step = time.monotonic(), 0  # when this process began, or last saved a state

    @property
    def history(self) -> list[dict[str, float]]:
        """List of the validation metrics of every finished epoch, oldest first."""
        return [line.validation for line in self.lines]

    def run_to_end(self, earlier: list[EpochLine]) -> list[EpochLine]:
        """Train the stage's remaining steps; return its metrics, a line per epoch. earlier: Lines of earlier stages."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._interrupted is not None:
            self._restore_state(self._interrupted)
            self._interrupted = None
        require_same_state(self.name, self.step, self.model, self.run)
        on_first(lambda: self.run.write_metrics([*earlier, *self.lines]))
        self.tracking.update()
        if self.precision != (wanted := self.stage.precision):
            said = "stage %s: precision %s needs a CUDA GPU, so this machine computes in float32"
            log.warning(said, self.name, wanted)
        total = self.stage.epochs * self.steps
        epochs, steps = counted(self.stage.epochs, "epoch"), counted(self.steps, "step")
        log.info("stage %s: training %s of %s each, from step %d on", self.name, epochs, steps, self.step)
        with (
            interruptible() as stop,
            closing(self.writer),
            closing(self.feed()) as feed,
            tf32_products(self.device, self.stage.tf32),
            progress(self.name, total, "step", self.step) as bar,
        ):
            while not self._is_over():
                self._train_epoch(feed, bar, stop)
                self._finish_epoch()
                self._stop_if_requested(any_process(stop["asked"] or is_orphan()))
        self.frozen_start.end()
        if self.stage.stop and self.step < total:
            log.info("stage %s ends early: %s", self.name, describe_stop(self.stage.stop))
        done = {"epochs": len(self.lines), "steps": self.step, "best": self.best}
        done |= {"sha256": self.writer.sha256, "lines": [line.document() for line in self.lines]}
        on_first(lambda: write_json(self.folder / "done.json", done))
        return self.lines

    def _load_initial_weights(self) -> None:
        """Load the weights of another stage or model, if the recipe's `start_from` names one."""
        start = self.stage.start_from
        if isinstance(start, schema.FromStage):
            taken = checkpoints.load_checkpoint(self.model, self.run.folder / start.stage, start.checkpoint)
            log.info("stage %s starts from the checkpoint %s", self.name, taken)
        elif isinstance(start, schema.FromModel):
            load_start_weights(self.model, start, self.banks)
            log.info("stage %s starts from the model %s", self.name, start.folder)

    def _restore_state(self, state: dict[str, Any]) -> None:
        """Restore the state of an interrupted training. state: Content of last.pt."""
        if state["precision"] != self.precision:
            raise KitError(
                f"{self.folder} was started with precision {state['precision']}, but this machine computes in "
                f"{self.precision}; resume it on a machine with {state['precision']}, or start a new run"
            )
        checkpoints.load_tensors(self.model, state["model"], self.folder / "last.pt")
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.best, self.step, self.sums = state["best"], state["step"], state["sums"]
        self.seconds, self.skipped = state["seconds"], state.get("skipped", 0)
        if is_first():  # on a full disk it may be missing, since it is written after last.pt
            checkpoints.write_table_of_best(self.folder, self.best)
        self.writer.resume({**state.get("sha256", {}), "last.pt": checksum(self.folder / "last.pt")})
        self.lines = [EpochLine.model_validate(line) for line in state["lines"]]

    def _train_epoch(self, feed: Feed, bar: Progress, stop: dict[str, bool]) -> None:
        """Train the remaining steps of the current epoch. stop: Dict whose flag "asked" requests an early end."""
        self.model.train()
        while True:
            began = time.monotonic()
            seen = self._train_step(feed)
            self.seconds += time.monotonic() - began
            if seen is not None:
                self.sums = {name: self.sums.get(name, 0.0) + value for name, value in seen.items()}
            self.step += 1
            feed.copy_frames_if_room()
            bar.advance(1, f"loss {seen['loss']:.4f}" if seen else "update skipped")
            if self.step % self.steps == 0:
                return
            with in_step():
                requested = any_process(stop["asked"] or is_orphan())
            self._stop_if_requested(requested)
            if self._is_state_due():
                self._save_state(is_best=False)

    def _stop_if_requested(self, requested: bool) -> None:
        """Save the state and raise Interrupted, if Ctrl-C or SIGTERM has requested the end of the training."""
        if requested:
            if self.saved_step != self.step:
                self._save_state(is_best=False)
            said = f"stopped at step {self.step} of stage {self.name}; run the same command again to resume"
            raise Interrupted(said if is_first() else "")

    def _train_step(self, feed: Feed) -> dict[str, float] | None:
        """Train one step. Returns: The loss and diagnostics of the losses; None if fp16 skipped the update."""
        # Randomness is a function of the step, so that a resumed run has the same draws as an uninterrupted one.
        seed_generators(int(np.random.SeedSequence([*self.seed, self.step]).generate_state(1)[0]))
        batch = feed.batch(self.step)
        rates = learning_rates(self.stage, self.rates, self.step, self.steps, self.history)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.frozen_start.begin_step(self.step)
        self.optimizer.zero_grad()
        with in_step():
            found = add_gradients(self.model, batch, self.stage, self.precision, self.scaler)
            self.scaler.unscale_(self.optimizer)
            found["norm"] = clip_grad_norm_(self.model.parameters(), self.stage.max_grad_norm or math.inf)
            found["scale"] = self.scaler.scale(torch.ones((), device=self.device))
            diagnostics = read_numbers(found)
            failed = any_process(not math.isfinite(diagnostics["loss"]))
        norm, scale = diagnostics.pop("norm"), diagnostics.pop("scale")
        if failed:
            self._skip_or_raise(math.nan if math.isfinite(diagnostics["loss"]) else diagnostics["loss"])
            return None
        self.skipped_in_a_row = 0
        # In fp16 an overflow is no error: the scaler skips the update, and uses a smaller scale from then on.
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            raise KitError(
                f"{self._stage_and_step()}: the norm of the gradients is {norm}; {self._hint_to_lower_rate()}"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled() and scale < LEAST_SCALE:
            raise KitError(
                f"{self._stage_and_step()}: fp16 gradients overflow at every loss scale; {self._hint_to_lower_rate()}"
            )
        return diagnostics

    def _skip_or_raise(self, loss: float) -> None:
        """Count an update that fp16 skips since its loss is not finite; raise KitError in other precisions.

        In fp16, a large value can cause this. Raises KitError after SKIPPED_LIMIT skipped updates in a row, too.
        """
        where = self._stage_and_step()
        if self.precision != "fp16":
            raise KitError(f"{where}: the loss is {loss}; {self._hint_to_lower_rate()}")
        self.scaler.update(self.scaler.get_scale())  # the loss does not depend on the scale
        self.skipped_in_a_row += 1
        self.skipped += 1
        log.warning("%s: the loss is %s in fp16; the update is skipped", where, loss)
        if self.skipped_in_a_row >= SKIPPED_LIMIT:
            raise KitError(
                f"{where}: the loss was not finite in {SKIPPED_LIMIT} steps in a row; set precision to bf16, or "
                f"{self._hint_to_lower_rate()}"
            )

    def _stage_and_step(self) -> str:
        """Return the name of the stage and the number of the current step, for error messages."""
        return f"stage {self.name}, step {self.step}"

    def _hint_to_lower_rate(self) -> str:
        """Return the end of an error message on values that are not finite: advice to lower the learning rate."""
        state = self.folder / "last.pt"
        if not state.exists():
            return "lower the learning rate in a new run (this run has saved no state)"
        return f"lower the learning rate in a new run ({state} has the training state of an earlier step of this run)"

    def _finish_epoch(self) -> None:
        """Validate the model, log the metrics, and save checkpoints after an epoch."""
        began, epoch = time.monotonic(), self.step // self.steps
        broadcast_from_first(self.model)
        self._require_finite()
        values, diagnostics = self.validation(self.model)
        if lost := [f"{name} {value}" for name, value in values.items() if not math.isfinite(value)]:
            raise KitError(
                f"{self._stage_and_step()}: validation metrics are not finite ({', '.join(lost)}); "
                f"{self._hint_to_lower_rate()}"
            )
        self.best = checkpoints.add_epoch(self.best, values, epoch, self.stage.monitor.keep)
        means = {name: value / (self.steps - self.skipped) for name, value in self.sums.items()}
        figures = {"stage": self.name, "epoch": epoch, "step": self.step, **means}
        figures |= {"skipped": self.skipped} if self.skipped else {}
        seconds = round(self.seconds + time.monotonic() - began, 2)
        figures |= {"lr": self.optimizer.param_groups[0]["lr"], "seconds": seconds, "validation": values}
        line = EpochLine.model_validate(figures | diagnostics | {"collapsed": collapse_messages(diagnostics)})
        self.sums, self.seconds, self.skipped = {}, 0.0, 0
        self.lines.append(line)
        if is_first():
            with self.run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line.document()) + "\n")
        is_best = epoch in checkpoints.best_epoch_numbers(self.best)
        if self.stage.save_minutes is None or epoch == 1 or self._is_over() or self._is_state_due():
            self._save_state(is_best)
        elif is_best:
            self._save_best(epoch)
        self.tracking.update()
        shown = " ".join(f"{name} {format_metric(name, value)}" for name, value in values.items())
        loss = "none" if line.loss is None else f"{line.loss:.4f}"
        log.info("stage %s, epoch %d: training loss %s; validation %s", self.name, epoch, loss, shown)
        for sign in line.collapsed:
            log.warning(
                "stage %s, epoch %d: the model has COLLAPSED: %s; lower the learning rate, or use other negatives",
                self.name, epoch, sign,
            )  # fmt: skip

    def _require_finite(self) -> None:
        """Raise KitError if weights are not finite, so that they do not replace good weights on disk."""
        checkpoints.require_finite(
            self.model.state_dict(), f"{self._stage_and_step()}: the model", self._hint_to_lower_rate()
        )

    def _is_over(self) -> bool:
        """Return whether the stage has trained all its steps, or ends early."""
        return self.step == self.stage.epochs * self.steps or ends_early(self.stage.stop, self.history)

    def _is_state_due(self) -> bool:
        """Return whether the last saved state is older than the setting `save_minutes` allows."""
        minutes = self.stage.save_minutes
        return minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes

    def _save_best(self, epoch: int) -> None:
        """Save the weights of one of the best epochs, without a state to resume from."""
        if is_first():
            self.writer.save_best(epoch, self.best, self.model.state_dict())

    def _save_state(self, is_best: bool) -> None:
        """Save the state to resume from. If `is_best`, also save the weights of this epoch for ranking."""
        if self.step % self.steps:  # after an epoch, the weights have been checked before the validation
            self._require_finite()
        self.saved_at, self.saved_step = time.monotonic(), self.step
        if not is_first():
            return
        weights = self.model.state_dict()
        state = {
            "model": weights,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "precision": self.precision,
            "best": self.best,
            "step": self.step,
            "epoch": self.step // self.steps,
            "sums": self.sums,
            "seconds": self.seconds,
            "skipped": self.skipped,
            "lines": [line.document() for line in self.lines],
        }
        self.writer.save(state, weights if is_best else None)


def _build_validation(
    stage: schema.Stage, data: Data, relevance: Relevance | None, teachers: Teachers | None, precision: str
) -> Watching:
    """Build the object that validates the model after each epoch of a stage. precision: For computing embeddings."""
    sources = stage.monitor.data
    if stage.unit == "moment":
        annotated = {name: (data.readable_clips(name), data.moments[name]) for name in sources}
        return MomentValidation(annotated, stage, data.features, precision)
    clips = [clip for name in sources for clip in data.readable_clips(name)]
    return Validation(clips, stage, data.features, relevance, teachers, precision)
