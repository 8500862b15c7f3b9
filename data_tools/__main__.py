"""The command line of this package: `lbar data VERB ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module

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
app = new_app("lbar data", "Make, check and compose data sets. A stopped command goes on when it is given again.")
for name, module in VERBS.items():
    add_verb(app, getattr(import_module(f"data_tools.{module}"), name))


def main(argv: Sequence[str] | None = None, inside: bool = False) -> int:
    """Run a verb, and return its exit status. inside: Whether another verb calls."""
    return run_app(app, "lbar data", argv, inside)


if __name__ == "__main__":
    sys.exit(main())
