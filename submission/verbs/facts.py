"""The verb facts: what an edition asks for, where that is published, and how sure it is."""

import argparse
from collections.abc import Mapping

from submission.editions import get_edition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An edition is all it needs."""


def run(arguments: argparse.Namespace) -> int:
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
