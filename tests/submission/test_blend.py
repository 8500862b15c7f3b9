"""Blends of score matrices, the search of their weights, and re-ranking by a judge."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrices import matrix_of

from data_tools.errors import KitError
from submission.editions import get_edition
from submission.formats.pairs import Pair
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.blend import blend, require_disjoint, search_weights
from submission.metrics.rerank import judged_rows, reranked, search_weight
from submission.metrics.summary import summarise_matrix
from submission.ordering import ranked_columns

E2022 = get_edition(2022)


def drawn(seed: int, signal: float, **options: Any) -> ScoreMatrix:
    """Return a random system of 40 queries and 40 clips; the relevant clip's score is `signal` higher."""
    rng = np.random.default_rng(seed)
    return matrix_of(rng.normal(size=(40, 40)) + signal * np.eye(40), **options)


def map_of(matrix: ScoreMatrix) -> float:
    return summarise_matrix(matrix, E2022).values["mAP@10"]


def test_raw_standardised_and_rank_blends_by_hand():
    first = matrix_of([[1, 2, 6], [5, 5, 5], [0, 1, 0]], {"from": "a"})
    second = matrix_of([[0, 10, 20], [3, 1, 2], [0, 0, 9]], {"from": "b"})
    parts = {"one": first, "two": second}
    raw = blend(parts, "raw", [3, 1])
    assert raw.values.tolist() == [[0.75, 4, 9.5], [4.5, 4, 4.25], [0, 0.75, 2.25]]
    assert raw.facts["weights"] == {"one": 0.75, "two": 0.25}
    assert raw.facts["of"] == {"one": {"from": "a"}, "two": {"from": "b"}}
    # Row 1: (1, 2, 6) has mean 3, deviation sqrt(14 / 3); (0, 10, 20) has 10 and sqrt(200 / 3). Row 2: no spread.
    standardised = blend(parts, "standardised").values
    assert standardised[0].tolist() == pytest.approx(
        [(-0.9258201 - 1.2247449) / 2, -0.4629100 / 2, (1.3887301 + 1.2247449) / 2]
    )
    assert standardised[1].tolist() == pytest.approx([1.2247449 / 2, -1.2247449 / 2, 0], abs=1e-6)
    # Ranks of row 2: c0 c1 c2 by name where all are equal; then c0 c2 c1.
    assert blend(parts, "rank").values.tolist() == [[0, 0.5, 1], [1, 0.25, 0.25], [0.5, 0.5, 0.5]]


@pytest.mark.parametrize(
    "change",
    [
        {"query_texts": ["x", "text 1", "text 2"]},
        {"clip_ids": ["c1", "c0", "c2"], "relevant": [["c1"], ["c1"], ["c2"]]},
        {"file_names": ["a", "b", "c"]},
        {"relevant": [["c0"], ["c0"], ["c2"]]},
    ],
)
def test_blend_refuses_matrices_of_other_queries_or_clips(change):
    one = matrix_of(np.eye(3))
    with pytest.raises(KitError, match="different"):
        blend({"one": one, "two": dataclasses.replace(one, **change)})


def greedy_by_hand(parts: list[ScoreMatrix]) -> tuple[list[float], float]:
    """Ensemble selection as in the paper: 20 picks, each the best to add; returns the first best of the 20 means."""
    picked: list[int] = []
    means: list[tuple[float, list[int]]] = []
    for _ in range(20):
        tries = []
        for index in range(len(parts)):
            several = [parts[pick].values.astype(float) for pick in [*picked, index]]
            tries.append(map_of(dataclasses.replace(parts[0], values=np.mean(several, axis=0).astype(np.float32))))
        picked.append(tries.index(max(tries)))
        means.append((max(tries), picked.copy()))
    best, chosen = max(means, key=lambda mean: (mean[0], -len(mean[1])))
    return [chosen.count(index) / len(chosen) for index in range(len(parts))], best


@pytest.mark.parametrize("seed", [9, 11])
def test_weight_search_equals_a_slow_greedy_search(seed):
    """These seeds reach their best at the 20th pick."""
    parts = {str(n): drawn(seed + n, 1.0) for n in range(3)}
    weights, reached = search_weights(parts, "raw", E2022)
    expected, best = greedy_by_hand(list(parts.values()))
    assert (weights, reached) == (pytest.approx(expected), pytest.approx(best))
    assert reached == pytest.approx(map_of(blend(parts, "raw", weights)))
    assert reached >= max(map_of(part) for part in parts.values())


