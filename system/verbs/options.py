"""Arguments that several verbs share."""

import argparse
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.errors import KitError
from system.experts.base import Device

if TYPE_CHECKING:
    from system.ranking.base import Ranker

MODEL = (
    "folder of a run or an exported model, a recipe without stages, or the Hugging Face name or folder of CLAP, PE-AV, "
    "PE-A-Frame or EmbeddingGemma 2"
)

log = logging.getLogger(__name__)


def parse_positive(text: str) -> int:
    """Parse a whole number of at least 1, as a type of argparse."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_device(text: str) -> Device:
    """Convert an option's text, such as cuda or cpu, to the device of this machine that it names."""
    from system.compute.device import device_of

    try:
        return device_of(text)
    except KitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --device, which names the device that computes."""
    where = "where to compute: cuda, cuda:1 (the second GPU), mps or cpu (default: cuda if available, else cpu)"
    parser.add_argument("--device", type=parse_device, help=where)


def parse_tracker(text: str) -> str:
    """Return the name of a tracker whose package is installed, as a type of argparse."""
    if text not in ("tensorboard", "wandb"):
        raise argparse.ArgumentTypeError(f"{text!r} is not tensorboard or wandb")
    if find_spec(text) is None:
        raise argparse.ArgumentTypeError(f"the package {text} is not installed; pip install {text}")
    return text


def add_track_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --track, which names a tracker that gets the metrics."""
    what = "send the metrics of every epoch to a tracker"
    parser.add_argument("--track", type=parse_tracker, metavar="tensorboard|wandb", help=what)


def add_changes_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --set, which changes settings of the recipe."""
    what = "change a setting of the recipe, such as stages.finetune.batch_size=64; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=what)


def add_runs_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --runs, the folder of all runs."""
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder that contains all runs (default: runs)")


def add_cache_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option --cache, the folder for stored embeddings."""
    what = "folder for stored embeddings of clips (default: ~/.cache/lbar-kit, or lbar-kit in $XDG_CACHE_HOME)"
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help=what)


def ranker_of(arguments: argparse.Namespace, model: Path, with_windows: bool = False) -> "Ranker":
    """Open the ranker of a run or an exported model with the options of the command line.

    with_windows: Whether to find windows (times of the query) in recordings too, if the model has a score of moments.
    """
    from system.runs.rankers import open_ranker

    chosen = (arguments.stage, arguments.checkpoint, arguments.set, arguments.device)
    return open_ranker(model, *chosen, arguments.cache, with_windows)


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --stage, --checkpoint and --device, which select a run's checkpoint and the device."""
    parser.add_argument(
        "--stage", help="for a run: use a checkpoint of this stage (default: as in the run's rank entry)"
    )
    which = "for a run: last, or the metric whose best checkpoint is used (default: as in the run's rank entry)"
    parser.add_argument("--checkpoint", help=which)
    add_device_argument(parser)


def add_recipe_arguments(parser: argparse.ArgumentParser, runs: bool = True, what: str = "a recipe (.yaml)") -> None:
    """Add the arguments of a verb that reads a recipe to the verb's parser, such as the recipe's path and --set.

    runs: Whether the verb writes a run. If so, options for the run's folder, the device and trackers are added too.
    what: Help text of the recipe's path.
    """
    parser.add_argument("recipe", type=Path, help=what)
    add_changes_argument(parser)
    if runs:
        add_runs_argument(parser)
        out = "path of the run's folder (default: a new folder in --runs, or the folder of the run to resume)"
        folder = parser.add_mutually_exclusive_group()
        folder.add_argument("--out", type=Path, help=out)
        folder.add_argument(
            "--name",
            type=_parse_folder_name,
            help="name of the run's folder in --runs (default: date, recipe, seed and commit)",
        )
        add_device_argument(parser)
        add_track_argument(parser)


def _parse_folder_name(text: str) -> str:
    """Parse a folder name without path, as a type of argparse."""
    if Path(text).name != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a single folder name; give a path with --out")
    return text


def folder_from(arguments: argparse.Namespace) -> Path | None:
    """Return the run's folder as set by --out or --name; None if both options are missing."""
    out: Path | None = arguments.out
    return arguments.runs / arguments.name if arguments.name else out
