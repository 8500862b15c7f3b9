"""The verb run: all of a recipe in one go."""

import argparse

from system.experiments.run import report, run_recipe
from system.verbs.options import add_recipe_arguments, folder_from, load_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    loaded = load_from(arguments)
    print(report(run_recipe(loaded, arguments.runs, folder_from(arguments), arguments.device, arguments.track)))
    return 0
