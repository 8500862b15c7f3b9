"""The door: python -m submission write | check | score."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from submission.editions import EDITIONS, Edition, get_edition
from submission.errors import SubmissionError
from submission.ranking import check_ranked_csv, write_ranked_csv
from submission.scores import read_scores
from submission.scoring import score_matrix, score_ranked_csv
from submission.truth import Truth, matrix_truth, read_clotho_truth

CAPTIONS = "clotho_captions_evaluation.csv"


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns the exit code: 0, 1 for a refusal or a failing check, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name the terminal's encoding lacks is shown escaped, never a traceback.
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.verb(arguments)
        sys.stdout.flush()
        return code
    except SubmissionError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader (head, less) went away; what the interpreter still holds for it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return 1


def write(arguments: argparse.Namespace) -> int:
    """Ranked CSV from a score matrix."""
    edition = get_edition(arguments.edition)
    matrix = read_scores(arguments.scores)
    write_ranked_csv(matrix, arguments.out, edition)
    print(f"wrote {arguments.out}: {_size(len(matrix.query_texts), edition)}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Every problem of a ranked CSV, on a line of its own."""
    edition = get_edition(arguments.edition)
    truth: Truth | None = None
    if arguments.truth:
        truth = read_clotho_truth(arguments.truth)
    elif arguments.scores:
        truth = matrix_truth(read_scores(arguments.scores))
    ranked, problems = check_ranked_csv(arguments.file.read_bytes(), edition, truth)
    for problem in problems:
        print(problem)
    if problems:
        number = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SubmissionError(f"{arguments.file} has {number}, listed above with the line each row starts on")
    print(f"ok: {_size(len(ranked), edition)}")
    return 0


def score(arguments: argparse.Namespace) -> int:
    """Figures of a ranked CSV, or of a score matrix."""
    edition = get_edition(arguments.edition)
    if arguments.file.suffix == ".npy":
        if arguments.truth:
            raise SubmissionError(f"{arguments.file} is a score matrix and holds its own truth; leave out --truth")
        summary = score_matrix(read_scores(arguments.file), edition)
    elif arguments.truth:
        summary = score_ranked_csv(arguments.file, arguments.truth, edition)
    else:
        raise SubmissionError(f"{arguments.file} is scored against captions; add --truth {CAPTIONS}")
    print("\n".join(summary.lines()))
    return 0


def _size(n_queries: int, edition: Edition) -> str:
    return f"{n_queries} queries x {edition.ranking_length} names"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission", description="Files and figures of the language-based audio retrieval challenge."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    truth_help = f"captions file in Clotho's format, e.g. {CAPTIONS}"

    verb = _add_verb(verbs, write, "write SCORES.npy --out mine.output.csv")
    verb.add_argument("scores", metavar="SCORES.npy", type=Path, help="score matrix; its .json stands beside it")
    verb.add_argument("--out", metavar="FILE.csv", type=Path, required=True, help="ranked CSV to write")

    verb = _add_verb(verbs, check, f"check mine.output.csv --truth {CAPTIONS}")
    verb.add_argument("file", metavar="FILE.csv", type=Path, help="ranked CSV")
    against = verb.add_mutually_exclusive_group()
    against.add_argument("--truth", metavar="CAPTIONS.csv", type=Path, help=truth_help)
    against.add_argument("--scores", metavar="SCORES.npy", type=Path, help="score matrix with the queries and clips")

    verb = _add_verb(verbs, score, f"score mine.output.csv --truth {CAPTIONS}")
    verb.add_argument("file", metavar="FILE", type=Path, help="ranked CSV, or a score matrix ending in .npy")
    verb.add_argument("--truth", metavar="CAPTIONS.csv", type=Path, help=f"for a ranked CSV: {truth_help}")
    return parser


def _add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    function: Callable[[argparse.Namespace], int],
    example: str,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        function.__name__,
        help=function.__doc__,
        description=function.__doc__,
        epilog=f"example:\n  python -m submission {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    years = ", ".join(str(year) for year in sorted(EDITIONS))
    verb.add_argument("--edition", metavar="YEAR", type=int, default=2022, help=f"one of {years} (default %(default)s)")
    verb.set_defaults(verb=function)
    return verb


if __name__ == "__main__":
    sys.exit(main())
