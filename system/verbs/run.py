"""The verb run: all of a recipe in one go."""

import argparse

from system.experiments.run import report, run_recipe
from system.verbs.options import add_recipe_arguments, load_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    print(report(run_recipe(load_from(arguments), arguments.runs, arguments.out, arguments.device)))
    return 0
