"""The verb train: a recipe's stages, or on where they stopped."""

import argparse

from system.batches.data import load_data, make_missing
from system.runs.folder import open_run
from system.training.train import prepare, train
from system.verbs.options import add_recipe_arguments, folder_from, load_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    loaded = load_from(arguments)
    folder = open_run(loaded, arguments.runs, folder_from(arguments))
    with folder.lock():
        make_missing(loaded.recipe)
        data = load_data(loaded.recipe, device=arguments.device)
        train(loaded, folder, data, prepare(loaded, folder, data, arguments.device), arguments.track)
    print(f"trained: {folder.folder}")
    return 0
