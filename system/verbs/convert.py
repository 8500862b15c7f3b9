"""Verb convert: read published checkpoints.

The verb converts YAMNet's tflite file, checkpoints of retrieval models, and M2D-CLAP to this kit's formats.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError
from data_tools.files import replacing
from system.experts.base import file_sha256
from system.experts.tflite import PUBLIC_SHA256, log, read_layers
from system.experts.yamnet import LAYERS
from system.recipe.load import load_recipe
from system.verbs.options import add_changes_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `convert` to its parser."""
    parser.description = (
        "Convert a published file. Google's yamnet.tflite becomes the weight file of the expert yamnet. The checkpoint "
        "of a published retrieval model (.ckpt) becomes an exported model; name its recipe with --recipe. The text "
        "encoder of M2D-CLAP (.zip) becomes a folder that recipes can name; name its text model with --text."
    )
    parser.add_argument(
        "file",
        type=Path,
        help="the file to convert: yamnet.tflite, a PyTorch Lightning checkpoint (.ckpt), or M2D-CLAP's .zip",
    )
    of_model = "recipe of the checkpoint (.ckpt), such as recipes/dcase2025_baseline/all.yaml"
    parser.add_argument("--recipe", type=Path, help=of_model)
    parser.add_argument(
        "--text", metavar="MODEL", help="Hugging Face name of M2D-CLAP's text model: google-bert/bert-base-uncased"
    )
    add_changes_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="what to write: a .npz file for yamnet.tflite, else a folder",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `convert`: convert a published file to a format of this kit. Returns: The exit status."""
    if arguments.recipe is not None and arguments.text is not None:
        raise KitError(
            "--recipe (for a checkpoint) and --text (for M2D-CLAP) cannot be combined; leave one of them out"
        )
    if arguments.set and arguments.recipe is None:
        raise KitError(f"--set {arguments.set[0]}: only works with --recipe; leave it out")
    if arguments.recipe is not None:
        return _convert_model(arguments)
    if arguments.text is not None:
        return _convert_text_encoder(arguments)
    if arguments.file.suffix == ".ckpt":
        raise KitError(f"{arguments.file}: a checkpoint needs the recipe of its model; name the recipe with --recipe")
    layers: dict[str, Any] = read_layers(arguments.file)
    if file_sha256(arguments.file) != PUBLIC_SHA256:
        log.warning(
            "%s has another checksum than the public file that was tested, but its layers have the right shapes; "
            "converting it",
            arguments.file,
        )
    with replacing(arguments.out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **layers)
    print(f"wrote {len(layers)} arrays (weights and biases of {LAYERS} layers) to {arguments.out}")
    return 0


def _convert_text_encoder(arguments: argparse.Namespace) -> int:
    """Write the text encoder of an M2D-CLAP file to a folder that recipes can name. Returns: The exit status."""
    from system.runs.m2d_text import write_text_encoder

    count = write_text_encoder(arguments.file, arguments.text, arguments.out)
    print(f"wrote {count} tensors of the text encoder in {arguments.file} to {arguments.out}")
    return 0


def _convert_model(arguments: argparse.Namespace) -> int:
    """Write a published checkpoint of a retrieval model as an exported model. Returns: The exit status."""
    from system.runs.export import export_model
    from system.runs.published import open_published

    recipe = load_recipe(arguments.recipe, arguments.set).recipe
    export_model(open_published(arguments.file, recipe), arguments.out)
    print(f"wrote the model of {recipe.name} with the weights of {arguments.file} to {arguments.out}")
    return 0
