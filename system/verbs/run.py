"""Verb run: all steps of a recipe."""

import argparse

from system.compute.processes import is_first, processes
from system.experiments.run import run_recipe
from system.experiments.summary import report
from system.recipe.load import load_recipe
from system.verbs.options import add_recipe_arguments, folder_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `run`: all steps of a recipe, from data to ranking. Returns: The exit status."""
    loaded = load_recipe(arguments.recipe, arguments.set)
    with processes(arguments.device):
        run = run_recipe(loaded, arguments.runs, folder_from(arguments), arguments.device, arguments.track)
        if is_first():
            print(report(run))
    return 0
