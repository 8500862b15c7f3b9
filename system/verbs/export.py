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
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder to write the exported model to, new or empty"
    )
    add_checkpoint_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `export`: write a trained model to one folder. Returns: The exit status."""
    trained = open_trained(arguments.run_folder, arguments.stage, arguments.checkpoint, device=arguments.device)
    export_model(with_fit(trained), arguments.out)
    if corrected := [name for name, entry in trained.recipe.rank.items() if isinstance(entry, RankHubCorrected)]:
        hint = f"an exported model has no captions that show them; rank with {arguments.run_folder} for it"
        log.warning("the model is exported without the correction of hubs of %s: %s", ", ".join(corrected), hint)
    print(f"exported: {arguments.out}")
    return 0
