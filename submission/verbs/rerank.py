"""Verb rerank: mix in a judge.

Re-rank the best clips of a score matrix by the scores of a judge.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_tools.cli import counted
from data_tools.files import require_other
from submission.editions import format_metric
from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_blocks
from submission.formats.top_pairs import read_pairs
from submission.metrics.blend import require_disjoint
from submission.metrics.intervals import paired_difference
from submission.metrics.rerank import Judged, judged_rows, reranked_blocks, search_weight
from submission.metrics.scoring import ranks_in_matrix
from submission.metrics.summary import format_interval
from submission.verbs.options import chosen_edition, edition_in_facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `rerank` to its parser."""
    add = parser.add_argument
    add("scores", type=Path, metavar="SCORES.npy", help="score matrix to re-rank")
    add(
        "--judged",
        type=Path,
        required=True,
        metavar="JUDGED.jsonl",
        help="the best clips of each query of this score matrix, with the judge's scores",
    )
    weighting = parser.add_mutually_exclusive_group(required=True)
    searched = "score matrix and judged clips of a validation split, to choose the judge's weight"
    weighting.add_argument("--validation", nargs=2, type=Path, metavar=("SCORES.npy", "JUDGED.jsonl"), help=searched)
    weighting.add_argument("--weight", type=_parse_share, metavar="W", help="the judge's weight, from 0 to 1")
    add("--out", type=Path, required=True, metavar="SCORES.npy", help="the score matrix to write")


def _parse_share(text: str) -> float:
    """Parse the text of an option as a number from 0 to 1. Raises ArgumentTypeError for other texts."""
    try:
        if 0 <= float(text) <= 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `rerank`: re-rank a score matrix by the scores of a judge; return the exit status."""
    require_other(arguments.out, [arguments.scores, arguments.judged, *(arguments.validation or ())])
    matrix = read_scores(arguments.scores)
    judged = judged_rows(matrix, read_pairs(arguments.judged))
    weight: float = arguments.weight
    facts: dict[str, Any] = {}
    if arguments.validation:
        weight, facts = _choose_weight(arguments, matrix)
    count = sum(len(columns) for columns, _ in judged.values())
    if judged:
        facts = {"weight": weight, "judged pairs": count, **facts}
    labels = replace(matrix.labels, facts={**matrix.facts, "reranked": facts}) if judged else matrix.labels
    write_blocks(arguments.out, labels, reranked_blocks(matrix, judged, weight))
    print(
        f"wrote {arguments.out}: {counted(count, 'judged pair', ',')} of {counted(len(judged), 'query', ',')}, "
        f"weight of the judge {weight:g}"
    )
    return 0


def _choose_weight(arguments: argparse.Namespace, matrix: ScoreMatrix) -> tuple[float, dict[str, Any]]:
    """Choose the judge's weight on a validation split; return the weight, and the metric with and without the judge.

    The gain on the validation split is printed. matrix: Score matrix to re-rank. Raises SubmissionError if the
    validation matrix has clips in common with `matrix`, or was made by another model.
    """
    path, judged_path = arguments.validation
    validation = read_scores(path)
    require_disjoint({str(arguments.scores): matrix}, {str(path): validation})
    editions = {str(arguments.scores): edition_in_facts(matrix), str(path): edition_in_facts(validation)}
    edition = chosen_edition(arguments, editions)
    judged: Judged = judged_rows(validation, read_pairs(judged_path))
    if not judged:
        raise SubmissionError(f"{judged_path}: no pair has a judge's score; judge the validation pairs too")
    weight, (before, after) = search_weight(validation, judged, edition)
    difference = paired_difference(before, after, ranks_in_matrix(validation).groups)
    metric, value = edition.metric, float(after.mean())
    interval = format_interval(difference.interval, metric, "+")
    print(
        f"chosen on the validation split: weight {weight:g}; with the judge, {metric} of this split is "
        f"{format_metric(metric, value)}, gain {format_metric(metric, difference.mean, '+')}, 95 % {interval}"
    )
    return weight, {"validation": {metric: value, "without": float(before.mean())}}
