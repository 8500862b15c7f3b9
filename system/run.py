"""All of a recipe in one go: data, features, stages, ranked CSV, scores. What is done is passed over."""

import argparse
import json
import logging
import os
import platform
import time
from pathlib import Path
from typing import Any

from submission.editions import get_edition
from submission.metrics import chance
from system import schema
from system.errors import KitError
from system.options import add_recipe_arguments, load_from
from system.recipe import Loaded
from system.runs import Run, open_run, write_json

log = logging.getLogger(__name__)


def run_recipe(loaded: Loaded, runs: Path, out: Path | None = None) -> Run:
    """Do what is still to do of a recipe; the run's result.json exists when this returns."""
    folder = open_run(loaded, runs, out)
    if folder.result.exists():
        log.info("finished already: %s", folder.folder)
        return folder
    from system.data import load_data, make_missing  # torch stays out of the way of a finished run

    began = time.monotonic()
    with folder.held():
        make_missing(loaded.recipe)
        data = load_data(loaded.recipe)
        _require_whole(loaded.recipe, data)
        _train_and_rank(loaded, folder, data, began)
    return folder


def _require_whole(recipe: schema.Recipe, data: Any) -> None:
    """A clip that cannot be ranked is said before the training, not after it."""
    for ranked in recipe.rank.values():
        broken = [clip.id for clip in data.clips[ranked.data] if clip.id in data.features.broken]
        if broken:
            raise KitError(
                f"{len(broken)} clips of {ranked.data}, which is to be ranked, have broken audio, first "
                f"{data.features.broken[broken[0]]}; mend them, or take them out of {recipe.data[ranked.data].manifest}"
            )


def _train_and_rank(loaded: Loaded, run: Run, data: Any, began: float) -> None:
    from system.train import initial_model, train

    recipe = loaded.recipe
    model = train(loaded, run, data)
    untrained = initial_model(recipe, run)
    ranked = {name: _rank(recipe, name, run, data, model, untrained) for name in recipe.rank}
    result = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "commits": json.loads((run.folder / "provenance.json").read_text(encoding="utf-8"))["commits"],
        "hardware": _hardware(),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "seconds": round(time.monotonic() - began, 1),
        "training_seconds": round(sum(line["seconds"] for line in _lines(run.metrics)), 1),
        "clips": {name: len(clips) for name, clips in data.clips.items()},
        "broken": data.features.broken,
        "rank": ranked,
    }
    write_json(run.result, result)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _hardware() -> str:
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{os.cpu_count()} cores {platform.machine()}{gpu}"


def _rank(recipe: schema.Recipe, name: str, run: Run, data: Any, model: Any, untrained: Any) -> dict[str, Any]:
    """Score matrix, ranked CSV, and figures of one `rank` entry, beside the untrained model's and chance."""
    from data_tools.manifest import caption_queries
    from submission.ranking import write_ranked_csv
    from submission.scores import write_scores
    from submission.scoring import score_matrix as figures_of
    from system.checkpoints import load_checkpoint
    from system.models import device_of, facts_of
    from system.retrieve import score_matrix

    entry = recipe.rank[name]
    edition, clips = get_edition(entry.edition), data.clips[entry.data]
    queries = caption_queries(clips)
    taken = load_checkpoint(model, run.stage(entry.stage), entry.checkpoint)
    facts = facts_of(recipe, run.folder.name, taken)
    matrix = score_matrix(model, clips, queries, data.features, device_of(), facts)
    csv = run.folder / "submission" / f"{name}.csv"
    for path in (run.scores(name), csv):
        path.parent.mkdir(exist_ok=True)
    write_scores(run.scores(name), matrix)
    if entry.ranked_csv:
        write_ranked_csv(matrix, csv, edition)
    before = score_matrix(untrained, clips, queries, data.features, device_of(), {})
    summary = figures_of(matrix, edition)
    return {
        **summary.values,
        "interval": list(summary.interval),
        "queries": len(queries),
        "clips": len(clips),
        "checkpoint": taken,
        "edition": edition.year,
        "metric": edition.metric,
        "chance": chance(len(clips), edition.map_k),
        "untrained": figures_of(before, edition).values[edition.metric],
        "ceiling": _ceiling(recipe.data[entry.data]),
        "scores": str(run.scores(name)),
        "ranked_csv": str(csv) if entry.ranked_csv else None,
    }


def _ceiling(source: schema.Source) -> float | None:
    """mAP@10 of a perfect labeller, where the true labels are known (composed scenes)."""
    folder = Path(source.manifest).parent
    if not (folder / "labels.csv").exists():
        return None
    from data_tools.ceiling import ceiling

    return ceiling(folder, source.split)


def report(run: Run) -> str:
    """The result as lines for people."""
    result = json.loads(run.result.read_text(encoding="utf-8"))
    lines = [
        f"run        {run.folder}",
        f"trained    {result['trainable_parameters']:,} parameters, {result['hardware']}, "
        f"{result['seconds']:.0f} s in all, {result['training_seconds']:.0f} s of training",
    ]
    for name, entry in result["rank"].items():
        metric, (low, high) = entry["metric"], entry["interval"]
        recalls = "  ".join(f"{key} {value:.4f}" for key, value in entry.items() if key.startswith("R@"))
        ceiling = f", ceiling {entry['ceiling']:.4f}" if entry["ceiling"] is not None else ""
        lines += [
            f"{name}: {entry['queries']} queries, {entry['clips']} clips, {entry['checkpoint']}",
            f"  {metric}   {entry[metric]:.4f}  (95 % {low:.4f} to {high:.4f})   {recalls}",
            f"  beside     chance {entry['chance']:.4f}, untrained {entry['untrained']:.4f}{ceiling}",
            f"  ranked CSV {entry['ranked_csv'] or 'none'}",
        ]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    print(report(run_recipe(load_from(arguments), arguments.runs, arguments.out)))
    return 0
