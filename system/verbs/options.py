"""Arguments that several verbs share."""

import argparse
import logging
from pathlib import Path

from system.recipe.load import Loaded, load_recipe

log = logging.getLogger(__name__)

SET_HELP = "change a setting, such as stages.finetune.batch_size=64; may be given again"


def add_recipe_arguments(parser: argparse.ArgumentParser, runs: bool = True) -> None:
    """The recipe, changes to it, and (for verbs that write a run) where runs are."""
    parser.add_argument("recipe", type=Path, help="a recipe (.yaml)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    if runs:
        parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
        parser.add_argument(
            "--out", type=Path, help="the run's folder itself (default: a new one, or the run to resume)"
        )


def load_from(arguments: argparse.Namespace) -> Loaded:
    """The recipe, with a warning where it has keys by old names."""
    loaded = load_recipe(arguments.recipe, arguments.set)
    if loaded.renamed:
        log.warning(
            "%s: old names of %d settings, which the next release no longer reads; `python -m system check` prints the "
            "new lines",
            arguments.recipe,
            len(loaded.renamed),
        )
    return loaded
