"""Run a recipe with several seeds and settings."""

import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from data_tools.cli import about
from data_tools.files import lock_of, remove_parts, write_text
from data_tools.manifest import TEST_SPLITS
from data_tools.settings import Name, Strict, fault_of
from submission.runs.reading import read_result
from submission.runs.record import EpochLine
from system.compute.processes import is_first, on_first, processes
from system.experiments.run import Until, compute_features, run_recipe
from system.experiments.tables import (
    DEFAULT,
    OF_MOMENTS,
    Column,
    StudyRow,
    StudyTable,
    figures_of_moments,
    figures_of_run,
)
from system.experts.base import Device
from system.ranking.base import RankEntry
from system.ranking.checkpoint import ByOneModel
from system.recipe import schema
from system.recipe.load import Loaded, RecipeError, as_change, load_recipe, read_document
from system.runs.folder import Run
from system.runs.overview import CHOSEN_BY

if TYPE_CHECKING:
    from system.training.tracking import Tracker


class Published(Strict):
    """Figures of a paper, which the study's table shows below the measured figures.

    source: Paper and table. entry: The `rank` entry to which the figures belong. cells: Dict from a cell of the study
    (a variant of the recipe) to one figure per column of the study's table, in the table's unit; null: not published.
    """

    source: str
    entry: Name
    cells: dict[Name, list[float | None]]


class Study(Strict):
    """A study: one run per cell and seed, each with a changed recipe.

    name: Name of the folder of its runs. recipe: Path of the recipe, from the study file's folder. cells: Dict from a
    cell's name to the settings that this variant of the recipe changes, with dotted keys. The text `{NAME}` in a
    setting is replaced by the folder of a run: that of the earlier cell NAME with the same seed. The setting can thus
    name an earlier run as a teacher. columns: Metrics that are the columns of the table.
    """

    name: Name
    recipe: str
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    cells: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    columns: Annotated[list[Column], Field(min_length=1)] = DEFAULT
    unit: Literal["share", "percent"] = "share"
    published: Published | None = None


log = logging.getLogger(__name__)

Cells = dict[tuple[str, int], Loaded]  # (cell, seed) -> the changed recipe


def load_study(path: Path, changes: list[str], runs: Path = Path("runs")) -> tuple[Study, Cells]:
    """Read a study file, apply the `changes` of --set, and make the recipe of every cell (variant) and seed.

    runs: The folder that contains all runs.
    Raises RecipeError with all mistakes of the study and its recipes.
    """
    _, document = read_document(path, "study")
    if isinstance(document.value, dict) and "stages" in document.value:
        raise RecipeError([f"{path} is a recipe; run it with: lbar run {path}"])
    problems = [f"{path}:{line}: {text}" for _, line, text in document.problems]
    try:
        study = Study.model_validate(document.value)
    except ValidationError as error:
        problems += [
            f"{path}:{document.line(item['loc'])}: {'.'.join(map(str, item['loc']))}: {fault_of(item)}"
            for item in error.errors()
        ]
        raise RecipeError(problems) from error
    if len(set(study.seeds)) < len(study.seeds):
        problems.append(f"{path}: seeds: a seed occurs twice; list each seed once")
    if problems:
        raise RecipeError(problems)
    published = study.published
    if published:
        problems += [f"{path}: published.cells: {text}" for text in _published_faults(study, published)]
    cells: Cells = {}
    for number, (cell, settings) in enumerate(study.cells.items()):
        unknown = sorted(_named_cells(settings) - set(list(study.cells)[:number]))
        if unknown:
            problems.append(
                f"{path}: cell {cell}: {{{unknown[0]}}} does not name an earlier cell; name a cell above it"
            )
            continue
        try:
            for seed in study.seeds:
                folders = {name: str(run_folder(study, name, seed, runs)) for name in study.cells}
                cell_changes = [as_change(key, _insert_run_folders(value, folders)) for key, value in settings.items()]
                cells[cell, seed] = load_recipe(path.parent / study.recipe, [*changes, *cell_changes, f"seed={seed}"])
        except RecipeError as error:
            changed = tuple(f"--set {key}" for key in settings)
            found = (text.removeprefix("--set ") if text.startswith(changed) else text for text in error.problems)
            problems += [f"{path}: cell {cell}: {text}" for text in found]
    entries = {name for loaded in cells.values() for name in loaded.recipe.rank}
    if not problems and published and published.entry not in entries:
        known = ", ".join(entries)
        problems.append(f"{path}: published.entry: no rank entry {published.entry!r}; name one of these: {known}")
    if not problems and not all(loaded.recipe.rank for loaded in cells.values()):
        problems.append(f"{path}: {study.recipe} has no rank entry, so the study has no table; add a rank entry")
    of_moments = set(study.columns) & set(OF_MOMENTS)
    if of_moments and of_moments != set(study.columns):
        problems.append(
            f"{path}: columns for moments and columns for clips are mixed; use only columns for moments "
            f"({', '.join(OF_MOMENTS)}), or none of them"
        )
    for (cell, _), loaded in cells.items():
        ranks_moments = set(loaded.recipe.rank_moments)
        if ranks_moments != (set(loaded.recipe.rank) if of_moments else set()):
            fault = (
                "the cell ranks moments, but the study has no columns for moments; use columns such as R1@0.7"
                if ranks_moments
                else "the study has columns for moments, but the cell has rank entries for clips; use columns for clips"
            )
            problems.append(f"{path}: cell {cell}: {fault}")
            break
    if problems:
        raise RecipeError(problems)
    return study, cells


