"""The training loop: stages in order, each resumable at any step, with validation and checkpoints after every epoch."""

import json
import logging
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from data_tools.cli import Progress, counted, progress
from data_tools.documents.json_text import read_json, sha256_of, write_json
from data_tools.errors import KitError
from submission.runs.record import EpochLine
from system.batches.collate import Feed
from system.batches.sampler import Sampler
from system.compute.device import device_of, gpu_of, memory_errors, moved
from system.compute.distributed import (
    count,
    first_before_others,
    in_any,
    in_step,
    is_first,
    is_orphan,
    on_first,
    take_from_first,
)
from system.losses import terms
from system.losses.relevance.relax import Relevance
from system.models.retrieval import RetrievalModel
from system.networks.synchronised import synchronise
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.load import Loaded
from system.runs import checkpoints
from system.runs.folder import Run, contents_of, record_provenance
from system.runs.open import build_model, start_from, training_vocabulary
from system.runs.plots import relevance_figure
from system.runs.trained_on import note_trained_clips, refuse_leaks
from system.training.interrupt import Interrupted, interruptible
from system.training.metrics_file import write_metrics
from system.training.moment_validation import MomentValidation, require_windows
from system.training.parts import FrozenStart, parameter_groups
from system.training.same import require_same_state, require_same_work
from system.training.schedule import describe_stop, is_over, rates
from system.training.step import gradients
from system.training.teachers import open_teachers
from system.training.tracking import Tracker, Tracking
from system.training.validation import Validation, Watching, collapsed

LEAST_SCALE = 2.0**-10  # of fp16 losses, from 65,536 on: halved that often, gradients are not finite at any scale

log = logging.getLogger(__name__)


def prepare(loaded: Loaded, run: Run, data: Data, device: torch.device | None = None) -> RetrievalModel:
    """The model before any training, and all that is computed or refused before it: provenance, vocabulary, frozen
    texts. device: where all of it is computed; None for this machine's.

    Raises KitError for data, weights, or an exported model that changed since the run began, and as require_windows.
    """
    with first_before_others():
        return _prepare(loaded, run, data, device or device_of())


def _prepare(loaded: Loaded, run: Run, data: Data, device: torch.device) -> RetrievalModel:
    recipe = loaded.recipe
    require_windows(recipe, data)
    if not run.vocabulary.exists():
        write_json(
            run.vocabulary, training_vocabulary(recipe, data.clips, [*_more(recipe.trained_on, data), *new_words(data)])
        )
    model = initial_model(recipe, run, device)
    if is_first():
        contents = {name: contents_of(clips, data.features.keys) for name, clips in data.clips.items()}
        refuse_leaks(recipe, data)
        note_trained_clips(recipe, run, data)
        record_provenance(run, loaded, model.text.identity(), contents, gpu_of(model.device))
    used = {name for stage in recipe.stages.values() for name in (*stage.train.data, *stage.monitor.data)}
    captions = [caption for name in sorted(used) for clip in data.whole(name) for caption in clip.captions]
    model.text.prepare([*captions, *_more(sorted(used), data)])
    return model


def _more(names: Iterable[str], data: Data) -> list[str]:
    """Sentences of these sources that are no captions of theirs: of moments, and what augmentation puts in."""
    return [*(moment.text for name in names for moment in data.moments.get(name, ())), *new_texts(data)]


def new_texts(data: Data) -> list[str]:
    """Captions that may come in place of those of training."""
    return [text for augmentation in data.augmentations.values() for text in augmentation.texts()]


def new_words(data: Data) -> list[str]:
    """What else the captions of training may newly hold."""
    return [text for augmentation in data.augmentations.values() for text in augmentation.words()]


def train(loaded: Loaded, run: Run, data: Data, model: RetrievalModel, track: Sequence[type[Tracker]] = ()) -> None:
    """Train all stages of a recipe inside a run's folder, from the model that `prepare` gave; finished ones are
    skipped. track: trackers that get every epoch.

    What was trained is in the run's checkpoints. Raises KitError for what does not fit, Interrupted after Ctrl-C.
    """
    with first_before_others():
        relevance = training_relevance(loaded.recipe, data, run.figures / "relevance.svg")
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    before: list[EpochLine] = []  # metrics of the stages so far
    with Tracking(run, track if is_first() else ()) as tracking:
        for name, stage in loaded.recipe.stages.items():
            if on_first((run.folder / name / "done.json").exists):
                log.info("stage %s is finished", name)
                done = checkpoints.read_done(run.folder / name)
                before += done.lines
                continue
            model.load_state_dict(initial)
            hint = _less_memory(stage, loaded.recipe.model.embeds_by_parts)
            with memory_errors(f"stage {name}: batch_size {stage.batch_size}", hint):
                before += _Stage(loaded.recipe, name, run, data, model, relevance, tracking).run_to_end(before)
        on_first(lambda: write_metrics(run, before))
        tracking.update()


