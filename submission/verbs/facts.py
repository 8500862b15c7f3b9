"""The verb facts: what an edition asks for, with sources and how sure it is; or all editions, a line each."""

import argparse
from collections.abc import Mapping

from submission.editions import EDITIONS, get_edition

FILES = {"ranked": "the best file names of every query", "matrix": "every score of every query"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An edition is all it needs."""


def run(arguments: argparse.Namespace) -> int:
    if arguments.edition is None:
        for edition in EDITIONS.values():
            print(f"{edition.name:8}task {edition.task:4}{FILES[edition.output]}; figure {edition.metric}")
        print("--edition YEAR prints all facts of one, with their sources")
        return 0
    edition = get_edition(arguments.edition)
    for name, (sure, where) in edition.sources.items():
        print(f"{name:15} {_format(getattr(edition, name))}\n{'':15} {sure}: {where}")
    return 0


def _format(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {', '.join(names)}" for key, names in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none known" if value is None else str(value)
