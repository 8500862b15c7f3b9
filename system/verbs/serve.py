"""The verb serve: a page on this machine for searching clips with a trained model."""

import argparse
import asyncio
from pathlib import Path

from data_tools.errors import KitError
from system.runs.pool import embed, pool_of, read_pool
from system.serve.listening import about_of, bound, search_of, serve
from system.verbs.options import add_cache_argument, add_changes_argument, add_checkpoint_arguments, open_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    audio = "a manifest (.jsonl), or a folder of audio files (default: what the recipe ranks)"
    parser.add_argument("--audio", type=Path, help=audio)
    split = "of a manifest: only this split's clips (default: all, or what the recipe ranks)"
    parser.add_argument("--split", help=split)
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=8020, help="0: any that is free (default: %(default)s)")
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port <= 65_535:
        raise KitError(f"--port {arguments.port}: use 0 to 65535")
    with bound(arguments.host, arguments.port) as listening:  # a taken port is reported before anything is computed
        named = read_pool(arguments.audio, arguments.split) if arguments.audio else None  # before the model is loaded
        trained, cache = open_model(arguments)
        listed = named or pool_of(trained.recipe, None, arguments.split)
        search = search_of(trained, embed(trained, listed, cache))
        asyncio.run(serve(search, about_of(trained, search), arguments.host, listening))
    return 0
