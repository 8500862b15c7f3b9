"""Write the sounds of a crawl's store as a table."""

import argparse
from pathlib import Path

from data_tools.cli import counted
from data_tools.freesound.export import write_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `export` to its parser."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help="SQLite file made by crawl")
    text = "table to write, .csv (with a ' before texts that would be formulas) or .parquet (needs pyarrow)"
    parser.add_argument("--out", type=Path, required=True, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `export`: write a crawl's store as a table; return the exit status."""
    count = write_store(arguments.source, arguments.out)
    print(f"wrote {arguments.out}: {counted(count, 'sound')}")
    return 0
