"""Run all steps of a recipe: data, frames, stages, rank entries, result. A step whose file is there is finished."""

import logging
import os
import platform
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from data_tools.files import read_json, write_json
from submission.runs.record import RunResult
from system.audio.base import Device
from system.compute.device import gpu_of
from system.compute.processes import first_before_others, is_first, on_first, process_count
from system.experiments.ranking import RunRanking, is_ranked, open_blind_sets, rank_entry, require_rankable, waits
from system.experiments.summary import describe_data, describe_experts, format_result, parameters_of, weight_licences_of
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
from system.ranking.entries import RankedSet, RankMoments
from system.recipe.data import Data, load_data, make_missing
from system.recipe.load import Loaded
from system.recipe.schema import Recipe
from system.runs.folder import Run, trained_files
from system.runs.provenance import commit, inputs_of, require_models, require_unchanged
from system.training.prepare import build_initial_model, prepare, training_relevance
from system.training.tracking import Tracker, Tracking
from system.training.train import train

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
    """Run the steps of a recipe that are not finished; return the run.

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
    with ExitStack() as stack:
        if is_first():
            stack.enter_context(run.lock())
            if not run.resolved.exists():
                run.adopt(loaded)
        with first_before_others():
            make_missing(recipe)
            data = load_data(recipe, device=device)
        model = prepare(loaded, run, data, device)
        blind: dict[str, RankedSet] = {}  # of the first process
        on_first(lambda: blind.update(open_blind_sets(recipe, model.device)))
        on_first(lambda: require_rankable(recipe, data, model, run, blind))
        with first_before_others():
            relevance = training_relevance(recipe, data)
        train(recipe, run, data, model, relevance, Tracking(track if is_first() else None, run, profile))
        if is_first() and until == "results":
            run.result.unlink(missing_ok=True)  # its entries change now
            run.adopt(loaded)
            for name in run.ranked_entries() - recipe.rank.keys():
                log.warning("removing the files of rank entry %s, which the recipe no longer has", name)
                run.forget(name)
            ranking = RunRanking(recipe, run, data, model, build_initial_model(recipe, run, model.device), blind)
            for name in recipe.rank:
                if is_ranked(recipe, run, name):
                    continue
                if recipe.blind(name) and name not in blind:  # its files were missing when the run started
                    run.forget(name)
                else:
                    rank_entry(name, ranking)
            _write_result(recipe, run, data, model, relevance, round(time.monotonic() - began, 1))
    return run


def compute_features(recipe: Recipe, device: Device | None = None) -> None:
    """Make the missing manifests and frames of a recipe, and print what there is."""
    with first_before_others():
        make_missing(recipe)
        features = load_data(recipe, device=device).features
    if is_first():
        print(*features.summary_lines(), sep="\n")
        print(f"clips: {len(features.keys)} with frames, {len(features.broken)} broken and skipped")


def _is_finished(loaded: Loaded, run: Run) -> bool:
    """Return whether a run has nothing left to do.

    Raises KitError for the folder of another run, for missing models that it needs, and if files that a finished run
    has read have changed.
    """
    recipe = loaded.recipe
    run.require_place(loaded)
    if not run.result.exists():
        require_models(recipe)
        return False
    require_unchanged(run, inputs_of(recipe), run.changed_sources(recipe))
    left = [name for name in recipe.rank if not (is_ranked(recipe, run, name) or waits(recipe, name))]
    for folder in {one: None for name in left for one in recipe.rank[name].other_models}:
        trained_files(Path(folder))
    if left or run.resolved.read_text(encoding="utf-8") != loaded.resolved():
        log.info("ranking the new or changed rank entries %s, without training", ", ".join(left) or "none")
        return False
    made_by, now = run.read_result().commits[-1], commit()
    if made_by == now:
        log.info("the run is finished already: %s", run.folder)
    else:
        log.warning(
            "the run is finished already: %s; it was made by the code of commit %s, but the code now has commit %s; "
            "to make a new run with this code, add --name NAME", run.folder, made_by, now,
        )  # fmt: skip
    return True


def _write_result(
    recipe: Recipe, run: Run, data: Data, model: RetrievalModel, relevance: Relevance | None, seconds: float
) -> None:
    """Write figures, and result.json, which marks the run as finished. seconds: Duration of this process."""
    from system.runs.plots import draw_relevance, draw_run  # matplotlib takes a second

    draw_run(run)
    if relevance:
        draw_relevance(relevance, run.figures / "relevance.svg")
    results = {
        name: read_json(run.file("result", name))["result"] for name in recipe.rank if name in run.ranked_entries()
    }
    blind = {name for name in results if recipe.blind(name)}
    moments = {name for name in results if isinstance(recipe.rank[name], RankMoments)}
    several = f", {process_count()} processes" if process_count() > 1 else ""
    content = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "commits": run.read_provenance().commits,
        "hardware": f"{os.cpu_count()} cores {platform.machine()}, {gpu_of(model.device) or 'no GPU'}{several}",
        "parameters": parameters_of(recipe, model),
        "experts": describe_experts(recipe),
        "weight_licences": weight_licences_of(recipe),
        "data": describe_data(recipe, data),
        "seconds": seconds,
        "training_seconds": round(sum(line.seconds for line in run.read_metrics()), 1),
        "broken": data.features.broken,
        "rank": {name: one for name, one in results.items() if name not in blind | moments},
        "blind": {name: one for name, one in results.items() if name in blind},
        "moments": {name: one for name, one in results.items() if name in moments},
    }
    result = RunResult.model_validate(content)
    with (run.folder / "log.txt").open("a", encoding="utf-8") as file:  # the verb prints the same
        file.write(format_result(run, result) + "\n")
    write_json(run.result, result.document())
