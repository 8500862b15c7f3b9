"""Run all steps of a recipe.

Data, frames, stages, rank entries, result. A step whose file is there is finished.
"""

import logging
import os
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from data_tools.files import read_json, write_json
from submission.runs.record import RunResult
from system.audio.base import Device
from system.compute.device import device_of, gpu_of, moved
from system.compute.processes import first_before_others, is_first, on_first, process_count
from system.experiments.ranking import RunRanking, is_ranked, open_blind_sets, rank_entry, require_rankable, waits
from system.experiments.summary import describe_data, describe_experts, parameters_of, weight_licences_of
from system.losses import terms
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
from system.ranking.entries import RankedSet
from system.recipe.data import Data, load_data, make_missing
from system.recipe.load import Loaded
from system.recipe.schema import Recipe
from system.runs.folder import Run, trained_files
from system.runs.open import build_model, training_vocabulary
from system.runs.provenance import inputs_of, record_provenance, require_models, require_unchanged, write_trained_clips
from system.training.tracking import Tracker, Tracking
from system.training.train import train
from system.training.validation import require_windows

Until = Literal["training", "results"]
log = logging.getLogger(__name__)


def run_recipe(
    loaded: Loaded,
    runs: Path,
    out: Path | None = None,
    device: Device | None = None,
    track: Tracker | None = None,
    until: Until = "results",
    profile: int = 0,
) -> Run:
    """Run the unfinished steps of a recipe; return the run.

    Args:
        runs: Folder of all runs.
        out: Folder of this run; None: NAME_sSEED in `runs`.
        device: None: this machine's default.
        track: Gets the metrics of every epoch.
        until: The last step.
        profile: Steps of each stage whose trace is written.
    """
    recipe, began = loaded.recipe, time.monotonic()
    run = Run(out or runs / f"{recipe.name}_s{recipe.seed}")
    log.info("run folder: %s", run.folder)
    if on_first(lambda: _is_finished(loaded, run)):
        return run
    with run.lock() if is_first() else nullcontext():
        if is_first() and not run.resolved.exists():
            run.adopt(loaded)
        with first_before_others():
            make_missing(recipe)
            data = load_data(recipe, device=device)
            model = _prepare(loaded, run, data, device or device_of())
            relevance = training_relevance(recipe, data)
        blind: dict[str, RankedSet] = {}  # of the first process; errors of ranking are found before the training
        on_first(lambda: blind.update(open_blind_sets(recipe, model.device)))
        on_first(lambda: require_rankable(recipe, data, model, run, blind))
        train(recipe, run, data, model, relevance, Tracking(track if is_first() else None, run, profile))
        if is_first() and until == "results":
            run.result.unlink(missing_ok=True)  # its entries change now
            run.adopt(loaded)
            for name in run.ranked_entries() - recipe.rank.keys():
                log.warning("removing the files of rank entry %s, which the recipe no longer has", name)
                run.forget(name)
            ranking = RunRanking(recipe, run, data, model, _initial_model(recipe, run, model.device), blind)
            for name in recipe.rank:
                if is_ranked(recipe, run, name):
                    continue
                if recipe.blind(name) and name not in blind:  # its files were missing when the run started
                    run.forget(name)
                else:
                    rank_entry(name, ranking)
            _write_result(recipe, run, data, model, round(time.monotonic() - began, 1))
    return run


def compute_features(recipe: Recipe, device: Device | None = None) -> None:
    """Make missing manifests and frames, and print what there is."""
    with first_before_others():
        make_missing(recipe)
        features = load_data(recipe, device=device).features
    if is_first():
        for name, bank in features.banks.items():
            print(f"{name}: {len(set(features.keys.values()))} series of dimension {bank.dim}")
        print(f"clips: {len(features.keys)} with frames, {len(features.broken)} broken and skipped")


