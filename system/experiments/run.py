"""Run all steps of a recipe.

The steps are data, frames, stages, rank entries and the result. A step whose file is there is finished.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

from data_tools.errors import kit_errors
from data_tools.files import read_json, write_json
from system.audio import Device
from system.devices import device_of, gpu_of
from system.experiments.moments import require_moments
from system.experiments.ranking import RunRanking, is_ranked
from system.experiments.summary import describe_run
from system.losses import terms
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
from system.processes import first_before_others, is_first, on_first
from system.recipe.data import Data, load_data, make_missing
from system.recipe.load import Loaded, as_change, load_recipe, text_of
from system.recipe.schema import Recipe
from system.runs.folder import Run, trained_files
from system.runs.open import build_model, training_vocabulary
from system.runs.provenance import inputs_of, record_provenance, require_models, require_unchanged, write_trained_clips
from system.training.tracking import Tracker, Tracking
from system.training.train import train

Until = Literal["features", "training", "results"]
log = logging.getLogger(__name__)


@kit_errors
def run_recipe(
    recipe: str | PathLike[str],
    changes: Mapping[str, Any] | None = None,
    name: str | None = None,
    runs: str | PathLike[str] = "runs",
    device: str | None = None,
) -> Run:
    """Run the unfinished steps of a recipe; return the run.

    Its `metrics` are those of the rank entries; `load_model` opens its `folder`.

    Args:
        changes: Settings by key, such as {"stages.train.epochs": 2}.
        name: Of the run's folder in `runs`; None: NAME_sSEED of the recipe.
        device: cuda, cuda:1, mps or cpu; None: CUDA if the machine has a GPU, else the CPU.
    """
    for floor in ("data_tools", "submission", "system"):  # for the run's log.txt
        logging.getLogger(floor).setLevel(logging.INFO)
    loaded = load_recipe(Path(recipe), [as_change(key, value) for key, value in (changes or {}).items()])
    return run_steps(loaded, Path(runs), Path(runs) / name if name else None, device_of(device) if device else None)


def run_steps(
    loaded: Loaded,
    runs: Path,
    out: Path | None = None,
    device: Device | None = None,
    track: Tracker | None = None,
    until: Until = "results",
    profile: int = 0,
) -> Run:
    """Run the steps that are not finished; return the run.

    Args:
        runs: Folder of all runs.
        out: Folder of this run; None: NAME_sSEED in `runs`.
        device: None: this machine's default.
        track: Gets the metrics of every epoch.
        until: The last step. Up to the features, only what there is of them is printed, and no folder is made.
        profile: Steps of each stage whose trace is written.
    """
    recipe, began = loaded.recipe, time.monotonic()
    run = Run(out or runs / f"{recipe.name}_s{recipe.seed}")
    if until == "features":
        _print_features(recipe, device)
        return run
    log.info("run folder: %s", run.folder)
    if on_first(lambda: _is_finished(loaded, run, until)):
        return run
    with run.lock() if is_first() else nullcontext():
        if is_first() and not run.resolved.exists():
            run.adopt(loaded)
        with first_before_others():
            make_missing(recipe)
            data = load_data(recipe, device)
            model = _prepare(loaded, run, data, device or device_of())
            relevance = training_relevance(recipe, data)
        initial = {name: value.cpu().clone() for name, value in model.state_dict().items()}  # not in a GPU's memory
        ranking = RunRanking(recipe, run, data, model, initial)
        on_first(ranking.prepare)  # errors of ranking are found before the training
        tracking = Tracking(track, run, profile) if is_first() else Tracking(None, run)
        train(recipe, run, data, model, initial, relevance, tracking)
        if is_first() and until == "results":
            run.result.unlink(missing_ok=True)  # its entries change now
            run.adopt(loaded)
            ranking.rank()
            from system.runs.plots import draw_run  # matplotlib takes a second

            draw_run(run)
            seconds = round(time.monotonic() - began, 1)
            write_json(run.result, describe_run(recipe, run, data, model, seconds).document())  # ends the run
    return run


def _print_features(recipe: Recipe, device: Device | None) -> None:
    with first_before_others():
        make_missing(recipe)
        features = load_data(recipe, device).features
    if is_first():
        print(f"clips: {len(features.keys)} with frames, {len(features.broken)} broken and skipped")


def _is_finished(loaded: Loaded, run: Run, until: Until) -> bool:
    """Return whether a run is finished up to a step.

    Raises:
        KitError: The folder is another run's, a model is missing, or an input has changed.
    """
    recipe = loaded.recipe
    run.require_place(loaded)
    if not run.result.exists():
        require_models(recipe)
        return False
    require_unchanged(run, inputs_of(recipe))
    left = [name for name in recipe.rank if not (is_ranked(recipe, run, name) or recipe.awaited_files(name))]
    for folder in {one: None for name in left for one in recipe.rank[name].other_models}:
        trained_files(Path(folder))  # else the run stays finished
    is_changed = run.resolved.read_text(encoding="utf-8") != text_of(recipe)
    if until == "results" and (left or is_changed):
        log.info("ranking the new or changed rank entries %s, without training", ", ".join(left) or "none")
        return False
    log.info("the run is finished already: %s", run.folder)
    return True


def _prepare(loaded: Loaded, run: Run, data: Data, device: torch.device) -> RetrievalModel:
    """Build the model before training, and write what it depends on.

    The model only depends on the recipe, its seed, the vocabulary, and the published weights. The texts of a frozen
    encoder are embedded; vocabulary.json, trained_on.csv and provenance.json are written.

    Raises:
        KitError: What the run reads has changed since it began, or a stage needs moments whose windows are not known.
    """
    recipe = loaded.recipe
    require_moments(recipe, data)
    if not run.provenance.exists():  # until its data are recorded, they may change
        more = data.more_texts(recipe.trained_on)
        write_json(run.vocabulary, training_vocabulary(recipe, data.clips, more))
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, read_json(run.vocabulary), device, published=True)
    if is_first():
        write_trained_clips(recipe, run, data)
        record_provenance(run, loaded, model.text.identity(), gpu_of(model.device))
    used = sorted({name for stage in recipe.stages.values() for name in stage.sources})
    model.text.prepare([*data.captions(used), *data.more_texts(used)])
    return model


def training_relevance(recipe: Recipe, data: Data) -> Relevance | None:
    """Return the CIDEr-D of training captions, if it is needed.

    Document frequencies are counted in the recipe's `relevance.corpus`.
    """
    asking = [stage for stage in recipe.stages.values() if terms.need_relevance(stage.losses)]
    if recipe.relevance is None or not asking:
        return None
    corpus = [clip.captions for name in recipe.relevance.corpus for clip in data.clips[name] if clip.captions]
    relevance = Relevance(recipe.relevance, corpus)
    captions = data.captions(sorted({name for stage in asking for name in stage.sources}))
    relevance.prepare([*captions, *data.new_texts()])
    return relevance
