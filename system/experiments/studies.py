"""Run a recipe with several seeds and settings."""

import logging
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError, model_validator

from data_tools.cli import about
from data_tools.files import write_text
from data_tools.settings import Name, Strict, fault_of
from submission.metrics.intervals import paired_difference
from submission.metrics.summary import (
    CLIPS,
    ranks_from_audio,
    ranks_in_matrix,
    summarise,
    summarise_audio_to_text,
)
from submission.runs.entry import open_entry
from submission.runs.record import EpochLine, MomentsResult, read_result
from system.audio import Device
from system.experiments.run import Until, run_steps
from system.processes import is_first, on_first
from system.recipe import schema
from system.recipe.load import Loaded, RecipeError, as_change, lines_of, load_recipe, read_document
from system.runs.folder import Run, best_epochs
from system.runs.overview import CHOSEN_BY

Column = Literal[
    "T2A R@1", "T2A R@5", "T2A R@10", "T2A mAP@10", "T2A mAP",
    "A2T HR@1", "A2T HR@5", "A2T HR@10", "A2T R@1", "A2T R@5", "A2T R@10",
    "A2T pooled R@1", "A2T pooled R@5", "A2T pooled R@10", "A2T mAP@10", "A2T mAP",
    "R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75",
    "R1@0.7 under 2 s", "R1@0.7 2 to 5 s", "R1@0.7 5 to 10 s", "R1@0.7 middle", "R1@0.7 long", "R1@0.7 new texts",
    "mAP under 2 s", "mAP 2 to 5 s", "mAP 5 to 10 s", "mAP middle", "mAP long", "mAP new texts",
]  # fmt: skip
DEFAULT: list[Any] = [f"T2A {one}" for one in ("mAP@10", "R@1", "R@5", "R@10")]
DEFAULT += [f"A2T {one}" for one in ("mAP@10", "HR@1", "HR@5", "HR@10")]
NOTES = (
    "validation: of the ranked checkpoint; choose settings by it, since the other columns are of the ranked clips. "
    "Bold: the highest mean. p: paired randomisation test of mAP (moments: R1@0.7) against the first cell, query by "
    "query, as a mean over seeds."
)

log = logging.getLogger(__name__)


class Published(Strict):
    """A paper's figures, which stand below the measured ones."""

    source: str  # paper and table
    cells: dict[Name, list[float | None]]  # one figure per column, in the table's unit; null: not published


class Study(Strict):
    """A study: one run per cell and seed.

    Columns: T2A (clips found by captions) or A2T with R@k, mAP@10 or mAP; A2T also with HR@k and pooled R@k; or R1@0.7,
    mAP and so on of moments, also of windows of some length (`R1@0.7 2 to 5 s`) or of `new texts`.
    """

    name: Name  # folder of its runs
    recipe: str  # path from the study's folder
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    cells: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]  # changed settings; "{CELL}": that cell's run
    columns: Annotated[list[Column], Field(min_length=1)] = DEFAULT
    unit: Literal["share", "percent"] = "share"
    published: Published | None = None

    @model_validator(mode="after")
    def _require_known_cells(self) -> Self:
        """Refuse unknown cells, and figures that fit no columns."""
        names = {name for one in self.cells.values() for name in re.findall(r"\{([a-z0-9_]+)\}", str(one))}
        figures = self.published.cells if self.published else {}
        if unknown := sorted((names | figures.keys()) - self.cells.keys()):
            raise ValueError(f"no cell {unknown[0]}; there are {', '.join(self.cells)}")
        if wrong := [cell for cell, values in figures.items() if len(values) != len(self.columns)]:
            raise ValueError(f"published.cells.{wrong[0]} needs one figure per column")
        return self


Cells = dict[tuple[str, int], Loaded]  # (cell, seed) -> the changed recipe


