"""A study: one recipe over seeds and cells of changed settings, each a run of its own, and the table of mean and
spread."""

import argparse
import csv
import io
import json
import logging
import statistics
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from data_tools.files import write_text
from system.recipe import Loaded, RecipeError, load_recipe
from system.run import run_recipe
from system.runs import Run
from system.schema import Name
from system.strict import Strict
from system.yaml12 import parse


class Study(Strict):
    """name: folder of its runs. recipe: path from the study's folder. cells: by name, dotted settings that change."""

    name: Name
    recipe: str
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    cells: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]


log = logging.getLogger(__name__)

Cells = dict[tuple[str, int], Loaded]  # cell and seed -> the changed recipe


def load_study(path: Path, changes: list[str]) -> tuple[Study, Cells]:
    """Read a study and the changed recipe of every cell and seed. RecipeError naming every mistake of all of them."""
    if not path.is_file():
        raise RecipeError([f"{path}: no such study; shipped ones are recipes/*.study.yaml"])
    try:
        document = parse(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError([f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8"]) from error
    if isinstance(document.value, dict) and "stages" in document.value:
        raise RecipeError([f"{path} is a recipe; run it with: python -m system run {path}"])
    problems = [f"{path}:{line}: {text}" for _, line, text in document.problems]
    try:
        study = Study.model_validate(document.value)
    except ValidationError as error:
        problems += [
            f"{path}:{document.line(item['loc'])}: {'.'.join(map(str, item['loc']))}: {item['msg']}"
            for item in error.errors()
        ]
        raise RecipeError(problems) from error
    if len(set(study.seeds)) < len(study.seeds):
        problems.append(f"{path}: seeds: one comes twice, which would count one run twice; name each once")
    if problems:
        raise RecipeError(problems)
    cells: Cells = {}
    for cell, settings in study.cells.items():
        own = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        try:
            for seed in study.seeds:
                cells[cell, seed] = load_recipe(path.parent / study.recipe, [*changes, *own, f"seed={seed}"])
        except RecipeError as error:
            problems += [f"{path}: cell {cell}: {problem}" for problem in error.problems]
    if not problems and not all(loaded.recipe.rank for loaded in cells.values()):
        problems.append(f"{path}: {study.recipe} ranks nothing, so there is no table to make; give it a rank entry")
    if problems:
        raise RecipeError(problems)
    return study, cells


def run_study(study: Study, cells: Cells, runs: Path) -> list[dict[str, Any]]:
    """Do every run that is not finished, then the rows of the table: a cell and a ranked source each."""
    finished = {}
    for (cell, seed), loaded in cells.items():
        log.info("study %s: cell %s, seed %d", study.name, cell, seed)
        finished[cell, seed] = run_recipe(loaded, runs, runs / study.name / f"{cell}_s{seed}")
    return [row for cell in study.cells for row in _rows(cell, [finished[cell, seed] for seed in study.seeds])]


def _rows(cell: str, runs: list[Run]) -> list[dict[str, Any]]:
    results = [json.loads(run.result.read_text(encoding="utf-8")) for run in runs]
    rows = []
    for name in results[0]["rank"]:
        entries = [result["rank"][name] for result in results]
        metric = entries[0]["metric"]
        row: dict[str, Any] = {"cell": cell, "data": name, "seeds": len(runs), "clips": entries[0]["clips"]}
        for key in [metric, *(key for key in entries[0] if key.startswith("R@"))]:
            row[key] = _mean_and_spread([entry[key] for entry in entries])
        ceiling = entries[0]["ceiling"]
        row |= {"chance": f"{entries[0]['chance']:.4f}", "ceiling": "" if ceiling is None else f"{ceiling:.4f}"}
        rows.append(row | {"training s": _mean_and_spread([result["training_seconds"] for result in results], 0)})
    return rows


def _mean_and_spread(values: list[float], digits: int = 4) -> str:
    """Mean ± sample standard deviation (n - 1); the mean alone for one value."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="a study (.study.yaml)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting in every cell"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")


def run(arguments: argparse.Namespace) -> int:
    study, cells = load_study(arguments.study, arguments.set)
    rows = run_study(study, cells, arguments.runs)
    table = markdown(rows)
    folder = arguments.runs / study.name
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "table.md", table)
    write_text(folder / "table.csv", text.getvalue())
    print(table, end="")
    return 0
