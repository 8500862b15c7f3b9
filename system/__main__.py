"""The door of this room: `python -m system VERB ...`."""

import argparse
import logging
import sys
from importlib import import_module
from typing import NamedTuple

from data_tools.errors import DataError
from submission.errors import SubmissionError
from system.errors import KitError


class Verb(NamedTuple):
    """A verb lives in the module of its name, which has add_arguments(parser) and run(arguments) -> exit status."""

    help: str
    example: str


VERBS = {
    "check": Verb(
        "tell all mistakes of a recipe, or its plan, data, disk and memory",
        "python -m system check recipes/quickstart.yaml",
    ),
    "features": Verb(
        "compute the frames a recipe needs and does not have yet", "python -m system features recipes/quickstart.yaml"
    ),
    "train": Verb(
        "train a recipe's stages, or go on where they stopped",
        "python -m system train recipes/quickstart.yaml --set seed=2",
    ),
    "rank": Verb(
        "score any clips for any queries with a trained model",
        "python -m system rank runs/RUN --audio data/blind/test --queries data/blind/captions.csv --out blind.npy",
    ),
    "run": Verb(
        "do all of a recipe: data, features, training, ranked CSV, scores; what is done is passed over",
        "python -m system run recipes/quickstart.yaml",
    ),
    "study": Verb(
        "run a recipe over seeds and changed settings, and print the table",
        "python -m system study recipes/esc_scenes_study.yaml",
    ),
    "export": Verb(
        "write a trained model as one folder for another machine", "python -m system export runs/RUN --out my_model"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 after an error, 2 for wrong usage, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser(argv).parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or complaint
        return int(stop.code or 0)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger().setLevel(logging.INFO)
    for chatty in ("httpx", "sentence_transformers", "urllib3", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return int(arguments.run(arguments))
    except (KitError, DataError, SubmissionError) as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
    except OSError as error:
        name = error.filename2 or error.filename
        print(f"error: {f'{name}: ' if name else ''}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        print(stop or "interrupted", file=sys.stderr)
        return 130
    return 1


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """The parser; only the verb in use is imported, so that torch is loaded by those that need it."""
    parser = argparse.ArgumentParser(prog="python -m system", description="Check, train and use retrieval systems.")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb in VERBS.items():
        subparser = subparsers.add_parser(
            name,
            help=verb.help,
            description=f"{verb.help[0].upper()}{verb.help[1:]}.",
            epilog=f"example:\n  {verb.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if argv[:1] == [name]:
            module = import_module(f"system.{name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