_CELL = re.compile(r"\{([a-z0-9_]+)\}")


def _named_cells(value: Any) -> set[str]:
    """Return the names of all cells that a study's setting contains in braces, as in "{cell}"."""
    if isinstance(value, str):
        return set(_CELL.findall(value))
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for part in parts for name in _named_cells(part)}


def _insert_run_folders(value: Any, folders: Mapping[str, str]) -> Any:
    """Replace each "{cell}" in a setting by the folder of that cell's run. Returns: The changed setting."""
    if isinstance(value, str):
        return _CELL.sub(lambda found: folders[found[1]], value)
    if isinstance(value, dict):
        return {key: _insert_run_folders(part, folders) for key, part in value.items()}
    return [_insert_run_folders(part, folders) for part in value] if isinstance(value, list) else value


def _published_faults(study: Study, published: Published) -> list[str]:
    """Return an error message for each published cell (variant) that is unknown or has a wrong number of metrics."""
    unknown = [
        f"{name}: the study has no such cell; name one of its cells"
        for name in published.cells.keys() - study.cells.keys()
    ]
    return unknown + [
        f"{name}: lists {len(figures)} figures, but the study has {len(study.columns)} columns; list one per column"
        for name, figures in published.cells.items()
        if len(figures) != len(study.columns)
    ]


def run_folder(study: Study, cell: str, seed: int, runs: Path) -> Path:
    """Return the folder of the run for one cell (variant of the recipe) and one seed of a study."""
    return runs / study.name / f"{cell}_s{seed}"


def run_seconds(folder: Path) -> float | None:
    """Return the duration of a run in seconds; None if it is not finished.

    For a resumed run, it is the duration of its last process or of its training, whichever is longer.
    """
    if not (folder / "result.json").exists():
        return None
    result = read_result(folder)
    return max(result.seconds, result.training_seconds or 0.0)


def describe_progress(folders: Sequence[Path]) -> str:
    """Describe how many of the runs in `folders` are finished, and estimate the remaining time."""
    seconds = [found for folder in folders if (found := run_seconds(folder)) is not None]
    left = len(folders) - len(seconds)
    done = f"{len(seconds)} of {len(folders)} runs done"
    return f"{done}, {about(left * statistics.mean(seconds))} left" if left and seconds else done


def validation_at_checkpoint(ranked: RankEntry, lines: Sequence[EpochLine]) -> Mapping[str, float]:
    """Return a dict from validation metric to its value at the checkpoint that a rank entry uses.

    The dict is empty if the rank entry does not use exactly one checkpoint. lines: Lines of the run's metrics.jsonl.
    """
    if not isinstance(ranked, ByOneModel) or not ranked.stage:
        return {}
    epochs, metric = [line.validation for line in lines if line.stage == ranked.stage], ranked.checkpoint
    if metric is None or metric == "last":
        return epochs[-1] if epochs else {}
    sign = 1 if metric in schema.LOWER_IS_BETTER else -1
    return min((values for values in epochs if metric in values), key=lambda values: sign * values[metric], default={})


def _choosing_metric(ranked: RankEntry, validation: Sequence[Mapping[str, float]]) -> str | None:
    """Return the name of the validation metric that chose a rank entry's checkpoint, or of a default metric.

    No metric chose the checkpoint if it is `last`, or if the entry uses several models. The default is then the first
    metric in the list CHOSEN_BY that `validation` contains. Returns None if `validation` does not contain the metric.
    validation: Dicts from metric to value, one per run.
    """
    best = ranked.checkpoint if isinstance(ranked, ByOneModel) else None
    metrics: Sequence[str] = CHOSEN_BY if best is None or best == "last" else (best,)
    return next((metric for metric in metrics if any(metric in values for values in validation)), None)


