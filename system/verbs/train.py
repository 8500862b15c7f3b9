"""Verb train: train all stages.

Train the stages of a recipe, or resume their training.
"""

import argparse
from contextlib import ExitStack

from system.compute.distributed import is_first, on_first, processes
from system.recipe.data import load_data
from system.recipe.load import load_recipe
from system.recipe.manifests import make_missing
from system.runs.find import open_run
from system.runs.log_file import log_errors
from system.training.same_everywhere import require_same_start
from system.training.train import prepare, train
from system.verbs.options import add_recipe_arguments, folder_from

add_arguments = add_recipe_arguments


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `train`: train all stages of a recipe, without ranking. Returns: The exit status."""
    loaded = load_recipe(arguments.recipe, arguments.set)
    with processes(arguments.device), ExitStack() as stack:
        require_same_start("train", {"recipe": loaded})
        folder = on_first(lambda: open_run(loaded, arguments.runs, folder_from(arguments)))
        on_first(lambda: stack.enter_context(folder.lock()))
        stack.enter_context(log_errors(folder.folder))
        on_first(lambda: make_missing(loaded.recipe, again=not folder.provenance.exists()))
        data = load_data(loaded.recipe, device=arguments.device, waveforms=folder.waveforms)
        train(loaded, folder, data, prepare(loaded, folder, data, arguments.device), arguments.track)
        if is_first():
            print(f"trained: {folder.folder}")
    return 0
