"""The command line of this package: `lbar data VERB ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from data_tools.cli import add_verb, run_app, set_up_log

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
app = typer.Typer(
    name="lbar data",
    help="Make, check and compose data sets. A stopped command goes on when it is given again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name, module in VERBS.items():
    add_verb(app, getattr(import_module(f"data_tools.{module}"), name))


@app.callback()
def log_of_all(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print times, modules and tracebacks.")] = False,
) -> None:
    if not context.obj:  # inside another verb its log stays
        set_up_log(quiet, verbose)


def main(argv: Sequence[str] | None = None, inside: bool = False) -> int:
    """Run a verb, and return its exit status. inside: Whether another verb calls."""
    return run_app(app, "lbar data", argv, inside)


if __name__ == "__main__":
    sys.exit(main())
