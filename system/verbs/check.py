"""The verb check: all mistakes of a recipe or a study, or its plan, without torch."""

import argparse

from data_tools.errors import KitError
from system.plan.plan import GIB, MISTAKE, gpu_memory, plan
from system.verbs.options import add_recipe_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False)
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="plan for such a GPU (default: the one here)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.gpu_memory is not None and not arguments.gpu_memory > 0:
        raise KitError(f"--gpu-memory {arguments.gpu_memory:g}: give the GiB of a GPU")
    gpu_bytes = gpu_memory() if arguments.gpu_memory is None else arguments.gpu_memory * GIB
    loaded = load_from(arguments)
    print(*loaded.renamed, sep="\n", end="\n" if loaded.renamed else "")
    text = plan(loaded.recipe, gpu_bytes)
    print(text)
    return 1 if MISTAKE in text else 0
