"""Blend score matrices: their mean by given, equal or searched weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from data_tools.errors import KitError
from submission.editions import Edition
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.summary import summarise_matrix
from submission.ordering import ranked_columns

How = Literal["raw", "standardised", "rank"]
PICKS = 20  # additions in the search for weights


def scaled(matrix: ScoreMatrix, how: How) -> np.ndarray:
    """Return the scores of a matrix for a mean, float64.

    how: `raw`, unchanged; `standardised`, mean 0 and deviation 1 of each query; `rank`, from 1 for a query's first clip
    to 0 for its last.
    """
    values = matrix.values.astype(np.float64)
    if how == "rank":
        best = ranked_columns(matrix.values, matrix.file_names, values.shape[1])
        np.put_along_axis(values, best, np.linspace(1.0, 0.0, values.shape[1])[None, :], axis=1)
    return standardised(values) if how == "standardised" else values


def standardised(values: np.ndarray) -> np.ndarray:
    """Return the values of each query with mean 0 and deviation 1; equal ones as 0."""
    values = values - values.mean(axis=-1, keepdims=True)
    spread = values.std(axis=-1, keepdims=True)
    return np.asarray(values / np.where(spread > 0, spread, 1.0))


def blend(parts: Mapping[str, ScoreMatrix], how: How = "raw", weights: Sequence[float] | None = None) -> ScoreMatrix:
    """Return the weighted mean of score matrices, by default equally."""
    require_same_labels(parts)
    factors = np.array(weights or [1.0] * len(parts))
    total = sum(factor * scaled(part, how) for factor, part in zip(factors, parts.values(), strict=True))
    editions = {part.facts.get("edition") for part in parts.values()}
    facts = {
        "edition": editions.pop() if len(editions) == 1 else None,
        "blend": how,
        "weights": dict(zip(parts, (factors / factors.sum()).tolist(), strict=True)),
        "of": {name: part.facts for name, part in parts.items()},
    }
    return replace(next(iter(parts.values())), values=(total / factors.sum()).astype(np.float32), facts=facts)


def search_weights(parts: Mapping[str, ScoreMatrix], how: How, edition: Edition) -> tuple[list[float], float]:
    """Return the best weights of validation matrices, and the metric.

    Each step adds the matrix that gives the sum the best metric; the best of the PICKS sums counts.

    Source: Caruana et al., "Ensemble Selection from Libraries of Models" (ICML 2004), section 2, with replacement.
    """
    require_same_labels(parts)
    first, values = next(iter(parts.values())), [scaled(part, how) for part in parts.values()]
    total, picked, reached = np.zeros_like(values[0]), list[int](), list[float]()
    for _ in range(PICKS):
        sums = (replace(first, values=(total + one).astype(np.float32)) for one in values)
        found = [summarise_matrix(one, edition).values[edition.metric] for one in sums]
        reached.append(max(found))
        picked.append(found.index(reached[-1]))
        total += values[picked[-1]]
    chosen = picked[: 1 + reached.index(max(reached))]
    return [chosen.count(index) / len(chosen) for index in range(len(values))], max(reached)


def require_disjoint(tested: Mapping[str, ScoreMatrix], validation: Mapping[str, ScoreMatrix]) -> None:
    """Raise KitError for common clips or different models."""
    for (name, test), (other, weighted) in zip(tested.items(), validation.items(), strict=True):
        if shared := set(test.clip_ids) & set(weighted.clip_ids):
            raise KitError(f"{name} and {other} have clips in common, first {min(shared)!r}; use validation")
        if models_of(test.facts) != models_of(weighted.facts):
            raise KitError(f"{name} and {other} come from different models; give them in the same order")


def models_of(facts: Mapping[str, Any]) -> list[Any]:
    """Return each blended model's run, checkpoint and hub correction."""
    if isinstance(of := facts.get("of"), dict):
        return [model for part in of.values() for model in models_of(part)]
    correction = facts.get("hub correction") or {}
    return [(facts.get("from"), facts.get("checkpoint"), correction.get("correction"))]


def require_same_labels(parts: Mapping[str, ScoreMatrix]) -> None:
    """Raise KitError for matrices of other queries or clips."""
    (first_name, first), *others = parts.items()
    for name, part in others:
        for field in ("query_ids", "query_texts", "clip_ids", "file_names", "relevant"):
            if getattr(part, field) != getattr(first, field):
                raise KitError(f"{name} and {first_name} have different {field.replace('_', ' ')}, or in another order")
