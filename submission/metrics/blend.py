"""Blend score matrices.

Blend several score matrices into one, by weights that are given, equal, or searched on validation.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from data_tools.cli import counted
from submission.arrays import Scores, Values
from submission.blocks import release_pages, row_blocks
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.score_matrix import Labels, ScoreMatrix, matrix_from_blocks
from submission.metrics.retrieval import average_precision
from submission.metrics.scoring import ranks_in_matrix
from submission.ordering import ranked_columns

How = Literal["raw", "standardised", "rank"]
PICKS = 20  # number of additions in the search for weights; weights are multiples of 1/20 or of a larger share


def blend(parts: Mapping[str, ScoreMatrix], how: How = "raw", weights: Sequence[float] | None = None) -> ScoreMatrix:
    """Return the weighted mean of score matrices with equal queries and clips, each scaled by the method `how`.

    parts: Dict from name to score matrix. how: Scaling of the scores before the mean:

    * `raw`: scores unchanged.
    * `standardised`: each query's scores minus their mean, divided by their standard deviation (zeros if all are
      equal).
    * `rank`: from 1 for a query's first clip to 0 for its last clip; file names order clips with equal scores.

    weights: One weight per matrix, 0 or more; None: equal weights. Sums are computed in float64, so that with equal
    weights the order of the matrices does not change the float32 result. The facts of the result contain `how`, the
    weights, and the facts of each matrix.
    Raises SubmissionError if queries, clips or relevant clips differ, and for invalid weights.
    """
    return matrix_from_blocks(*blend_in_blocks(parts, how, weights))


def blend_in_blocks(
    parts: Mapping[str, ScoreMatrix], how: How = "raw", weights: Sequence[float] | None = None
) -> tuple[Labels, Iterator[Scores]]:
    """Return the labels and the scores, in blocks of rows, of the weighted mean of score matrices; see blend."""
    _require_same_labels(parts)
    factors = weight_factors(weights, len(parts))
    first = next(iter(parts.values()))
    facts = {
        "blend": how,
        "weights": dict(zip(parts, (factors / factors.sum()).tolist(), strict=True)),
        "of": {name: part.facts for name, part in parts.items()},
    }

    def block_of(rows: slice) -> Scores:
        """Return the blended scores of the given rows (queries) in float32."""
        total = np.zeros((rows.stop - rows.start, first.values.shape[1]))
        for factor, part in zip(factors, parts.values(), strict=True):
            total += factor * SCALES[how](part.values[rows], part.file_names)
            release_pages(part.values)
        mean: Scores = (total / factors.sum()).astype(np.float32)
        return mean

    return replace(first.labels, facts=facts), map(block_of, row_blocks(first.values))


def search_weights(parts: Mapping[str, ScoreMatrix], how: How, edition: Edition) -> tuple[list[float], float]:
    """Find the weights with the best primary metric of the blended score matrices `parts`; return weights and metric.

    The search adds one matrix after another to a sum: each time the one that gives the sum the best metric. A matrix
    may be added several times. The best of these sums is used. The weight of a matrix is the number of times that it
    was added to the best sum, divided by the number of all additions.
    parts: Dict from name to score matrix, which should be of a validation split.
    Raises the same errors as blend, and SubmissionError if the relevant clips are not known.
    """
    _require_same_labels(parts)
    frame = next(iter(parts.values()))

    def score(total: Values) -> float:
        """Return the edition's mAP@k of blended scores (Q, C)."""
        matrix = replace(frame, values=total.astype(np.float32))
        ranks = ranks_in_matrix(matrix)
        return float(average_precision(ranks.ranks, ranks.n_relevant, edition.map_k).mean())

    return ensemble_selection([SCALES[how](part.values, part.file_names) for part in parts.values()], score)


def ensemble_selection(parts: Sequence[Values], score: Callable[[Values], float]) -> tuple[list[float], float]:
    """Search for the weights whose weighted mean of the arrays `parts` has the best score; return weights and score.

    score: Function from a sum of arrays to its score; higher is better. The sum and the mean of the same arrays must
    have the same score, as is true for metrics of rankings.
    The search adds one array after another, 20 in all (PICKS), beginning with the best single one. Each step adds the
    array that results in the best score; an array can be added several times. The best of all these sums is chosen. The
    weight of an array is its number of additions, divided by all additions to the chosen sum.

    Source: Caruana et al., "Ensemble Selection from Libraries of Models" (ICML 2004), section 2, with replacement.
    """
    picked: list[int] = []
    total = np.zeros_like(parts[0])
    best: tuple[float, list[int]] = (-1.0, [])
    while len(picked) < PICKS:
        scores = [score(total + values) for values in parts]
        picked.append(int(np.argmax(scores)))
        total += parts[picked[-1]]
        if scores[picked[-1]] > best[0]:
            best = (scores[picked[-1]], picked.copy())
    best_score, chosen = best
    return [chosen.count(index) / len(chosen) for index in range(len(parts))], best_score