def _is_finished(loaded: Loaded, run: Run) -> bool:
    """Return whether a run has nothing left to do.

    Raises KitError for the folder of another run, for missing models, and for files that have changed.
    """
    recipe = loaded.recipe
    run.require_place(loaded)
    if not run.result.exists():
        require_models(recipe)
        return False
    require_unchanged(run, inputs_of(recipe))
    left = [name for name in recipe.rank if not (is_ranked(recipe, run, name) or waits(recipe, name))]
    for folder in {one: None for name in left for one in recipe.rank[name].other_models}:
        trained_files(Path(folder))
    if left or run.resolved.read_text(encoding="utf-8") != loaded.resolved():
        log.info("ranking the new or changed rank entries %s, without training", ", ".join(left) or "none")
        return False
    log.info("the run is finished already: %s", run.folder)
    return True


def _prepare(loaded: Loaded, run: Run, data: Data, device: torch.device) -> RetrievalModel:
    """Build the model, and write the run's provenance.

    Also writes the vocabulary, and embeds texts by frozen encoders.

    Raises KitError if what the run reads has changed since it began, and if a stage needs moments whose windows are not
    known.
    """
    recipe = loaded.recipe
    require_windows(recipe, data)
    if not run.vocabulary.exists():
        more = data.more_texts(recipe.trained_on)
        write_json(run.vocabulary, training_vocabulary(recipe, data.clips, more))
    model = _initial_model(recipe, run, device)
    if is_first():
        write_trained_clips(recipe, run, data)
        record_provenance(run, loaded, model.text.identity(), gpu_of(model.device))
    used = sorted({name for stage in recipe.stages.values() for name in stage.sources})
    model.text.prepare([*data.captions(used), *data.more_texts(used)])
    return model


def _initial_model(recipe: Recipe, run: Run, device: torch.device) -> RetrievalModel:
    """Build the model before training.

    New layers have random weights, networks published ones.

    The model only depends on the recipe, its seed, the vocabulary, and the published weights.
    """
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, read_json(run.vocabulary))
    if recipe.model.audio.needs():
        model.audio.load_pretrained()
    return moved(model, device)


def training_relevance(recipe: Recipe, data: Data) -> Relevance | None:
    """Return the CIDEr-D and margin factors of all captions.

    None if no loss needs them.

    Document frequencies are counted in the recipe's `relevance.corpus`.
    """
    asking = [stage for stage in recipe.stages.values() if terms.need_relevance(stage.losses)]
    if recipe.relevance is None or not asking:
        return None
    corpus = [clip.captions for name in recipe.relevance.corpus for clip in data.clips[name] if clip.captions]
    relevance = Relevance(recipe.relevance, corpus)
    relevance.prepare(data.captions(sorted({name for stage in asking for name in stage.sources})))
    relevance.prepare(data.new_texts())
    return relevance


def _write_result(recipe: Recipe, run: Run, data: Data, model: RetrievalModel, seconds: float) -> None:
    """Write figures, and result.json, which ends the run.

    seconds: Duration of this process.
    """
    from system.runs.plots import draw_run  # matplotlib takes a second

    draw_run(run)
    results: dict[str, dict[str, Any]] = {"rank": {}, "blind": {}, "moments": {}}
    for name in [name for name in recipe.rank if name in run.ranked_entries()]:
        kind = "moments" if name in recipe.rank_moments else "blind" if recipe.blind(name) else "rank"
        results[kind][name] = read_json(run.file("result", name))["result"]
    several = f", {process_count()} processes" if process_count() > 1 else ""
    result = RunResult(
        recipe=recipe.name,
        seed=recipe.seed,
        commits=run.read_provenance().commits,
        hardware=f"{os.cpu_count()} cores {platform.machine()}, {gpu_of(model.device) or 'no GPU'}{several}",
        parameters=parameters_of(recipe, model),
        experts=describe_experts(recipe),
        weight_licences=weight_licences_of(recipe),
        data=describe_data(recipe, data),
        seconds=seconds,
        training_seconds=round(sum(line.seconds for line in run.read_metrics()), 1),
        broken=data.features.broken,
        **results,
    )
    write_json(run.result, result.document())
