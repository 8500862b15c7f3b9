"""Verb check: print mistakes or the plan."""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

from data_tools.cli import about, add_json, counted
from data_tools.errors import KitError
from data_tools.settings import print_report
from system.experiments.study import Cells, Study, describe_progress, load_study, run_folder, run_seconds
from system.plan.estimates import GPUS
from system.plan.lines import MISSING, MISTAKE, WARNING, Plan, Problem, problem_lines, problem_summary, section_lines
from system.plan.machine import GIB, gpu_memory, machine_memory
from system.plan.plan import plan
from system.recipe.differing import differing
from system.recipe.load import RecipeError, load_recipe
from system.verbs.json_output import PlanReport
from system.verbs.options import add_recipe_arguments, add_runs_argument, parse_positive

GPU_NAMES = {name.lower().replace(" ", ""): name for name in GPUS}  # by their command-line names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `check` to its parser."""
    add_recipe_arguments(parser, runs=False, what="a recipe or a study (.yaml)")
    add_runs_argument(parser)
    what = "make the plan for this number of processes of torchrun (default: 1)"
    parser.add_argument("--ranks", type=parse_positive, default=1, metavar="N", help=what)
    names = ", ".join(GPU_NAMES)
    parser.add_argument(
        "--gpu",
        choices=GPU_NAMES,
        metavar="NAME",
        help=f"make the plan for this GPU: {names} (default: the GPU of this machine)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="make the plan for a GPU with this memory in GiB (default: the GPU of this machine)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `check`: print the plan of a recipe or study, or its mistakes. Returns: The exit status."""
    if arguments.gpu_memory is not None and not 0 < arguments.gpu_memory < math.inf:
        raise KitError(f"--gpu-memory {arguments.gpu_memory:g}: must be a finite number of GiB above 0")
    file = str(arguments.recipe)
    try:
        lines, problems = _plan_lines(arguments, _gpu_bytes(arguments))
    except RecipeError as error:
        if arguments.json:
            mistakes = error.problems
            print_report(PlanReport(file=file, ok=False, missing=[], mistakes=mistakes, warnings=[], plan=[]))
        raise
    kinds = problem_lines(problems)
    missing, mistakes, warnings = ([line for one, line in kinds if one == kind] for kind in (MISSING, MISTAKE, WARNING))
    ok = not missing and not mistakes
    if arguments.json:
        print_report(PlanReport(file=file, ok=ok, missing=missing, mistakes=mistakes, warnings=warnings, plan=lines))
    else:
        print(*lines, *problem_summary(problems), sep="\n")
    return 0 if ok else 1


def _plan_lines(arguments: argparse.Namespace, gpu_bytes: float | None) -> tuple[list[str], list[Problem]]:
    """Return the printed lines of the plan of a recipe or a study, and all problems."""
    if arguments.recipe.name.endswith(".study.yaml"):
        return _study_lines(arguments, gpu_bytes)
    loaded = load_recipe(arguments.recipe, arguments.set)
    several = {"processes": arguments.ranks, "gpu": arguments.gpu and GPU_NAMES[arguments.gpu]}
    planned = plan(loaded.recipe, gpu_bytes, machine_memory(), arguments.runs, **several)
    return [planned.title, *section_lines(planned.rows)], planned.problems


def _gpu_bytes(arguments: argparse.Namespace) -> float | None:
    """Return the GPU memory in bytes, as --gpu-memory or --gpu sets it, else of this machine; None without a GPU."""
    if arguments.gpu_memory is not None:
        size: float = arguments.gpu_memory * GIB
        return size
    return GPUS[GPU_NAMES[arguments.gpu]].memory if arguments.gpu else gpu_memory()


def _study_lines(arguments: argparse.Namespace, gpu_bytes: float | None) -> tuple[list[str], list[Problem]]:
    """Return the printed lines of the plan of a study, and all problems.

    The lines are the whole plan of the study's first cell. For all other cells, only rows that differ are printed.
    """
    memory, runs = machine_memory(), arguments.runs
    study, cells = load_study(arguments.recipe, arguments.set, runs)
    to_do = sum(run_seconds(run_folder(study, *key, runs)) is None for key in cells)
    folders = {run_folder(study, *key, runs) for key in cells}
    recipes = {cell: cells[cell, study.seeds[0]].recipe for cell in study.cells}
    gpu = arguments.gpu and GPU_NAMES[arguments.gpu]
    plans = {
        cell: plan(recipe, gpu_bytes, memory, runs, to_do, folders, arguments.ranks, gpu)
        for cell, recipe in recipes.items()
    }
    first, *others = plans
    size = f"{counted(len(plans), 'cell')} x {counted(len(study.seeds), 'seed')}"
    lines = [f"study {study.name}: {size} are {counted(len(cells), 'run')}"]
    lines += [f"cell {first}:", plans[first].title, *section_lines(plans[first].rows)]
    for cell in others:
        one, other = (recipes[name].model_dump(mode="json") for name in (first, cell))
        changes = ", ".join(f"{key} {value!r}, not {before!r}" for key, before, value in differing(one, other))
        lines.append(f"cell {cell}: {changes or f'same settings as cell {first}'}")
        lines += section_lines([row for row in plans[cell].rows if row not in plans[first].rows])
    return [*lines, *_run_state_lines(study, cells, runs)], _problems_of_cells(plans)


def _problems_of_cells(plans: dict[str, Plan]) -> list[Problem]:
    """Return the problems of all cells (variants) of a study. A problem of only some cells names its cell."""
    first, *others = plans.values()
    common = [problem for problem in first.problems if all(problem in other.problems for other in others)]
    some = [(cell, problem) for cell, plan in plans.items() for problem in plan.problems if problem not in common]
    return [*common, *(one._replace(where=f"cell {cell}, {one.where}") for cell, one in some)]


def _run_state_lines(study: Study, cells: Cells, runs: Path) -> Iterator[str]:
    """Yield a line of text per cell (variant) of a study with its runs' states, and a line on the remaining time."""
    folders = {key: run_folder(study, *key, runs) for key in cells}
    for cell in study.cells:
        states = [f"{seed} {_describe_run_state(folders[cell, seed])}" for seed in study.seeds]
        yield f"runs of {cell}: {counted(len(study.seeds), 'seed')}: {', '.join(states)}"
    finished = any(run_seconds(folder) is not None for folder in folders.values())
    unknown = "" if finished else "; hours unknown until a run of the study is finished"
    yield f"study {study.name}: {describe_progress(list(folders.values()))}{unknown}"


def _describe_run_state(folder: Path) -> str:
    """Describe the state of the run in `folder`: finished, begun or to do."""
    seconds = run_seconds(folder)
    if seconds is not None:
        return f"finished ({about(seconds)})"
    return "begun" if (folder / "resolved.json").exists() else "to do"
