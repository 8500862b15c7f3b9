"""Verb serve: search page.

Serve a web page on this machine that searches clips with a trained model.
"""

import argparse
import asyncio
from pathlib import Path

from data_tools.errors import KitError
from system.ranking.listing import list_clips
from system.runs.rankers import clips_to_rank
from system.serve.listening import bind_socket, page_facts, serve
from system.serve.search import Search
from system.verbs.options import MODEL, add_cache_argument, add_changes_argument, add_checkpoint_arguments, ranker_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `serve` to its parser."""
    parser.add_argument("model", type=Path, help=MODEL)
    audio = "the clips: a manifest (.jsonl), or a folder of audio files (default: the clips that the recipe ranks)"
    parser.add_argument("--audio", type=Path, help=audio)
    split = "for a manifest: use only the clips of this split (default: all, or the split that the recipe ranks)"
    parser.add_argument("--split", help=split)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, for this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8020, help="port to listen on; 0 chooses any free port (default: %(default)s)"
    )
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `serve`: answer queries on a web page. Returns: The exit status."""
    if not 0 <= arguments.port <= 65_535:
        raise KitError(f"--port {arguments.port}: must be from 0 to 65535")
    with bind_socket(
        arguments.host, arguments.port
    ) as listening:  # a taken port is reported before anything is computed
        named = list_clips(arguments.audio, arguments.split) if arguments.audio else None  # before the model is loaded
        ranker = ranker_of(arguments, arguments.model, with_windows=True)
        search = Search(ranker, ranker.open(named or clips_to_rank(arguments.model, arguments.split)))
        asyncio.run(serve(search, page_facts(search), arguments.host, listening))
    return 0
