"""The verb rank: any clips for any queries with a trained model."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_other
from data_tools.manifest import caption_queries, read_queries
from system.runs.pool import read_pool
from system.runs.rank import rank, rank_best
from system.verbs.options import (
    add_cache_argument,
    add_changes_argument,
    add_checkpoint_arguments,
    open_model,
    positive,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    parser.add_argument("--audio", type=Path, required=True, help="a manifest (.jsonl), or a folder of audio files")
    parser.add_argument("--split", help="of a manifest: only this split's clips (default: all)")
    parser.add_argument("--queries", type=Path, help="queries (.jsonl or .csv; default: the manifest's own captions)")
    out = "the score matrix to write (.npy); with --top a ranked CSV (.csv)"
    parser.add_argument("--out", type=Path, required=True, help=out)
    top = "write the names of each query's K best clips alone; the scores of all are never held at once"
    parser.add_argument("--top", type=positive, metavar="K", help=top)
    unknown = "rank queries of which the model knows no word, too: in one fixed order"
    parser.add_argument("--allow-unknown", action="store_true", help=unknown)
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.top is None and arguments.out.suffix != ".npy":
        also = "; ranked lists (.csv) are written with --top K" if arguments.out.suffix == ".csv" else ""
        raise KitError(f"--out {arguments.out}: a score matrix ends in .npy{also}")
    if arguments.top is not None and arguments.out.suffix != ".csv":
        raise KitError(f"--out {arguments.out}: with --top ranked lists are written; give a name that ends in .csv")
    require_other(arguments.out, [arguments.queries, arguments.audio])
    listed = read_pool(arguments.audio, arguments.split)
    queries = caption_queries(listed.clips) if arguments.queries is None else read_queries(arguments.queries)
    if not queries:
        raise KitError(f"{arguments.audio} has no captions to search with; name a file of queries by --queries")
    trained, cache = open_model(arguments)
    asked = (trained, listed, queries, arguments.out, cache)
    if arguments.top is None:
        ranked = rank(*asked, arguments.allow_unknown)
        print(f"wrote {arguments.out}: {counted(len(queries), 'query')} x {counted(ranked, 'clip')}")
    else:
        ranked = rank_best(*asked, arguments.top, arguments.allow_unknown)
        size = f"{counted(len(queries), 'query')} x {counted(arguments.top, 'name')}"
        print(f"wrote {arguments.out}: {size}, of {counted(ranked, 'clip')}")
    return 0