def run_and_write(
    path: Path,
    changes: list[str],
    runs: Path,
    device: "Device | None" = None,
    track: "Tracker | None" = None,
    until: Until | Literal["features"] = "results",
) -> None:
    """Run a study's unfinished runs; print its table and write it beside them (.md, .csv, .tex)."""
    study, cells = load_study(path, changes, runs)
    with processes(device):
        for (cell, seed), loaded in cells.items() if until != "results" else ():
            if until == "features":
                compute_features(loaded.recipe, device)
            else:
                run_recipe(loaded, runs, run_folder(study, cell, seed, runs), device, track, until)
        if until != "results":
            return
        table = run_study(study, cells, runs, device, track)
        if not is_first():
            return
    text = table.markdown()
    if study.published:
        text += f"\nFigures of the paper: {study.published.source}\n"
    folder = runs / study.name
    with lock_of(folder / ".table"):
        remove_parts(folder)
        for suffix, content in (("md", text), ("tex", table.latex()), ("csv", table.csv())):
            write_text(folder / f"table.{suffix}", content)
    print(text, end="")


def run_study(
    study: Study,
    cells: Cells,
    runs: Path,
    device: "Device | None" = None,
    track: "Tracker | None" = None,
) -> StudyTable:
    """Run all unfinished runs of a study. Returns: Its table, with a row per cell (recipe variant) and rank entry.

    cells: The recipe of each cell and seed. runs: Folder of all runs. device: Device of all computations; None for this
    machine's default. track: Tracker that receives the metrics.
    """
    finished = {}
    for (cell, seed), loaded in cells.items():
        log.info("study %s: cell %s, seed %d", study.name, cell, seed)
        finished[cell, seed] = run_recipe(loaded, runs, run_folder(study, cell, seed, runs), device, track)
        log.info("study %s: %s", study.name, describe_progress([run_folder(study, *key, runs) for key in cells]))
    on_first(lambda: None)  # the first process still ranks the last run
    rows = []
    for cell in study.cells:
        done, recipe = [finished[cell, seed] for seed in study.seeds], cells[cell, study.seeds[0]].recipe
        result = done[0].read_result()
        rows += [_row_of_clips(study, cell, name, recipe, done) for name in result.rank]
        rows += [_row_of_moments(study, cell, name, recipe, done) for name in result.moments]
    return StudyTable(rows, study.columns, study.unit == "percent")


def _row_of_moments(study: Study, cell: str, name: str, recipe: schema.Recipe, runs: Sequence[Run]) -> StudyRow:
    """Return the table row for a cell (variant of the recipe) of a study and a rank entry of moments.

    runs: The cell's finished runs, one per seed.
    """
    results, ranked = [run.read_result().moments[name] for run in runs], recipe.rank[name]
    validation = [validation_at_checkpoint(ranked, run.read_metrics()) for run in runs if run.metrics.exists()]
    known = {"random": results[0].random, "true frames": results[0].ceiling}
    metric = results[0].metric
    return StudyRow(
        cell=cell,
        data=name,
        runs=[figures_of_moments(result) for result in results],
        facts={f"{called} {metric}": figures[metric] if figures else None for called, figures in known.items()},
        validation=validation,
        chosen_by=_choosing_metric(ranked, validation),
    )


def _row_of_clips(study: Study, cell: str, name: str, recipe: schema.Recipe, runs: Sequence[Run]) -> StudyRow:
    """Return the table row for a cell (variant of the recipe) of a study and a rank entry that scores clips.

    runs: The cell's finished runs, one per seed.
    """
    entry, ranked, published = runs[0].read_result().rank[name], recipe.rank[name], study.published
    validation = [validation_at_checkpoint(ranked, run.read_metrics()) for run in runs if run.metrics.exists()]
    stage = ranked.stage if isinstance(ranked, ByOneModel) else None
    watched = recipe.stages[stage].monitor.data if stage else []
    return StudyRow(
        cell=cell,
        data=name,
        runs=[figures_of_run(run.scores_file(name)) for run in runs],
        facts={f"chance {entry.metric}": entry.chance, f"ceiling {entry.metric}": entry.ceiling},
        paper=published.cells.get(cell) if published and published.entry == name else None,
        validation=validation,
        chosen_by=_choosing_metric(ranked, validation),
        monitors_test=any(recipe.data[source].split in TEST_SPLITS for source in watched),
    )
