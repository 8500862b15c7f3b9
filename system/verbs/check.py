"""The verb check: print all mistakes of a recipe or a study, or its plan."""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

from data_tools.cli import about, add_json, counted
from data_tools.documents.strict import print_report
from data_tools.errors import KitError
from system.experiments.study import Cells, Study, load_study, progress_of_runs, run_folder, seconds_of
from system.plan.estimates import GPUS
from system.plan.machine import GIB, WARNING, gpu_memory, machine_memory
from system.plan.plan import MISSING, MISTAKE, plan
from system.recipe.differing import differing
from system.recipe.load import RecipeError, load_recipe
from system.verbs.json_output import PlanReport
from system.verbs.options import add_recipe_arguments, add_runs_argument, positive

GPU_NAMES = {name.lower().replace(" ", ""): name for name in GPUS}  # by their command-line names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False, what="a recipe or a study (.yaml)")
    add_runs_argument(parser)
    what = "plan for this number of torchrun processes (default: 1)"
    parser.add_argument("--ranks", type=positive, default=1, metavar="N", help=what)
    names = ", ".join(GPU_NAMES)
    parser.add_argument("--gpu", choices=GPU_NAMES, metavar="NAME", help=f"plan for this GPU: {names}")
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GIB", help="plan for this GPU size (default: the one here)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.gpu_memory is not None and not 0 < arguments.gpu_memory < math.inf:
        raise KitError(f"--gpu-memory {arguments.gpu_memory:g}: must be a finite number of GiB above 0")
    gpu_bytes = _gpu_bytes(arguments)
    file = str(arguments.recipe)
    try:
        lines = _plan_lines(arguments, gpu_bytes)
    except RecipeError as error:
        if arguments.json:
            mistakes = error.problems
            print_report(PlanReport(file=file, ok=False, missing=[], mistakes=mistakes, warnings=[], plan=[]))
        raise
    said = [line for line in lines if "of these lines say" not in line]
    missing, mistakes, warnings = ([line for line in said if word in line] for word in (MISSING, MISTAKE, WARNING))
    ok = not missing and not mistakes
    if arguments.json:
        print_report(PlanReport(file=file, ok=ok, missing=missing, mistakes=mistakes, warnings=warnings, plan=said))
    else:
        print(*lines, sep="\n")
    return 0 if ok else 1


def _plan_lines(arguments: argparse.Namespace, gpu_bytes: float | None) -> list[str]:
    if arguments.recipe.name.endswith(".study.yaml"):
        return _study_lines(arguments, gpu_bytes)
    loaded = load_recipe(arguments.recipe, arguments.set)
    several = {"processes": arguments.ranks, "gpu": arguments.gpu and GPU_NAMES[arguments.gpu]}
    return plan(loaded.recipe, gpu_bytes, machine_memory(), arguments.runs, **several).splitlines()


def _gpu_bytes(arguments: argparse.Namespace) -> float | None:
    """Return the memory of the GPU in the plan."""
    if arguments.gpu_memory is not None:
        size: float = arguments.gpu_memory * GIB
        return size
    return GPUS[GPU_NAMES[arguments.gpu]].memory if arguments.gpu else gpu_memory()


def _study_lines(arguments: argparse.Namespace, gpu_bytes: float | None) -> list[str]:
    """Return the plan of the first cell, then for every other cell only the lines that differ."""
    memory, runs = machine_memory(), arguments.runs
    study, cells = load_study(arguments.recipe, arguments.set, runs)
    to_do = sum(seconds_of(run_folder(study, *key, runs)) is None for key in cells)
    folders = {run_folder(study, *key, runs) for key in cells}
    plans = {
        cell: plan(
            cells[cell, study.seeds[0]].recipe,
            gpu_bytes,
            memory,
            runs,
            to_do,
            folders,
            arguments.ranks,
            arguments.gpu and GPU_NAMES[arguments.gpu],
        ).splitlines()
        for cell in study.cells
    }
    first, *others = plans
    size = f"{counted(len(plans), 'cell')} x {counted(len(study.seeds), 'seed')}"
    lines = [f"study {study.name}: {size} are {counted(len(cells), 'run')}"]
    lines += [f"cell {first}:", *plans[first]]
    for cell in others:
        different = [line for line in plans[cell] if line not in plans[first]]
        one, other = (cells[name, study.seeds[0]].recipe.model_dump(mode="json") for name in (first, cell))
        changes = ", ".join(f"{key} {value!r}, not {before!r}" for key, before, value in differing(one, other))
        lines += [f"cell {cell}: {changes or f'as {first}'}", *different]
    return [*lines, *_done_lines(study, cells, runs)]


def _done_lines(study: Study, cells: Cells, runs: Path) -> Iterator[str]:
    """Yield the state of every cell's runs, and the time that the rest takes."""
    folders = {key: run_folder(study, *key, runs) for key in cells}
    for cell in study.cells:
        states = [f"{seed} {_state(folders[cell, seed])}" for seed in study.seeds]
        yield f"runs of {cell}: {counted(len(study.seeds), 'seed')}: {', '.join(states)}"
    finished = any(seconds_of(folder) is not None for folder in folders.values())
    unknown = "" if finished else "; hours unknown until one of its runs is finished"
    yield f"study {study.name}: {progress_of_runs(list(folders.values()))}{unknown}"


def _state(folder: Path) -> str:
    seconds = seconds_of(folder)
    if seconds is not None:
        return f"finished ({about(seconds)})"
    return "begun" if (folder / "resolved.json").exists() else "to do"