def test_noise_gets_no_weight_and_pairs_of_another_matrix_are_refused():
    parts = {"good": drawn(1, 1.5), "fair": drawn(2, 1.0), "noise": drawn(3, 0.0)}
    weights, _ = search_weights(parts, "raw", E2022)
    assert weights[2] < min(weights[:2])
    assert search_weights({"only": drawn(1, 1.5)}, "raw", E2022)[0] == [1.0]
    matrix = drawn(1, 1)
    pair = pairs_of(matrix, 1, lambda row, column: 1.0)[0]
    for change in ({"query": "x"}, {"clip": "x"}):
        with pytest.raises(KitError, match="'x'"):
            judged_rows(matrix, [dataclasses.replace(pair, **change)])  # type: ignore[arg-type]


def test_validation_must_have_other_clips_and_the_same_models():
    made = {"from": "run a", "checkpoint": "best"}
    test, validation = drawn(1, 1, facts=made), drawn(2, 1, facts=made, prefix="v")
    require_disjoint({"a": test}, {"val": validation})
    both = {"a": test, "b": dataclasses.replace(test, facts=made | {"from": "run b"})}
    blended = dataclasses.replace(blend(both), facts=blend(both).facts)
    for one, other, word in (
        (test, drawn(3, 1, facts=made), "common"),
        (test, dataclasses.replace(validation, facts=made | {"checkpoint": "last"}), "models"),
        (test, dataclasses.replace(validation, facts=made | {"hub correction": {"correction": "qb_norm"}}), "models"),
        (blended, validation, "models"),
    ):
        with pytest.raises(KitError, match=word):
            require_disjoint({"a": one}, {"val": other})


# --- re-ranking --------------------------------------------------------------------------------------------------


def pairs_of(matrix: ScoreMatrix, top: int, judge: Callable[[int, int], float | None]) -> list[Pair]:
    """The best clips of each query, judged by row and column."""
    pairs = []
    for row, columns in enumerate(ranked_columns(matrix.values, matrix.file_names, top).tolist()):
        for rank, column in enumerate(columns, 1):
            score = float(matrix.values[row, column])
            query, clip = matrix.query_ids[row], matrix.clip_ids[column]
            pairs.append(Pair(query, matrix.query_texts[row], clip, "", score, rank, judge(row, column)))
    return pairs[::-1]  # in any order


def test_judged_clips_exchange_their_scores_by_hand():
    """Scores 4, 3, 2 standardise to 1.22, 0, -1.22 and the judge's 0, 1, 5 to -0.93, -0.46, 1.39."""
    matrix = matrix_of([[1, 4, 3, 2], [0, 0, 0, 1]])
    judged = judged_rows(matrix, pairs_of(matrix, 3, lambda row, column: [None, 0, 1, 5][column] if row == 0 else None))
    assert list(judged) == [0]
    assert reranked(matrix, judged, 0).values.tolist() == matrix.values.tolist()
    assert reranked(matrix, judged, 0.5).values.tolist() == [[1, 4, 2, 3], [0, 0, 0, 1]]
    assert reranked(matrix, judged, 1).values.tolist() == [[1, 2, 3, 4], [0, 0, 0, 1]]


def test_judge_is_used_if_perfect_but_not_if_opposite_or_undecided():
    matrix = drawn(1, 1.0)
    perfect = judged_rows(matrix, pairs_of(matrix, 20, lambda row, column: float(row == column)))
    weight, before, after = search_weight(matrix, perfect, E2022)
    assert weight > 0
    assert before.values == summarise_matrix(matrix, E2022).values
    assert after.values["mAP@10"] == map_of(reranked(matrix, perfect, weight)) > before.values["mAP@10"] + 0.1
    opposite = judged_rows(matrix, pairs_of(matrix, 20, lambda row, column: -float(row == column)))
    assert search_weight(matrix, opposite, E2022)[0] == 0
    # It finds the two best clips equal; a weight above 1 would turn the order of the first system round.
    matrix = matrix_of([[3, 4, 0], [4, 3, 0], [0, 4, 3]])
    undecided = judged_rows(matrix, pairs_of(matrix, 3, lambda row, column: float(matrix.values[row, column] >= 3)))
    assert search_weight(matrix, undecided, E2022)[0] == 0
