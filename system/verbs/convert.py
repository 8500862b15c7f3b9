"""The verb convert: the weight file of the expert yamnet from the public yamnet.tflite."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.files import replacing
from system.experts.base import file_sha256
from system.experts.tflite import PUBLIC_SHA256, log, read_layers
from system.experts.yamnet import LAYERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tflite", type=Path, help="the public yamnet.tflite")
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")


def run(arguments: argparse.Namespace) -> int:
    layers: dict[str, Any] = read_layers(arguments.tflite)
    if file_sha256(arguments.tflite) != PUBLIC_SHA256:
        log.warning("%s is not the file this was tried with; its layers have the right shapes", arguments.tflite)
    with replacing(arguments.out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **layers)
    print(f"wrote {len(layers)} weights and biases of {LAYERS} layers to {arguments.out}")
    return 0
