"""Query files from captions files and manifests."""

import argparse
from pathlib import Path

from data_tools.cli import counted, ending_in
from data_tools.errors import DataError
from data_tools.files import require_other
from data_tools.manifest import SPLITS, Query, caption_queries, of_split, read_manifest, read_queries, write_queries


def make_queries(path: Path, split: str | None) -> list[Query]:
    """Return a query for each caption of a captions CSV or a manifest.

    Relevant clips are unknown for a CSV; for a manifest, each caption's clip is relevant. split: Split of the
    manifest to use; None: all. Raises DataError if no query is left, and if `split` is given for a CSV, which has none.
    """
    if path.suffix == ".csv":
        if split:
            raise DataError(f"{path}: a captions CSV has no splits; leave out --split")
        return read_queries(path)
    queries = caption_queries(of_split(read_manifest(path), split, path))
    if not queries:
        raise DataError(f"{path}: no captions{f' in the split {split}' if split else ''}; use another file or split")
    return queries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `queries` to its parser."""
    parser.add_argument("path", type=Path, help="captions (.csv, of a blind set or Clotho) or a manifest (.jsonl)")
    parser.add_argument("--split", choices=SPLITS, help="only the captions of this split of a manifest (default: all)")
    parser.add_argument("--out", type=ending_in(".jsonl"), required=True, help="the query file to write (.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `queries`: make a query file from captions; return the exit status."""
    require_other(arguments.out, [arguments.path])
    queries = make_queries(arguments.path, arguments.split)
    write_queries(arguments.out, queries)
    known = sum(query.relevant is not None for query in queries)
    print(f"wrote {arguments.out}: {counted(len(queries), 'query')}, {known} with known relevant clips")
    return 0
