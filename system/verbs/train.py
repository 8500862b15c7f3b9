"""Verb train: train all stages.

Train the stages of a recipe, or resume their training.
"""

import argparse
from contextlib import ExitStack

from system.compute.processes import first_before_others, is_first, on_first, processes
from system.recipe.data import load_data
from system.recipe.load import load_recipe
from system.recipe.manifests import make_missing
from system.runs.find import open_run
from system.runs.log_file import log_errors
from system.training.prepare import prepare, training_relevance
from system.training.tracking import open_tracker
from system.training.train import train
from system.verbs.options import add_recipe_arguments, folder_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `train`: train all stages of a recipe, without ranking. Returns: The exit status."""
    loaded = load_recipe(arguments.recipe, arguments.set)
    with processes(arguments.device), ExitStack() as stack:
        folder = on_first(lambda: open_run(loaded, arguments.runs, folder_from(arguments)))
        if is_first():
            stack.enter_context(folder.lock())
        stack.enter_context(log_errors(folder.folder))
        with first_before_others():
            make_missing(loaded.recipe, again=is_first() and not folder.provenance.exists())
            data = load_data(loaded.recipe, device=arguments.device)
        model = prepare(loaded, folder, data, arguments.device)
        with first_before_others():
            relevance = training_relevance(loaded.recipe, data, folder.figures / "relevance.svg")
        track = open_tracker(arguments.track if is_first() else None, folder)
        train(loaded.recipe, folder, data, model, relevance, track)
        if is_first():
            print(f"trained: {folder.folder}")
    return 0
