"""The verb serve: a page on this machine for searching clips with a trained model."""

import argparse
import asyncio
import logging
from pathlib import Path

from data_tools.errors import KitError
from system.runs.open import open_trained
from system.serve.listening import about_of, bound, serve
from system.serve.search import make_search, pool_of
from system.verbs.options import add_changes_argument, add_checkpoint_arguments

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    audio = "a manifest (.jsonl), or a folder of audio files (default: what the recipe ranks)"
    parser.add_argument("--audio", type=Path, help=audio)
    split = "of a manifest: only this split's clips (default: all, or what the recipe ranks)"
    parser.add_argument("--split", help=split)
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=8020, help="0: any that is free (default: %(default)s)")
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port <= 65_535:
        raise KitError(f"--port {arguments.port}: use 0 to 65535")
    with bound(arguments.host, arguments.port) as listening:  # a taken port is reported before anything is computed
        trained = open_trained(arguments.model, arguments.stage, arguments.checkpoint, arguments.set, arguments.device)
        clips = pool_of(trained.recipe, arguments.audio, arguments.split)
        log.info("embedding %d clips", len(clips))
        search = make_search(trained, clips)
        asyncio.run(serve(search, about_of(trained, search), arguments.host, listening))
    return 0
