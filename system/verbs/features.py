"""Verb features: compute missing frames."""

import argparse

from system.recipe.data import load_data
from system.recipe.load import load_recipe
from system.recipe.manifests import make_missing
from system.verbs.options import add_device_argument, add_recipe_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `features` to its parser."""
    add_recipe_arguments(parser, runs=False)
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first broken audio file (default: skip it with a warning)"
    )
    add_device_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `features`: compute the missing frames of a recipe's clips. Returns: The exit status."""
    recipe = load_recipe(arguments.recipe, arguments.set).recipe
    make_missing(recipe)
    features = load_data(recipe, arguments.strict, arguments.device).features
    print(*features.summary_lines(), sep="\n")
    print(f"clips: {len(features.keys)} with frames, {len(features.broken)} broken and skipped")
    return 0
