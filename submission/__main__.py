"""The door: python -m submission VERB ...

A verb is the module of its name in verbs/, with add_arguments(parser) and run(arguments) -> exit status; only the one
in use is imported, so that `score` answers at once.
"""

import argparse
import io
import os
import sys
from importlib import import_module

from data_tools.errors import DataError
from submission.editions import EDITIONS
from submission.errors import SubmissionError

# name -> help, example
VERBS = {
    "facts": ("what an edition asks for, with sources", "facts --edition 2025"),
    "write": ("an edition's file from a score matrix", "write SCORES.npy --out mine.output.csv"),
    "convert": ("a CSV as another edition's, or as a score matrix", "convert mine.csv --out scores.npy"),
    "check": ("every problem of a file or a package", "check mine.output.csv --truth clotho_captions_evaluation.csv"),
    "score": (
        "figures of a CSV or of a score matrix",
        "score mine.output.csv --truth clotho_captions_evaluation.csv",
    ),
    "compare": ("a paired test between a system and others", "compare blend.npy seed1.npy seed2.npy seed3.npy"),
    "blend": (
        "one score matrix of several",
        "blend a.npy b.npy --validation val_a.npy val_b.npy --how standardised --out blend.npy",
    ),
    "report": (
        "one page of a finished run: figures, failures, and clips to listen to",
        "report runs/A:by_m1 --beside runs/B --out a.html",
    ),
    "pack": (
        "the archive that is handed in, of finished runs",
        "pack runs/A runs/B:by_m1 --about about.yaml --edition 2024 --report report.pdf --out package.zip",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns the exit code: 0, 1 for a refusal or a failing check, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name the terminal's encoding lacks is shown escaped, never a traceback.
            stream.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser(argv).parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except (SubmissionError, DataError) as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
    except BrokenPipeError:
        # The reader (head, less) went away; what the interpreter still holds for it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return 1


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission", description="Files and figures of the language-based audio retrieval challenge."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, (told, example) in VERBS.items():
        verb = verbs.add_parser(
            name,
            help=told,
            description=f"{told[0].upper()}{told[1:]}.",
            epilog=f"example:\n  python -m submission {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.add_argument(
            "--edition", metavar="YEAR", default="2022", help=f"one of {', '.join(EDITIONS)} (default %(default)s)"
        )
        if argv[:1] == [name]:
            module = import_module(f"submission.verbs.{name}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