def load_study(path: Path, changes: list[str], runs: Path = Path("runs")) -> tuple[Study, Cells]:
    """Read a study and the recipes of its cells.

    Raises:
        RecipeError: With all mistakes of the study and its recipes.
    """
    _, document = read_document(path)
    try:
        study = Study.model_validate(document.value)
    except ValidationError as error:
        faults = [(one["loc"], document.line(one["loc"]), fault_of(one)) for one in error.errors()]
        raise RecipeError(lines_of(path, [*document.problems, *faults])) from error
    problems, cells = lines_of(path, document.problems), Cells()
    for (cell, settings), seed in product(study.cells.items(), study.seeds):
        run = str(folder_of(study, r"\1", seed, runs))
        own = (re.sub(r"\{([a-z0-9_]+)\}", run, as_change(key, value)) for key, value in settings.items())
        try:
            cells[cell, seed] = load_recipe(path.parent / study.recipe, [*changes, *own, f"seed={seed}"])
        except RecipeError as error:
            problems += [f"{path}: cell {cell}: {text.removeprefix('--set ')}" for text in error.problems]
    if problems:
        raise RecipeError(list(dict.fromkeys(problems)))
    return study, cells


def folder_of(study: Study, cell: str, seed: int, runs: Path) -> Path:
    """Return the folder of a run."""
    return runs / study.name / f"{cell}_s{seed}"


def describe_progress(folders: Sequence[Path]) -> str:
    """Say how many runs are finished, and the time left."""
    results = [read_result(folder) for folder in folders if (folder / "result.json").exists()]
    seconds = [max(result.seconds, result.training_seconds) for result in results]
    left = len(folders) - len(seconds)
    done = f"{len(seconds)} of {len(folders)} runs done"
    return f"{done}, {about(left * float(np.mean(seconds)))} left" if left and seconds else done


def run_study(study: Study, cells: Cells, runs: Path, device: Device | None, track: Any, until: Until) -> str:
    """Run what is not finished, and write the table.

    The table is written as table.md, table.tex and table.csv.

    Returns:
        The table as Markdown; "" before the last step, without figures, and in all processes but the first.
    """
    for loaded in cells.values():
        loaded.recipe.model.require_files()  # of the last cell too, before the first one runs
    folders = [folder_of(study, *key, runs) for key in cells]
    for folder, loaded in zip(folders, cells.values(), strict=True):
        log.info("study %s: %s", study.name, folder.name)
        run_steps(loaded, runs, folder, device, track, until)
        log.info("study %s: %s", study.name, describe_progress(folders))
    on_first(lambda: None)  # the first process still ranks the last run
    if until != "results" or not is_first() or not any(Run(folder).metrics for folder in folders):
        return ""
    numbers = summarise_study(study, cells, runs)
    texts = as_texts(study, numbers)
    text = as_markdown(texts, study.published)
    for suffix, content in ("md", text), ("tex", as_latex(texts)), ("csv", numbers.to_csv()):
        write_text(runs / study.name / f"table.{suffix}", content)
    return text


def summarise_study(study: Study, cells: Cells, runs: Path) -> pd.DataFrame:
    """Return means and deviations (n - 1) over seeds.

    There is a row per cell and rank entry, in the study's unit. p is that of a paired test against the first cell, if
    both rank the same queries.
    """
    each = pd.DataFrame([row for key, one in cells.items() for row in _rows(study, key, one.recipe, runs)])
    names = list(each.columns.drop(["cell", "data", "clips", "values", "queries"]))
    names.sort(key=lambda name: not name.startswith("validation"))
    if study.unit == "percent":
        each[[name for name in names if "loss" not in name]] *= 100
    groups = each.groupby(["cell", "data"], sort=False)
    numbers = groups[["clips", *names]].mean().join(groups[names].std().add_suffix(" std"))
    numbers.insert(0, "seeds", groups.size())
    first: dict[Any, tuple[np.ndarray, list[str]]] = {}
    p = []
    for (_, data), seeds in groups:
        values, queries = np.mean(list(seeds["values"]), axis=0), seeds["queries"].iloc[0]
        before, texts = first.setdefault(data, (values, queries.texts))
        is_paired = before is not values and texts == queries.texts
        p.append(paired_difference(before, values, queries.groups).p if is_paired else np.nan)
    return numbers.assign(p=p)


