"""Verb export: write a model folder.

Write a trained model to one folder for another machine.
"""

import argparse
import logging
from pathlib import Path

from system.ranking.hub_corrected import RankHubCorrected
from system.runs.export import export_model
from system.runs.open import open_trained, with_fit
from system.verbs.options import add_checkpoint_arguments

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `export` to its parser."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="new or empty folder for the exported model")
    add_checkpoint_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `export`: write a trained model to one folder. Returns: The exit status."""
    trained = open_trained(arguments.run_folder, arguments.stage, arguments.checkpoint, device=arguments.device)
    export_model(with_fit(trained), arguments.out)
    if corrected := [name for name, entry in trained.recipe.rank.items() if isinstance(entry, RankHubCorrected)]:
        hint = f"the correction needs captions of the recipe; to rank with it, use {arguments.run_folder}"
        log.warning("the exported model lacks the hub correction of rank entry %s: %s", ", ".join(corrected), hint)
    print(f"exported: {arguments.out}")
    return 0
