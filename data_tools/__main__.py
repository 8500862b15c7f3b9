"""The command line of this package: `lbar data VERB ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from data_tools.cli import add_verb, new_app, run_app

VERBS = {  # module of each verb's function, in the order of the help
    "get": "datasets.get",
    "clotho": "datasets.clotho",
    "audiocaps": "datasets.audiocaps",
    "wavcaps": "datasets.wavcaps",
    "castella": "datasets.castella",
    "hub": "datasets.hub",
    "table": "datasets.table",
    "blind": "datasets.blind",
    "transcode": "datasets.transcode",
    "check": "check",
    "scenes": "scenes.build",
    "crawl": "freesound.crawl",
    "status": "freesound.crawl",
    "classify": "classify.verb",
    "fetch": "freesound.fetch",
    "sandbox": "freesound.sandbox",
}


def app_of(argv: Sequence[str]) -> typer.Typer:
    """Return the app with the verb that is called.

    The help, and `get`, which calls other verbs, need all of them.
    """
    app = new_app("lbar data", "Make, check and compose data sets. A stopped command goes on when it is given again.")
    for name in set(argv[:1]) & VERBS.keys() - {"get"} or VERBS:
        add_verb(app, getattr(import_module(f"data_tools.{VERBS[name]}"), name))
    return app


def main(argv: Sequence[str], inside: bool = False) -> int:
    """Run a verb, and return its exit status. inside: Whether another verb calls."""
    return run_app(app_of(argv), "lbar data", argv, inside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