def _less_memory(stage: schema.Stage, by_parts: bool) -> str:
    if not by_parts:
        return "lower batch_size, or use a GPU with more of it"
    at_once = stage.grad_cache_chunk or stage.batch_size
    if at_once == 1:
        return "use a GPU with more of it, or fewer experts"
    precision = ", or precision to bf16" if stage.precision == "float32" else ""
    return f"set grad_cache_chunk to less than {at_once}, which gives the same gradients{precision}"


def training_relevance(recipe: schema.Recipe, data: Data, figure: Path) -> Relevance | None:
    """CIDEr between the captions of the stages, counted on the recipe's one corpus, with its figure; None where no loss
    asks for it."""
    asking = [stage for stage in recipe.stages.values() if terms.asks_relax(stage.losses)]
    if recipe.relevance is None or not asking:
        return None
    corpus = [clip.captions for name in recipe.relevance.corpus for clip in data.clips[name] if clip.captions]
    relevance = Relevance(recipe.relevance, corpus, Path(recipe.banks))
    used = {name for stage in asking for name in (*stage.train.data, *stage.monitor.data)}
    percents = [point.percentile for point in recipe.relevance.relax]
    title = f"captions of {', '.join(recipe.relevance.corpus)}: {relevance.distribution.pairs:,} pairs"
    if is_first():
        figure.parent.mkdir(exist_ok=True)
        relevance_figure(relevance.distribution, percents, relevance.relax, title, figure)
    relevance.prepare(caption for name in sorted(used) for clip in data.whole(name) for caption in clip.captions)
    relevance.prepare(new_texts(data))
    return relevance


