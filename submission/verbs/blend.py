"""Verb blend: combine systems.

One score matrix or file of moments from several, by given, equal, or searched weights.
"""

import argparse
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_other
from submission.errors import SubmissionError
from submission.formats.score_matrix import read_scores, write_blocks
from submission.metrics.blend import SCALES, blended, require_disjoint, search_weights
from submission.verbs.moments import blend_moment_files, is_moments, is_run, is_run_of_moments
from submission.verbs.options import chosen_edition, edition_in_facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `blend` to its parser."""
    parts = "two or more score matrices (.npy), finished runs (RUN or RUN:ENTRY), or files of moments (.jsonl)"
    parser.add_argument("scores", nargs="+", metavar="SCORES", help=parts)
    out = "the score matrix, or the file of moments, to write"
    parser.add_argument("--out", type=Path, required=True, metavar="BLEND", help=out)
    how = "average raw scores, standardised scores (not for moments) or ranks (default %(default)s)"
    parser.add_argument("--how", choices=tuple(SCALES), default="raw", help=how)
    weighting = parser.add_mutually_exclusive_group()
    weighting.add_argument("--weights", nargs="+", type=float, metavar="W", help="weight of each file (default: equal)")
    searched = "the same models' scores of a validation split, in the same order: search the weights on them"
    weighting.add_argument("--validation", nargs="+", metavar="SCORES", help=searched)
    truth = "for moments: the true windows of --validation (.jsonl)"
    parser.add_argument("--truth", type=Path, metavar="TRUTH.jsonl", help=truth)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `blend` with its parsed arguments; return the exit status."""
    named = [*arguments.scores, *(arguments.validation or ())]
    files = {name: _file_of(name) for name in named}
    require_other(arguments.out, [*files.values(), arguments.truth])
    if len(arguments.scores) < 2:
        raise SubmissionError("a blend needs two or more files; give more")
    if arguments.validation and len(arguments.validation) != len(arguments.scores):
        raise SubmissionError(f"--validation needs {len(arguments.scores)} files, one per model, in the same order")
    for names in (arguments.scores, arguments.validation or []):
        if len({files[name].resolve() for name in names}) < len(names):
            raise SubmissionError("the same file is given twice; give it once, with a larger weight")
    if any(map(is_moments, named)):
        return blend_moment_files(arguments)
    if arguments.truth:
        raise SubmissionError(
            "--truth only works with moments (.jsonl); score matrices contain their truth, so leave it out"
        )
    parts = {name: read_scores(files[name]) for name in arguments.scores}
    weights = arguments.weights
    if arguments.validation:
        validation = {name: read_scores(files[name]) for name in arguments.validation}
        require_disjoint(parts, validation)
        editions = {name: edition_in_facts(matrix) for name, matrix in (parts | validation).items()}
        edition = chosen_edition(arguments, editions)
        weights, best_score = search_weights(validation, arguments.how, edition)
        print(f"searched on validation: {edition.metric} {best_score:.4f} there")
    labels, blocks = blended(parts, arguments.how, weights)
    write_blocks(arguments.out, labels, blocks)
    for name, weight in labels.facts["weights"].items():
        print(f"  {weight:.2f}  {name}")
    size = f"{counted(labels.shape[0], 'query')} x {counted(labels.shape[1], 'clip')}"
    print(f"wrote {arguments.out}: {size}, {arguments.how} scores")
    return 0


def _file_of(name: str) -> Path:
    """Return the file of a score matrix: for a run that of its entry."""
    if not is_run(name) or is_run_of_moments(name):
        return Path(name)
    from submission.runs.finished import open_finished  # pydantic, not needed for a file

    run = open_finished(name)
    return run.file(f"scores/{run.entry}.npy")
