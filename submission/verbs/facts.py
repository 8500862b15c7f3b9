"""Verb facts: rules of an edition.

Print the rules of an edition, each with its source and its degree of certainty; or list all editions, one per line.
"""

import argparse
import logging
from collections.abc import Mapping

from data_tools.cli import add_json
from submission.editions import all_editions, get_any_edition

FILES = {
    "ranked": "the best file names of every query",
    "matrix": "every score of every query",
    "windows": "windows of recordings for every query, best first",
}
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `facts` to its parser."""
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `facts`: print the rules of an edition, or list all editions; return the exit status."""
    if arguments.json:
        from data_tools.documents.strict import print_report
        from submission.verbs.json_output import FactsReport, edition_report

        shown = [get_any_edition(arguments.edition)] if arguments.edition else all_editions()
        print_report(FactsReport(editions=[edition_report(each, bool(arguments.edition)) for each in shown]))
        return 0
    if arguments.edition is None:
        for edition in all_editions():
            print(f"{edition.name:8}task {edition.task:4}{FILES[edition.output]}; figure {edition.metric}")
        log.info("to print all facts of an edition with their sources, add --edition YEAR")
        return 0
    edition = get_any_edition(arguments.edition)
    for name, (certainty, source) in edition.sources.items():
        print(f"{name:15} {_format_fact(getattr(edition, name))}\n{'':15} {certainty}: {source}")
    return 0


def _format_fact(value: object) -> str:
    """Format the value of a fact about an edition on one line."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {', '.join(map(str, names))}" for key, names in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none known" if value is None else str(value)
