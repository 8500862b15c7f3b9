"""Verb check: mistakes of a recipe, and what it needs."""

import argparse
from collections.abc import Iterable, Iterator

from data_tools.cli import add_json, counted
from data_tools.settings import print_report
from system.check.check import MISSING, MISTAKE, WARNING, Problem, Row, check, find_data, to_fix
from system.experiments.study import describe_progress, load_study, run_folder
from system.recipe.load import RecipeError, load_recipe
from system.verbs.json_output import PlanReport
from system.verbs.options import add_device_argument, add_recipe_arguments, add_runs_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False, what="a recipe or a study (.yaml)")
    add_runs_argument(parser)
    what = "also train one step of each stage, with random weights, and print its seconds and memory"
    parser.add_argument("--step", action="store_true", help=what)
    add_device_argument(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    file, is_study = str(arguments.recipe), arguments.recipe.name.endswith(".study.yaml")
    try:
        lines, problems = _study(arguments) if is_study else _recipe(arguments)
    except RecipeError as error:
        if arguments.json:
            print_report(PlanReport(file=file, ok=False, missing=[], mistakes=error.problems, warnings=[], plan=[]))
        raise
    found = to_fix(problems)
    of = {kind: [line for one, line in found if one == kind] for kind in (MISSING, MISTAKE, WARNING)}
    ok = not of[MISSING] and not of[MISTAKE]
    if arguments.json:
        kinds = {"missing": of[MISSING], "mistakes": of[MISTAKE], "warnings": of[WARNING]}
        print_report(PlanReport(file=file, ok=ok, plan=lines, **kinds))
        return 0 if ok else 1
    print(*lines, sep="\n")
    if found:
        print("to fix, the first one first:", *(f"  {kind}  {line}" for kind, line in found), sep="\n")
    if ok:
        print("nothing is missing")
    return 0 if ok else 1


def _recipe(arguments: argparse.Namespace) -> tuple[list[str], list[Problem]]:
    recipe = load_recipe(arguments.recipe, arguments.set).recipe
    data = find_data(recipe)
    found = list(check(recipe, data, arguments.runs))
    lines = [f"recipe {recipe.name}, seed {recipe.seed}", *_rows(found)]
    if arguments.step:
        from system.check.measure import measure
        from system.compute.device import device_of

        lines += [f"  step {line}" for line in measure(recipe, data, arguments.device or device_of())]
    return lines, [one for one in found if isinstance(one, Problem)]


def _study(arguments: argparse.Namespace) -> tuple[list[str], list[Problem]]:
    """Check the first cell of a study, and what differs in the others."""
    study, cells = load_study(arguments.recipe, arguments.set, arguments.runs)
    folders = [run_folder(study, *key, arguments.runs) for key in cells]
    recipes = {cell: cells[cell, study.seeds[0]].recipe for cell in study.cells}
    found = {cell: list(check(one, find_data(one), arguments.runs, folders)) for cell, one in recipes.items()}
    first, *others = found
    lines = [f"study {study.name}: {counted(len(recipes), 'cell')} x {counted(len(study.seeds), 'seed')}"]
    lines += [f"cell {first}:", *_rows(found[first])]
    problems = [one for one in found[first] if isinstance(one, Problem)]
    for cell in others:
        new = [one for one in found[cell] if one not in found[first]]
        lines += [f"cell {cell}:", *_rows(new)]
        problems += [one._replace(where=f"cell {cell}, {one.where}") for one in new if isinstance(one, Problem)]
    return [*lines, f"study {study.name}: {describe_progress(folders)}"], problems


def _rows(found: Iterable[Row | Problem]) -> Iterator[str]:
    rows = [one for one in found if isinstance(one, Row)]
    width = max((len(row.name) for row in rows), default=0)
    yield from (f"  {row.name:{width}}  {row.fact}" for row in rows)
