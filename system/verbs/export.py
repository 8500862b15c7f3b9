"""The verb export: a trained model as one folder for another machine."""

import argparse
from pathlib import Path

from system.runs.export import export_model
from system.runs.open import open_trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--stage", help="stage of the checkpoint (default: as the recipe ranks)")
    parser.add_argument("--checkpoint", help="last, or the metric it is best by (default: as the recipe ranks)")


def run(arguments: argparse.Namespace) -> int:
    export_model(open_trained(arguments.run_folder, arguments.stage, arguments.checkpoint), arguments.out)
    print(f"exported: {arguments.out}")
    return 0
