"""Print the state of a crawl."""

import argparse
from pathlib import Path

from data_tools.freesound.crawl import status
from data_tools.freesound.store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `status` to its parser."""
    parser.add_argument("store", type=Path, metavar="STORE", help="SQLite file made by crawl")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `status`; return the exit status."""
    with open_store(arguments.store, read_only=True) as store:
        print(*status(store), sep="\n")
    return 0
