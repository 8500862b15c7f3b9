"""Verb blend: combine systems.

Combine several runs, score matrices, or files of moments into one, by given, equal, or searched weights.
"""

import argparse
from pathlib import Path

from data_tools.cli import counted
from data_tools.files import require_other
from submission.errors import SubmissionError
from submission.formats.score_matrix import read_scores, write_blocks
from submission.metrics.blend import SCALES, blend_in_blocks
from submission.verbs.blend_runs import blend_into_folder, choose_weights, refuse_truth, scores_file, validation_entry
from submission.verbs.moments import blend_moment_files, is_moments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `blend` to its parser."""
    parts = "what to blend: two or more finished runs (RUN or RUN:ENTRY), score matrices (.npy), or moments (.jsonl)"
    parser.add_argument("scores", nargs="+", metavar="SCORES", help=parts)
    out = "new folder for a blend of runs, which other verbs read like a run; or a .npy or .jsonl file to write"
    parser.add_argument("--out", type=Path, required=True, metavar="BLEND", help=out)
    how = "values to average: raw scores, standardised scores (not for moments) or ranks (default %(default)s)"
    parser.add_argument("--how", choices=tuple(SCALES), default="raw", help=how)
    weighting = parser.add_mutually_exclusive_group()
    given = "weight of each system (default: equal weights)"
    weighting.add_argument("--weights", nargs="+", type=float, metavar="W", help=given)
    searched = (
        "search the weights that are best on a validation split: give the same models' scores of that split, in the "
        "same order; without SCORES, use the validation scores of the runs"
    )
    weighting.add_argument("--validation", nargs="*", metavar="SCORES", help=searched)
    truth = "true windows of the --validation files (.jsonl); only for files of moments"
    parser.add_argument("--truth", type=Path, metavar="TRUTH.jsonl", help=truth)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `blend`: combine several systems into one; return the exit status."""
    if len(arguments.scores) < 2:
        raise SubmissionError(
            f"a blend needs two or more systems, but only {len(arguments.scores)} is given; name more"
        )
    if arguments.validation == []:
        arguments.validation = [validation_entry(name) for name in arguments.scores]
    named = [*arguments.scores, *(arguments.validation or ())]
    files = {name: scores_file(name) for name in named}
    require_other(arguments.out, [*files.values(), arguments.truth])
    if arguments.validation and len(arguments.validation) != len(arguments.scores):
        raise SubmissionError(
            f"--validation has {counted(len(arguments.validation), 'system')}; give {len(arguments.scores)}, one for "
            "each blended system, in the same order"
        )
    for names in (arguments.scores, arguments.validation or []):
        paths = [files[name].resolve() for name in names]
        if twice := next((name for name, path in zip(names, paths, strict=True) if paths.count(path) > 1), None):
            raise SubmissionError(f"{twice}: the same system is given twice; give it once")
    if arguments.out.suffix not in (".npy", ".jsonl") and not any(is_moments(name) for name in arguments.scores):
        return blend_into_folder(arguments)
    if is_moments(arguments.out) or any(map(is_moments, named)):
        arguments.scores = [str(files[name]) for name in arguments.scores]
        arguments.validation = [str(files[name]) for name in arguments.validation or ()] or None
        return blend_moment_files(arguments)
    refuse_truth(arguments)
    parts = {name: read_scores(files[name]) for name in arguments.scores}
    weights = choose_weights(arguments, parts, {name: read_scores(files[name]) for name in arguments.validation or ()})
    labels, blocks = blend_in_blocks(parts, arguments.how, weights)
    write_blocks(arguments.out, labels, blocks)
    for name, weight in labels.facts["weights"].items():
        print(f"  {weight:.2f}  {name}")
    print(
        f"wrote {arguments.out}: {counted(labels.shape[0], 'query')} x {counted(labels.shape[1], 'clip')}, "
        f"{arguments.how} scores"
    )
    return 0
