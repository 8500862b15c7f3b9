"""The verb blend: one score matrix of several, by weights that are given, equal, or searched on validation."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_other
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_blocks
from submission.metrics.blend import SCALES, blended, require_apart, search_weights
from submission.verbs.options import chosen_edition, edition_noted


def _read_all(paths: Sequence[Path]) -> dict[str, ScoreMatrix]:
    if len({path.resolve() for path in paths}) < len(paths):
        raise SubmissionError("one score matrix is named twice; name each once and give it a larger weight")
    return {str(path): read_scores(path) for path in paths}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scores", nargs="+", type=Path, metavar="SCORES.npy", help="two matrices or more")
    parser.add_argument("--out", type=Path, required=True, metavar="BLEND.npy", help="the score matrix to write")
    how = "average raw scores, standardised scores or ranks (default %(default)s)"
    parser.add_argument("--how", choices=tuple(SCALES), default="raw", help=how)
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--weights", nargs="+", type=float, metavar="W", help="one a matrix (default: equal)")
    searched = "the same models' matrices of a validation split, in the same order: search the weights on them"
    given.add_argument("--validation", nargs="+", type=Path, metavar="SCORES.npy", help=searched)


def run(arguments: argparse.Namespace) -> int:
    require_other(arguments.out, [*arguments.scores, *(arguments.validation or ())])
    parts = _read_all(arguments.scores)
    if len(parts) < 2:
        raise SubmissionError("a blend needs two score matrices or more")
    weights = arguments.weights
    if arguments.validation:
        if len(arguments.validation) != len(parts):
            raise SubmissionError(f"--validation needs {len(parts)} matrices, one a model, in the same order")
        validation = _read_all(arguments.validation)
        require_apart(parts, validation)
        noted = {name: edition_noted(matrix) for name, matrix in (parts | validation).items()}
        edition = chosen_edition(arguments, noted)
        weights, reached = search_weights(validation, arguments.how, edition)
        print(f"searched on validation: {edition.metric} {reached:.4f} there")
    labels, blocks = blended(parts, arguments.how, weights)
    write_blocks(arguments.out, labels, blocks)
    for name, weight in labels.facts["weights"].items():
        print(f"  {weight:.2f}  {name}")
    size = f"{counted(labels.shape[0], 'query')} x {counted(labels.shape[1], 'clip')}"
    print(f"wrote {arguments.out}: {size}, {arguments.how} scores")
    return 0
