"""Verb blend: combine systems.

Combine the score matrices of several systems into one, by given, equal, or searched weights.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_other
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_blocks
from submission.metrics.blend import SCALES, blend_in_blocks, require_disjoint, search_weights
from submission.verbs.moments import is_run
from submission.verbs.options import chosen_edition, edition_in_facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `blend` to its parser."""
    parts = "what to blend: two or more score matrices (.npy) or finished runs (RUN or RUN:ENTRY)"
    parser.add_argument("scores", nargs="+", metavar="SCORES", help=parts)
    parser.add_argument("--out", type=Path, required=True, metavar="BLEND.npy", help="the score matrix to write")
    how = "values to average: raw scores, standardised scores or ranks (default %(default)s)"
    parser.add_argument("--how", choices=tuple(SCALES), default="raw", help=how)
    weighting = parser.add_mutually_exclusive_group()
    given = "weight of each system (default: equal weights)"
    weighting.add_argument("--weights", nargs="+", type=float, metavar="W", help=given)
    searched = "search the best weights: scores of a validation split by the same models, in the same order"
    weighting.add_argument("--validation", nargs="+", default=[], metavar="SCORES", help=searched)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `blend`: combine several systems into one; return the exit status."""
    if len(arguments.scores) < 2:
        raise SubmissionError("a blend needs two or more systems; name more")
    if arguments.validation and len(arguments.validation) != len(arguments.scores):
        raise SubmissionError(f"--validation needs {len(arguments.scores)} systems, in the order of the blended ones")
    files = {name: scores_file(name) for name in [*arguments.scores, *arguments.validation]}
    require_other(arguments.out, files.values())
    for names in (arguments.scores, arguments.validation):
        if len({files[name].resolve() for name in names}) < len(names):
            raise SubmissionError(f"{names[-1]}: the same system is given twice; give it once")
    parts = {name: read_scores(files[name]) for name in arguments.scores}
    validation = {name: read_scores(files[name]) for name in arguments.validation}
    labels, blocks = blend_in_blocks(parts, arguments.how, choose_weights(arguments, parts, validation))
    write_blocks(arguments.out, labels, blocks)
    for name, weight in labels.facts["weights"].items():
        print(f"  {weight:.2f}  {name}")
    print(f"wrote {arguments.out}: {counted(labels.shape[0], 'query')} x {counted(labels.shape[1], 'clip')}")
    return 0


def choose_weights(
    arguments: argparse.Namespace, parts: Mapping[str, ScoreMatrix], validation: Mapping[str, ScoreMatrix]
) -> list[float] | None:
    """Return the weights of --weights, or those that are best on the validation matrices; None for equal weights."""
    if not validation:
        given: list[float] | None = arguments.weights
        return given
    require_disjoint(parts, validation)
    editions = {name: edition_in_facts(matrix) for name, matrix in {**parts, **validation}.items()}
    edition = chosen_edition(arguments, editions)
    weights, best_score = search_weights(validation, arguments.how, edition)
    print(f"searched the weights on the validation split, where {edition.metric} is {best_score:.4f}")
    return weights


def scores_file(name: str) -> Path:
    """Return the file of a score matrix, which may be that of a run's entry."""
    if not is_run(name):
        return Path(name)
    from submission.runs.finished import open_finished  # pydantic, not needed for a file

    run = open_finished(name)
    return run.file(f"scores/{run.entry}.npy")
