"""The verb check: all mistakes of a recipe or a study, or its plan, without torch."""

import argparse
import math

from data_tools.cli import counted
from data_tools.errors import KitError
from system.experiments.study import load_study
from system.plan.plan import GIB, MISSING, MISTAKE, gpu_memory, plan
from system.recipe.load import load_recipe
from system.verbs.options import add_recipe_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False, what="a recipe or a study (.yaml)")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="plan for such a GPU (default: the one here)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.gpu_memory is not None and not 0 < arguments.gpu_memory < math.inf:
        raise KitError(f"--gpu-memory {arguments.gpu_memory:g}: must be a finite number of GiB above 0")
    gpu_bytes = gpu_memory() if arguments.gpu_memory is None else arguments.gpu_memory * GIB
    if arguments.recipe.name.endswith(".study.yaml"):
        lines = _study_lines(arguments, gpu_bytes)
    else:
        loaded = load_recipe(arguments.recipe, arguments.set)
        lines = [*loaded.renamed, plan(loaded.recipe, gpu_bytes)]
    print(*lines, sep="\n")
    return 1 if any(word in line for line in lines for word in (MISSING, MISTAKE)) else 0


def _study_lines(arguments: argparse.Namespace, gpu_bytes: float | None) -> list[str]:
    """The plan of the first cell, then of every other one the lines that differ from it."""
    study, cells = load_study(arguments.recipe, arguments.set)
    plans = {cell: plan(cells[cell, study.seeds[0]].recipe, gpu_bytes).splitlines() for cell in study.cells}
    first, *others = plans
    lines = list(dict.fromkeys(line for loaded in cells.values() for line in loaded.renamed))
    size = f"{counted(len(plans), 'cell')} x {counted(len(study.seeds), 'seed')}"
    lines.append(f"study {study.name}: {size} are {counted(len(cells), 'run')}")
    lines += [f"cell {first}:", *plans[first]]
    for cell in others:
        different = [line for line in plans[cell] if line not in plans[first]]
        lines += [f"cell {cell}:" if different else f"cell {cell}: as {first}", *different]
    return lines
