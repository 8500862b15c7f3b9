"""Verb convert: read published checkpoints.

Converts published files for this kit: YAMNet's tflite, and checkpoints of retrieval models.
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
        "Convert a published file: Google's yamnet.tflite to the weight file of the expert yamnet, or the checkpoint "
        "of a published retrieval model (.ckpt) to an exported model, with its recipe, or the text encoder of "
        "M2D-CLAP (.zip) to a folder for text encoders."
    )
    parser.add_argument(
        "file",
        type=Path,
        help="the file to convert: yamnet.tflite, a PyTorch Lightning checkpoint (.ckpt), or M2D-CLAP's .zip",
    )
    of_model = "for a checkpoint: its recipe, such as recipes/dcase2025_baseline/all.yaml"
    parser.add_argument("--recipe", type=Path, help=of_model)
    parser.add_argument("--text", metavar="MODEL", help="for M2D-CLAP: its text model, google-bert/bert-base-uncased")
    add_changes_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="the .npz file to write for yamnet.tflite, or the folder to write",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `convert`: write a published file in the format of this kit. Returns: The exit status."""
    if arguments.recipe is not None and arguments.text is not None:
        raise KitError("--recipe is for a checkpoint and --text for M2D-CLAP; leave one of them out")
    if arguments.set and arguments.recipe is None:
        raise KitError(f"--set {arguments.set[0]}: only works with --recipe; leave it out")
    if arguments.recipe is not None:
        return _model(arguments)
    if arguments.text is not None:
        return _text(arguments)
    if arguments.file.suffix == ".ckpt":
        raise KitError(f"{arguments.file}: a checkpoint is converted with its recipe; name that with --recipe")
    layers: dict[str, Any] = read_layers(arguments.file)
    if file_sha256(arguments.file) != PUBLIC_SHA256:
        log.warning(
            "%s is not the public file that was tested (other checksum), but its layers have the right shapes; "
            "converting it",
            arguments.file,
        )
    with replacing(arguments.out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **layers)
    print(f"wrote {len(layers)} weights and biases of {LAYERS} layers to {arguments.out}")
    return 0


def _text(arguments: argparse.Namespace) -> int:
    """Convert the text encoder of an M2D-CLAP file to a folder."""
    from system.runs.m2d_text import write_text_encoder

    count = write_text_encoder(arguments.file, arguments.text, arguments.out)
    print(f"wrote {count} tensors of the text encoder in {arguments.file} to {arguments.out}")
    return 0


def _model(arguments: argparse.Namespace) -> int:
    """Convert a published checkpoint of a retrieval model to an exported model."""
    from system.runs.export import export_model
    from system.runs.published import open_published

    recipe = load_recipe(arguments.recipe, arguments.set).recipe
    export_model(open_published(arguments.file, recipe), arguments.out)
    print(f"wrote the model of {recipe.name} with the weights of {arguments.file} to {arguments.out}")
    return 0
