"""The verb rank: any clips for any queries with a trained model."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import caption_queries, read_queries
from system.runs.pool import rank, read_pool
from system.verbs.options import add_cache_argument, add_changes_argument, add_checkpoint_arguments, open_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    parser.add_argument("--audio", type=Path, required=True, help="a manifest (.jsonl), or a folder of audio files")
    parser.add_argument("--split", help="of a manifest: only this split's clips (default: all)")
    parser.add_argument("--queries", type=Path, help="queries (.jsonl or .csv; default: the manifest's own captions)")
    parser.add_argument("--out", type=Path, required=True, help="the score matrix to write (.npy)")
    unknown = "rank queries of which the model knows no word, too: in one fixed order"
    parser.add_argument("--allow-unknown", action="store_true", help=unknown)
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out.suffix != ".npy":
        raise KitError(f"--out {arguments.out}: a score matrix ends in .npy")
    listed = read_pool(arguments.audio, arguments.split)
    queries = caption_queries(listed.clips) if arguments.queries is None else read_queries(arguments.queries)
    if not queries:
        raise KitError(f"{arguments.audio} has no captions to search with; name a file of queries by --queries")
    trained, cache = open_model(arguments)
    ranked = rank(trained, listed, queries, arguments.out, cache, arguments.allow_unknown)
    print(f"wrote {arguments.out}: {counted(len(queries), 'query')} x {counted(ranked, 'clip')}")
    return 0