def initial_model(recipe: schema.Recipe, run: Run, device: torch.device) -> RetrievalModel:
    """The same for the same recipe, seed, vocabulary, and published weights."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, read_json(run.vocabulary, run.again(run.vocabulary)))
    model.audio.load_pretrained()
    return moved(model, device)


class _Stage:
    """One stage of one run: what stays the same while its steps go by."""

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
        self.name, self.run, self.model, self.tracking = name, run, model, tracking
        require_same_work(name, recipe.stages[name], data)
        self.banks = Path(recipe.banks)
        self.stage = stage = recipe.stages[name]
        self.seed = (recipe.seed, list(recipe.stages).index(name))
        self.features, self.folder, self.device = data.features, run.folder / name, model.device
        self.longest = recipe.model.audio.training_frames
        self.relevance = relevance if terms.asks_relax(stage.losses) else None
        sources = [data.items(source, stage.unit) for source in stage.train.data]
        try:
            drawn = stage.train.mix, stage.batch_size, stage.captions_per_clip, self.seed
            augment = data.augmentations.get(name)
            if augment is not None:
                augment = augment.among([clip for source in stage.train.data for clip in data.whole(source)])
            self.sampler = Sampler(sources, *drawn, augment)
        except KitError as error:
            raise KitError(f"stage {name}: {error}") from error
        if shared := data.shared(stage.train.data, stage.monitor.data):
            found = f"{counted(shared, 'recording')} it is trained on {'is' if shared == 1 else 'are'}"
            log.warning("stage %s: %s also in what it is watched on", name, found)
        clips = [clip for source in stage.monitor.data for clip in data.whole(source)]
        with first_before_others():
            self.teachers = open_teachers(recipe, name, run, data, model.device)
        if stage.unit == "moment":
            watched = {name: (data.whole(name), data.moments[name]) for name in stage.monitor.data}
            self.validation: Watching = MomentValidation(watched, stage, self.features)
        else:
            self.validation = Validation(clips, stage, self.features, self.relevance, self.teachers)
        self.steps = self.sampler.steps_of_all if stage.steps_per_epoch == "all" else stage.steps_per_epoch
        groups, self.rates = parameter_groups(model, stage.optimizer)
        self.optimizer = torch.optim.AdamW(groups, lr=stage.optimizer.lr, weight_decay=stage.optimizer.weight_decay)
        self.frozen_start = FrozenStart(model, stage.optimizer)
        self.alike = not recipe.model.embeds_by_parts
        if count() > 1 and recipe.model.seen_by_share:
            seen = " and ".join(recipe.model.seen_by_share)
            log.warning("stage %s: each of %d processes sees %s of its share of a batch alone", name, count(), seen)
        synchronise(model, stage.batch_norm == "synchronised")
        network: Any = model.audio.parts().get("network", model.audio)
        network._compiled_call_impl = None  # of the stage before
        if stage.compile and self.device.type == "cuda":
            network.compile()  # its tensors keep their names
        self.precision = stage.precision if self.device.type == "cuda" else "float32"
        self.scaler = GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.best: checkpoints.BestEpochs = {}
        self.step = 0
        self.lines: list[EpochLine] = []  # metrics of the finished epochs
        self.sha256: dict[str, str] = {}  # of the files in its folder
        self.sums: dict[str, float] = {}  # of the epoch so far: loss, and what diagnose tells
        self.seconds = 0.0  # that the epoch so far took, in all processes that worked on it

    @property
    def history(self) -> list[dict[str, float]]:
        """Validation values of the finished epochs."""
        return [line.validation for line in self.lines]

    def run_to_end(self, before: list[EpochLine]) -> list[EpochLine]:
        """Train what is still to train; returns the stage's metrics, a line an epoch. before: those of the stages
        before it."""
        self._begin()
        require_same_state(self.name, self.step, self.model, self.run)
        on_first(lambda: write_metrics(self.run, [*before, *self.lines]))
        self.tracking.update()
        if self.precision != self.stage.precision:
            log.warning("stage %s: %s needs CUDA; computing in float32", self.name, self.stage.precision)
        total = self.stage.epochs * self.steps
        log.info(
            "stage %s: %s of %s, from step %d",
            self.name,
            counted(self.stage.epochs, "epoch"),
            counted(self.steps, "step"),
            self.step,
        )
        made_of = self.sampler, self.features, self.relevance, self.device
        with (
            interruptible() as stop,
            closing(Feed(*made_of, self.teachers, self.longest, self.stage.grad_cache_chunk, self.alike)) as feed,
            progress(self.name, total, "step", self.step) as bar,
        ):
            while self.step < total and not is_over(self.stage.stop, self.history):
                self._epoch(feed, bar, stop)
                self._finish_epoch()
                self._stop_if_asked(in_any(stop["asked"] or is_orphan()))
        self.frozen_start.end()
        if self.stage.stop and self.step < total:
            log.info("stage %s ends early: %s", self.name, describe_stop(self.stage.stop))
        done = {"epochs": len(self.lines), "steps": self.step, "best": self.best}
        done |= {"sha256": self.sha256, "lines": [line.document() for line in self.lines]}
        on_first(lambda: write_json(self.folder / "done.json", done))
        return self.lines

    def _begin(self) -> None:
        """Resume from last.pt, or take the weights the stage starts from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state, start = checkpoints.load_state(self.folder), self.stage.start_from
        if state is not None:
            self._resume(state)
        elif isinstance(start, schema.FromStage):
            taken = checkpoints.load_checkpoint(self.model, self.run.folder / start.stage, start.checkpoint)
            log.info("stage %s starts from %s", self.name, taken)
        elif isinstance(start, schema.FromModel):
            start_from(self.model, start, self.banks)
            log.info("stage %s starts from the model %s", self.name, start.folder)

    def _resume(self, state: dict[str, Any]) -> None:
        if state["precision"] != self.precision:
            raise KitError(
                f"{self.folder} was begun in {state['precision']} and this machine computes in {self.precision}; "
                "go on where it began, or start a new run"
            )
        checkpoints.restore(self.model, state["model"], self.folder / "last.pt")
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.best, self.step, self.sums = state["best"], state["step"], state["sums"]
        self.seconds = state["seconds"]
        if is_first():  # a full disk may have kept it from being written after last.pt
            checkpoints.write_table_of_best(self.folder, self.best)
        self.sha256 = {**state.get("sha256", {}), "last.pt": sha256_of(self.folder / "last.pt")}
        self.lines = [EpochLine.model_validate(line) for line in state["lines"]]

    def _epoch(self, feed: Feed, bar: Progress, stop: dict[str, bool]) -> None:
        """Steps up to the next full epoch."""
        self.model.train()
        while True:
            began = time.monotonic()
            seen = self._train_step(feed)
            self.seconds += time.monotonic() - began
            self.sums = {name: self.sums.get(name, 0.0) + value for name, value in seen.items()}
            self.step += 1
            bar.advance(1, f"loss {seen['loss']:.4f}")
            if self.step % self.steps == 0:
                return
            with in_step():
                asked = in_any(stop["asked"] or is_orphan())
            if asked:
                self._require_finite()
                self._save(None)
            self._stop_if_asked(asked)

    def _stop_if_asked(self, asked: bool) -> None:
        if asked:
            said = f"stopped at step {self.step} of stage {self.name}; the same command goes on from here"
            raise Interrupted(said if is_first() else "")

    def _train_step(self, feed: Feed) -> dict[str, float]:
        # Randomness is a function of the step, so that a resumed run draws what an unbroken one does.
        torch.manual_seed(int(np.random.SeedSequence([*self.seed, self.step]).generate_state(1)[0]))
        batch = feed.batch(self.step)
        now = rates(self.stage, self.rates, self.step, self.steps, self.history)
        for group, rate in zip(self.optimizer.param_groups, now, strict=True):
            group["lr"] = rate
        self.frozen_start.begin_step(self.step)
        self.optimizer.zero_grad()
        with in_step():
            seen = gradients(self.model, batch, self.stage, self.precision, self.scaler)
        if not math.isfinite(seen["loss"]):
            raise KitError(self._overflow(f"the loss is {seen['loss']}"))
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.stage.max_grad_norm or math.inf)
        # In fp16 an overflow is no fault: the scaler skips the update, and takes a smaller scale from then on.
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            raise KitError(self._overflow(f"the norm of the gradients is {norm}"))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < LEAST_SCALE:
            raise KitError(self._overflow("gradients overflow at every scale"))
        return seen

    def _overflow(self, what: str) -> str:
        """A sentence on numbers that are not finite, in the step under way or left by the last one."""
        state = self.folder / "last.pt"
        left = f"{state} still holds an earlier state" if state.exists() else "nothing of it was saved yet"
        return f"stage {self.name}: {what} at step {self.step}; lower the learning rate in a new run ({left})"

    def _finish_epoch(self) -> None:
        began, epoch = time.monotonic(), self.step // self.steps
        take_from_first(self.model)
        self._require_finite()
        values, seen = self.validation(self.model)
        if lost := [f"{name} {value}" for name, value in values.items() if not math.isfinite(value)]:
            raise KitError(self._overflow(f"validation gives {', '.join(lost)}"))
        self.best = checkpoints.updated(self.best, values, epoch, self.stage.monitor.keep)
        means = {name: value / self.steps for name, value in self.sums.items()}
        figures = {"stage": self.name, "epoch": epoch, "step": self.step, **means}
        seconds = round(self.seconds + time.monotonic() - began, 2)
        figures |= {"lr": self.optimizer.param_groups[0]["lr"], "seconds": seconds, "validation": values}
        line = EpochLine.model_validate(figures | seen | {"collapsed": collapsed(seen)})
        self.sums, self.seconds = {}, 0.0
        self.lines.append(line)
        if is_first():
            with self.run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line.document()) + "\n")
        self._save(self.model if epoch in checkpoints.kept_epochs(self.best) else None)
        self.tracking.update()
        shown = " ".join(f"{name} {value:.4f}" for name, value in values.items())
        log.info("%s epoch %d: training loss %.4f; validation %s", self.name, epoch, line.loss, shown)
        for what in line.collapsed:
            log.warning("%s epoch %d: COLLAPSED, %s; lower the rate, or take other negatives", self.name, epoch, what)

    def _require_finite(self) -> None:
        """KitError before weights that an update made overflow take the place of good ones."""
        checkpoints.require_finite(self.model.state_dict(), "the model", self._overflow("the last update overflowed"))

    def _save(self, epoch_weights: RetrievalModel | None) -> None:
        if not is_first():
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "precision": self.precision,
            "best": self.best,
            "step": self.step,
            "epoch": self.step // self.steps,
            "sums": self.sums,
            "seconds": self.seconds,
            "lines": [line.document() for line in self.lines],
        }
        self.sha256 = checkpoints.save_state(self.folder, state, epoch_weights, self.sha256)