def _rows(study: Study, key: tuple[str, int], recipe: schema.Recipe, runs: Path) -> Iterator[dict[str, Any]]:
    """Yield a run's figures for each rank entry.

    Those of chance and of a perfect system stand in the row of the first seed.
    """
    run = Run(folder_of(study, *key, runs))
    epochs, results = run.read_metrics(), run.results
    for name in run.metrics:  # not of blind lists
        entry, ranked = results[name], open_entry(f"{run.folder}:{name}")
        bounds: dict[str, Any]
        if isinstance(entry, MomentsResult):
            summary, tested = ranked.summary, "R1@0.7"
            new = {f"{metric} new texts": value for metric, value in (entry.figures_of_new_texts or {}).items()}
            figures = summary.values | summary.by_length | new
            bounds = {"random": entry.random, "true frames": entry.ceiling}
            bounds = {what: values and values[entry.metric] for what, values in bounds.items()}
        else:
            summary = summarise(ranks_in_matrix(ranked.matrix), (*CLIPS, "mAP"))
            both = {"T2A": summary.values, "A2T": summarise_audio_to_text(ranks_from_audio(ranked.matrix)).values}
            figures = {f"{way} {metric}": one for way, values in both.items() for metric, one in values.items()}
            tested = next((one[4:] for one in study.columns if one.startswith("T2A mAP")), "mAP@10")
            bounds = {"chance": entry.chance, "ceiling": entry.ceiling}
        row: dict[str, Any] = {"cell": key[0], "data": name, "clips": summary.queries.n_pool}
        row |= {"queries": summary.queries, "values": summary.per_query[tested]}
        row |= validation_of(recipe, name, epochs) | {column: figures.get(column) for column in study.columns}
        if key[1] == study.seeds[0]:
            row |= {f"{what} {entry.metric}": value for what, value in bounds.items()}
        yield row


def validation_of(recipe: schema.Recipe, name: str, epochs: Sequence[EpochLine]) -> dict[str, float]:
    """Return the validation metric that chose an entry's checkpoint.

    For the last checkpoint, it is the first known of CHOSEN_BY. Entries that use several checkpoints have none.
    """
    stage, which = (getattr(recipe.rank[name], key, "") for key in ("stage", "checkpoint"))
    known = [line for line in epochs if line.stage == stage]
    for metric in (which, *CHOSEN_BY):
        if known and metric in known[-1].validation:
            where = " (test split)" if recipe.stages[stage].monitor.test_split else ""
            value, _ = best_epochs(known[-1:] if which == "last" else known, metric)[0]
            return {f"validation {metric}{where}": value}
    return {}


def as_texts(study: Study, numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the table as texts.

    The best means are bold, and a paper's figures have rows of their own.
    """
    form = ("{:.1f}" if study.unit == "percent" else "{:.4f}").format
    forms = {"seeds": "{:g}".format, "clips": "{:g}".format, "p": "{:.4f}".format}
    shown, best = pd.DataFrame(index=numbers.index), numbers.groupby("data").transform("max")
    for name in numbers.columns:
        text = numbers[name].map(forms.get(name, form))
        if f"{name} std" in numbers:
            text += " ± " + numbers[f"{name} std"].map(form)
        if name in study.columns and len(numbers) > 1:
            text = text.mask(numbers[name] == best[name], "**" + text + "**")
        if not name.endswith(" std"):
            shown[name] = text.str.replace(r"( ± )?nan", "", regex=True)
    for cell, figures in study.published.cells.items() if study.published else ():
        for name, value in zip(study.columns, figures, strict=False):
            shown.loc[(f"{cell}, paper", ""), name] = "" if value is None else f"{value:g}"
    return shown.fillna("").reset_index()


def as_markdown(texts: pd.DataFrame, published: Published | None) -> str:
    """Return the table with its notes as Markdown."""
    lines: list[list[str]] = [list(map(str, texts)), ["---"] * len(texts.columns), *texts.to_numpy().tolist()]
    source = f"\nFigures of the paper: {published.source}\n" if published else ""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{NOTES}\n{source}"


def as_latex(texts: pd.DataFrame) -> str:
    """Return the table as a LaTeX tabular (booktabs)."""
    text = texts.to_latex(index=False, escape=True)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text).replace("±", r"$\pm$")
