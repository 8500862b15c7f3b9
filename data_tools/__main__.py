"""The door of this room: `python -m data_tools VERB ...`."""

import argparse
import sys
from importlib import import_module
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.names import is_utf8


class Verb(NamedTuple):
    """A verb lives in the module of its name, which has add_arguments(parser) and run(arguments) -> exit status."""

    help: str
    example: str


VERBS = {
    "clotho": Verb(
        "make a manifest of Clotho, or of a folder laid out like it",
        "python -m data_tools clotho data/clotho --out data/clotho.jsonl",
    ),
    "audiocaps": Verb(
        "make a manifest of AudioCaps",
        "python -m data_tools audiocaps data/audiocaps --out data/audiocaps.jsonl",
    ),
    "wavcaps": Verb(
        "make a manifest of one of WavCaps' four parts",
        "python -m data_tools wavcaps data/wavcaps/bbc_final.json --audio data/wavcaps/bbc --out data/bbc.jsonl",
    ),
    "blind": Verb(
        "make a manifest of a folder of audio without captions",
        "python -m data_tools blind data/retrieval_audio/test --out data/blind.jsonl",
    ),
    "queries": Verb(
        "make a query file from a captions CSV or a manifest's captions",
        "python -m data_tools queries data/retrieval_captions.csv --out data/blind_queries.jsonl",
    ),
    "check": Verb(
        "find missing and corrupt audio and duplicate ids (exit status 1), and overlaps between splits",
        "python -m data_tools check data/clotho.jsonl data/audiocaps.jsonl --list findings.csv",
    ),
    "scenes": Verb(
        "compose a captioned data set of synthetic or recorded sound events, laid out like Clotho",
        "python -m data_tools scenes data/scenes --seed 1\n"
        "  python -m data_tools scenes data/esc_scenes --seed 1 --recordings data/ESC-50 "
        "--folds development=1,2,3 validation=4 evaluation=5",
    ),
    "ceiling": Verb(
        "tell the mAP@10 that a perfect labeller of composed scenes would reach",
        "python -m data_tools ceiling data/scenes --split evaluation",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 after an error or a failed check, 2 for wrong usage, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser(argv).parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or complaint
        return int(stop.code or 0)
    try:
        if odd := [value for value in argv if not is_utf8(value)]:
            raise DataError(f"the argument {odd[0]!a} is not UTF-8; rename the file or folder")
        return arguments.run(arguments)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        name = error.filename2 or error.filename
        print(f"error: {f'{name}: ' if name else ''}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 1


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """The parser; only the verb in use is imported, so that the door opens at once."""
    parser = argparse.ArgumentParser(prog="python -m data_tools", description="Make, check and compose data sets.")
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
            module = import_module(f"data_tools.{name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