def contributing_models(facts: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return (run, checkpoint) of every model that contributed to a score matrix; None for unknown values.

    For a blend, these are the models of all blended matrices, also of blends of blends. facts: Metadata that are stored
    with the matrix, such as its model; they may be from another program.
    """
    return [(part.get("from"), part.get("checkpoint")) for part in facts_of_parts(facts)]


def hub_corrections(facts: Mapping[str, Any]) -> str:
    """Return the hub correction, or `none`, of each model that contributed to a score matrix, as one text."""
    found = [part.get("hub correction") for part in facts_of_parts(facts)]
    return ", ".join(str(one.get("correction")) if isinstance(one, dict) else "none" for one in found)


def facts_of_parts(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the metadata of all unblended score matrices that a score matrix was blended from.

    facts: Metadata of the score matrix, such as its model. If the matrix is a blend of blends, the metadata of their
    parts are returned. If the matrix is no blend, the result is [facts].
    """
    parts = facts.get("of")
    if not isinstance(parts, dict):
        return [facts]
    return [each for part in parts.values() for each in facts_of_parts(part if isinstance(part, dict) else {})]


def _standardised(scores: Scores, names: Sequence[str]) -> Values:
    """Scale every query's scores to mean 0 and standard deviation 1. names: Not used, see SCALES."""
    values = scores.astype(np.float64)
    values -= values.mean(axis=1, keepdims=True)
    spread = values.std(axis=1, keepdims=True)
    return values / np.where(spread > 0, spread, 1.0)


def _rank(scores: Scores, names: Sequence[str]) -> Values:
    """Replace every query's scores by ranks from 1 (best clip) to 0 (last clip); `names` decide the order of ties."""
    n_clips = scores.shape[1]
    best = ranked_columns(scores, names, n_clips)
    values = np.empty(scores.shape)
    np.put_along_axis(values, best, np.linspace(1.0, 0.0, n_clips)[None, :], axis=1)
    return values


SCALES: Mapping[How, Callable[[Scores, Sequence[str]], Values]] = {
    "raw": lambda scores, names: scores.astype(np.float64), "standardised": _standardised, "rank": _rank
}  # fmt: skip


def _require_same_labels(parts: Mapping[str, ScoreMatrix]) -> None:
    """Raises SubmissionError unless all matrices have the same queries, clips and relevant clips in the same order."""
    first_name, first = next(iter(parts.items()))
    for name, part in parts.items():
        for field in ("query_ids", "query_texts", "clip_ids", "file_names", "relevant"):
            if getattr(part, field) != getattr(first, field):
                labels = "relevant clips" if field == "relevant" else field.replace("_", " ")
                raise SubmissionError(
                    f"the scores {name} and {first_name} have different {labels}, or another order of {labels}; blend "
                    "scores of the same queries and clips, in the same order"
                )


def weight_factors(weights: Sequence[float] | None, n_parts: int) -> Values:
    """Return the weights as an array (n_parts,); equal weights for None. Raises SubmissionError for invalid weights."""
    factors = np.ones(n_parts) if weights is None else np.array(weights, dtype=np.float64)
    if len(factors) != n_parts:
        raise SubmissionError(f"{len(factors)} weights are given for {n_parts} systems; give one weight per system")
    if np.any(factors < 0) or not 0 < sum(factors.tolist()) < math.inf:  # both comparisons are false for NaN
        raise SubmissionError(
            f"the weights are {factors.tolist()}; give numbers of 0 or more, with a finite sum above 0"
        )
    return factors


def require_disjoint(tested: Mapping[str, ScoreMatrix], validation: Mapping[str, ScoreMatrix]) -> None:
    """Raises SubmissionError if test and validation matrices have common clips, or come from different models."""
    for (name, test), (other, weighted) in zip(tested.items(), validation.items(), strict=True):
        refuse_overlap(f"{name} and {other}", "clip", set(test.clip_ids) & set(weighted.clip_ids))
        for makers in zip_longest(
            contributing_models(test.facts), contributing_models(weighted.facts), fillvalue=(None, None)
        ):
            for facts in zip(*makers, strict=True):
                if facts[0] != facts[1]:
                    model, other_model = (fact or "an unnamed model" for fact in facts)
                    raise SubmissionError(
                        f"{name} comes from {model}, but {other} from {other_model}; give --validation the matrices "
                        "of the same models in the same order"
                    )
        first, second = hub_corrections(test.facts), hub_corrections(weighted.facts)
        if first != second:
            raise SubmissionError(
                f"{name} has the hub correction {first}, but {other} has {second}; give --validation scores with the "
                "same hub correction"
            )


def refuse_overlap(names: str, kind: str, shared: set[str]) -> None:
    """Raises SubmissionError if validation and test have common items (`shared`). names, kind: For the message."""
    if shared:
        raise SubmissionError(
            f"{names} have {counted(len(shared), kind)} in common (first {min(shared)!r}); search the weights on a "
            "validation split, never on the test data"
        )
