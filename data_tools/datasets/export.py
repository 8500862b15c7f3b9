"""Export tables and shards.

Writes the sounds of a crawl's store as a table, or the clips of a manifest with their audio as parquet files or
WebDataset tars.
"""

import argparse
from pathlib import Path
from typing import get_args

from data_tools.cli import counted
from data_tools.documents.json_text import sha256_of
from data_tools.errors import DataError
from data_tools.files import format_size, require_file
from data_tools.freesound.export import write_store
from data_tools.hub.shards import Form, export_clips
from data_tools.manifest import read_manifest

SHARD_MB = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `export` to its parser."""
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="SQLite file made by crawl, or a manifest (.jsonl)")
    add(
        "--out",
        type=Path,
        required=True,
        help="for a store: the table to write, .csv (with a ' before texts that would be formulas) or .parquet "
        "(needs pyarrow); for a manifest: a folder for the shards",
    )
    add("--format", choices=get_args(Form), help="for a manifest: format of the shards, which contain the audio")
    add("--shard-size", type=int, metavar="MB", help=f"for a manifest: MB of audio per shard (default: {SHARD_MB})")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `export`: write a crawl's store as a table, or a manifest as shards; return the exit status."""
    if arguments.source.suffix.lower() != ".jsonl":
        if arguments.format or arguments.shard_size:
            raise DataError(f"{arguments.source}: --format and --shard-size are for manifests (.jsonl); leave them out")
        count = write_store(arguments.source, arguments.out)
        print(f"wrote {arguments.out}: {counted(count, 'sound')}")
        return 0
    if not arguments.format:
        raise DataError(f"{arguments.source}: is a manifest; add --format parquet or --format webdataset")
    size = SHARD_MB if arguments.shard_size is None else arguments.shard_size
    if size < 1:
        raise DataError(f"--shard-size {size}: give at least 1")
    require_file(arguments.source)
    clips = read_manifest(arguments.source)
    shards = export_clips(clips, arguments.out, arguments.format, size * 1_000_000, sha256_of(arguments.source))
    written = format_size(sum(path.stat().st_size for path in shards))
    print(f"wrote {arguments.out}: {counted(len(clips), 'clip')} in {counted(len(shards), 'shard')}, {written}")
    return 0
