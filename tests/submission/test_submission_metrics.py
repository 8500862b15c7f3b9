"""Metrics, the order of clips, and summaries: hand-computed values, slow references, and degenerate cases."""

import dataclasses
import doctest
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from submission import blocks
from submission import ordering as order
from submission.errors import SubmissionError
from submission.metrics import intervals
from submission.metrics import retrieval as metrics
from submission.metrics.summary import RelevantRanks, Summary, summarise, summarise_audio_to_text
from submission.ordering import NEVER


def found_of(
    lists: Sequence[Sequence[int]], n_relevant: list[int], n_pool: int = 20, depth: int | None = None
) -> RelevantRanks:
    return RelevantRanks(
        ranks=order.ranks_from_lists(lists),
        n_relevant=np.array(n_relevant),
        groups=np.arange(len(lists)),
        texts=[f"query {n}" for n in range(len(lists))],
        n_pool=n_pool,
        depth=depth,
    )


def summary_of(values: np.ndarray, relevant: list[list[int]], names: list[str], **options: Any) -> Summary:
    found = RelevantRanks(
        ranks=order.relevant_ranks(values, relevant, names),
        n_relevant=np.array([len(own) for own in relevant]),
        groups=np.arange(len(relevant)),
        texts=[str(n) for n in range(len(relevant))],
        n_pool=len(names),
    )
    return summarise(found, **options)


# --- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "n_relevant", "k", "expected"),
    [
        ([1], 1, 10, 1.0),
        ([2], 1, 10, 0.5),
        ([10], 1, 10, 0.1),
        ([11], 1, 10, 0.0),
        ([], 1, 10, 0.0),
        ([1, 3], 2, 10, (1 + 2 / 3) / 2),
        ([1, 3], 4, 10, (1 + 2 / 3) / 4),
        ([4, 20], 2, 10, (1 / 4) / 2),
        ([4, 20], 2, 16, (1 / 4) / 2),
        ([4, 16], 2, 16, (1 / 4 + 2 / 16) / 2),
        ([4, 20], 2, None, (1 / 4 + 2 / 20) / 2),
        (list(range(1, 13)), 12, 10, 10 / 12),
        (list(range(1, 13)), 12, 16, 1.0),
        ([1, NEVER], 2, None, 0.5),
    ],
)
def test_average_precision_matches_hand_computed_values(
    ranks: list[int], n_relevant: int, k: int, expected: float
) -> None:
    assert metrics.average_precision(ranks, n_relevant, k) == pytest.approx(expected)
    both = metrics.average_precision(order.ranks_from_lists([ranks, [1]]), np.array([n_relevant, 1]), k)
    assert both.tolist() == pytest.approx([expected, 1.0])


@pytest.mark.parametrize(
    ("ranks", "n_relevant", "k", "expected"),
    [([1], 1, 1, 1.0), ([2], 1, 1, 0.0), ([5], 1, 5, 1.0), ([6], 1, 5, 0.0), ([1, 7], 2, 5, 0.5), ([1, 7], 4, 10, 0.5)],
)
def test_recall_matches_hand_computed_values(ranks: list[int], n_relevant: int, k: int, expected: float) -> None:
    assert metrics.recall(ranks, n_relevant, k) == expected


@pytest.mark.parametrize("metric", [metrics.average_precision, metrics.recall])
@pytest.mark.parametrize(
    ("ranks", "n_relevant", "words"),
    [
        ([0], 1, r"whole numbers from 1 that increase strictly; got \[0\]"),
        ([3, 2], 2, r"increase strictly; got \[3, 2\]"),
        ([2, 2], 2, r"increase strictly; got \[2, 2\]"),
        ([1.5], 1, r"whole numbers from 1"),
        ([1], 0, "1 ranks are given for 0 relevant clips"),
        ([], 0, "0 ranks are given for 0 relevant clips"),
        ([1, 2], 1, "2 ranks are given for 1 relevant clips"),
    ],
)
def test_metrics_of_invalid_ranks_are_refused(metric: Any, ranks: list[int], n_relevant: int, words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        metric(ranks, n_relevant, 10)


@pytest.mark.parametrize(("module", "examples"), [(metrics, 3), (intervals, 2)])
def test_docstring_examples_of_metrics_are_right(module: Any, examples: int) -> None:
    results = doctest.testmod(module)
    assert (results.failed, results.attempted) == (0, examples)


def test_audio_to_text_recalls_of_three_definitions_match_hand_values() -> None:
    """Two clips, with 5 captions and with 1; ranks of their captions among all."""
    found = found_of([[2, 3, 7, 9, 30], [12]], [5, 1], n_pool=40)
    summary = summarise_audio_to_text(found)
    assert [summary.values[f"HR@{k}"] for k in (1, 5, 10)] == [0, 0.5, 0.5]
    assert [summary.values[f"R@{k}"] for k in (1, 5, 10)] == pytest.approx([0, (2 / 5) / 2, (4 / 5) / 2])
    assert [summary.values[f"pooled R@{k}"] for k in (1, 5, 10)] == pytest.approx([0, 2 / 6, 4 / 6])
    at_ten = (1 / 2 + 2 / 3 + 3 / 7 + 4 / 9) / 5
    assert summary.values["mAP@10"] == pytest.approx(at_ten / 2)
    assert summary.values["mAP"] == pytest.approx((at_ten + (5 / 30) / 5 + 1 / 12) / 2)
    assert summary.median_rank == 7


def test_clips_with_equal_scores_are_ranked_by_file_name() -> None:
    values = np.array([[3, 1, 2, 2], [0, 0, 0, 0]], dtype=np.float32)
    names = ["d.wav", "a.wav", "c.wav", "B.wav"]  # code points: B < a < c < d
    assert order.relevant_ranks(values, [[2, 0], [1]], names).tolist() == [[1, 3], [2, NEVER]]
    assert order.ranked_columns(values, names, 4).tolist() == [[0, 3, 2, 1], [3, 1, 2, 0]]
    assert order.ranked_columns(values, names, 2).tolist() == [[0, 3], [3, 1]]


def test_median_rank_matches_hand_computed_values() -> None:
    assert metrics.median_rank(order.ranks_from_lists([[3, 4], [1], [8]])) == 3
    assert metrics.median_rank(order.ranks_from_lists([[3], [1], [8], [6]])) == 4.5
    assert metrics.median_rank(order.ranks_from_lists([[3], [], []])) == math.inf
    assert metrics.median_rank(order.ranks_from_lists([[], []])) == math.inf


def test_expected_score_of_random_orders_matches_hand_values() -> None:
    assert metrics.chance(1) == 1.0
    assert metrics.chance(2, k=1) == 0.5
    assert metrics.chance(1045) == pytest.approx(2.9289682539682538 / 1045)
    assert metrics.chance(2, n_relevant=2) == 1.0
    # Three clips, two relevant: first miss (1/2 + 2/3) / 2, second (1 + 2/3) / 2, third 1.
    assert metrics.chance(3, n_relevant=2) == pytest.approx((7 / 12 + 5 / 6 + 1) / 3)
    with pytest.raises(SubmissionError, match="pool"):
        metrics.chance(3, n_relevant=4)


def test_metrics_and_intervals_in_a_summary_match_hand_values() -> None:
    summary = summarise(found_of([[1], [4], [7, 8], []], [1, 1, 2, 1]))
    precisions = [1, 1 / 4, (1 / 7 + 2 / 8) / 2, 0]
    assert summary.values == {"R@1": 0.25, "R@5": 0.5, "R@10": 0.75, "mAP@10": pytest.approx(sum(precisions) / 4)}
    assert list(summary.values) == ["R@1", "R@5", "R@10", "mAP@10"]
    assert summary.per_query["mAP@10"].tolist() == pytest.approx(precisions)
    assert summary.interval == pytest.approx(intervals.jackknife_interval(precisions))
    assert summary.chance == pytest.approx(metrics.chance(20, 10, 1.25))
    assert summary.median_rank == 5.5
    with pytest.raises(SubmissionError, match="no query to score"):
        found_of([], [])


def test_summary_bootstrap_draws_queries_by_clip() -> None:
    found = found_of([[1], [2], [3], [1], [4], [1]], [1] * 6)
    by_clip = dataclasses.replace(found, groups=np.array([0, 0, 0, 1, 1, 1]))
    precisions = [1, 1 / 2, 1 / 3, 1, 1 / 4, 1]
    assert summarise(by_clip).bootstrap == pytest.approx(intervals.bootstrap_interval(precisions, by_clip.groups))
    assert summarise(by_clip).bootstrap != pytest.approx(intervals.bootstrap_interval(precisions))


def test_relevant_clip_without_a_rank_adds_nothing_to_average_precision() -> None:
    assert metrics.average_precision(np.array([[NEVER]]), np.array([1]), None).tolist() == [0.0]
    assert metrics.average_precision(np.array([[2, NEVER]]), np.array([2]), None).tolist() == [0.25]


def test_metric_with_k_beyond_the_list_length_is_noted_as_lower_bound() -> None:
    summary = summarise(found_of([[1], []], [2, 1], depth=10), map_ks=(16, 10))
    assert (summary.primary, summary.values["mAP@16"]) == ("mAP@16", 0.25)
    lines = summary.lines()
    assert "note    mAP@16: a lower bound, because the ranked lists have only 10 file names" in lines
    assert "median  above 10 (rank of the first relevant clip)" in lines
    assert not any("bound," in line for line in summarise(found_of([[1], []], [2, 1]), map_ks=(16, 10)).lines())


def test_summary_of_one_query_has_no_interval() -> None:
    lines = summarise(found_of([[1]], [1])).lines()
    assert sum("no interval" in line for line in lines) == 2
    assert not any("nan" in line for line in lines)


# --- against the definition --------------------------------------------------------------------------------------


def slow_ranks(scores: np.ndarray, columns: list[int], names: list[str]) -> list[int]:
    ordered = sorted(range(len(names)), key=lambda column: (-scores[column], names[column]))
    return [rank for rank, column in enumerate(ordered, start=1) if column in columns]


def slow_average_precision(ranks: list[int], n_relevant: int, k: int) -> float:
    total = 0.0
    for position in range(1, k + 1):
        if position in ranks:
            total += len([rank for rank in ranks if rank <= position]) / position
    return total / n_relevant


@pytest.mark.parametrize("seed", range(40))
def test_retrieval_metrics_equal_a_slow_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(blocks, "MAX_ROWS", int(random.integers(1, 9)))  # blocks must not show in the result
    n_queries, n_clips = (int(size) for size in random.integers(1, 24, size=2))
    if seed % 4 == 0:
        values = random.normal(size=(n_queries, n_clips)).astype(np.float32)
    else:  # whole numbers from a small range: ties everywhere; a constant one
        values = random.integers(-3, 4 if seed % 4 < 3 else -2, size=(n_queries, n_clips)).astype(np.float32)
    names = [f"{index:02d} é"[:: int(random.choice([1, -1]))] for index in random.permutation(n_clips)]
    relevant = [
        random.choice(n_clips, size=random.integers(1, min(n_clips, 12) + 1), replace=False).tolist()
        for _ in range(n_queries)
    ]
    expected = [slow_ranks(row, columns, names) for row, columns in zip(values, relevant, strict=True)]
    ranks = order.relevant_ranks(values, relevant, names)
    assert [[rank for rank in own if rank < NEVER] for own in ranks.tolist()] == expected
    for k in {1, (n_clips + 1) // 2, n_clips}:
        best = order.ranked_columns(values, names, k)
        ordered = [sorted(range(n_clips), key=lambda column: (-row[column], names[column]))[:k] for row in values]
        assert best.tolist() == ordered
    summary = summary_of(values, relevant, names, recall_ks=(1, 3, 10), map_ks=(16, 10))
    pairs = list(zip(expected, relevant, strict=True))
    for k in (1, 3, 10):
        hits = [sum(rank <= k for rank in own) / len(columns) for own, columns in pairs]
        assert summary.values[f"R@{k}"] == pytest.approx(sum(hits) / n_queries)
    for k in (10, 16):
        precisions = [slow_average_precision(own, len(columns), k) for own, columns in pairs]
        assert summary.per_query[f"mAP@{k}"].tolist() == pytest.approx(precisions)
        assert summary.values[f"mAP@{k}"] == pytest.approx(sum(precisions) / n_queries)
    assert summary.median_rank == pytest.approx(np.median([own[0] for own in expected]))


@pytest.mark.parametrize(("n_clips", "n_relevant", "k"), [(15, 1, 10), (7, 1, 10), (9, 3, 4), (5, 5, 10)])
def test_expected_score_equals_the_mean_over_random_orders(n_clips: int, n_relevant: int, k: int) -> None:
    random = np.random.default_rng(0)
    drawn = np.sort(random.permuted(np.tile(np.arange(n_clips), (20_000, 1)), axis=1)[:, :n_relevant]) + 1
    average = metrics.average_precision(drawn, np.full(20_000, n_relevant), k).mean()
    assert average == pytest.approx(metrics.chance(n_clips, k, n_relevant), abs=0.006)


# --- degenerate --------------------------------------------------------------------------------------------------


def test_metrics_of_a_matrix_of_equal_scores_are_at_chance_level() -> None:
    # Were ties given to the relevant clip, this would score 1.
    names = [f"{n:02d}" for n in range(40)]
    summary = summary_of(np.zeros((40, 40), dtype=np.float32), [[column] for column in range(40)], names)
    assert summary.values["mAP@10"] == pytest.approx(metrics.chance(40))
    assert summary.values["R@1"] == 1 / 40


def test_perfect_and_worst_systems_score_one_and_zero() -> None:
    names = [f"{n:02d}" for n in range(30)]
    relevant = [[column] for column in range(30)]
    perfect = summary_of(np.eye(30), relevant, names)
    assert set(perfect.values.values()) == {1.0}
    assert perfect.interval == perfect.bootstrap == (1.0, 1.0)
    worst = summary_of(-np.eye(30), relevant, names)
    assert set(worst.values.values()) == {0.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_scores_are_refused(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_ROWS", 1)  # the row named is the matrix's, not its block's
    values = np.zeros((3, 4), dtype=np.float32)
    values[1, 2] = bad
    words = r"row 1, column 2 \(from 0\) is -?(nan|inf)"
    with pytest.raises(SubmissionError, match=words):
        order.relevant_ranks(values, [[0], [0], [0]], list("abcd"))
    with pytest.raises(SubmissionError, match=words):
        order.ranked_columns(values, list("abcd"), 2)


@pytest.mark.parametrize(
    ("relevant", "names", "words"),
    [
        ([[0]], "ab", r"shape \(2, 2\) need 2 lists of relevant columns and 2 file names; got 1 and 2"),
        ([[0], [1]], "abc", "got 2 and 3"),
        ([[0], [2]], "ab", "outside 0 to 1"),
        ([[0], [-1]], "ab", "outside 0 to 1"),
        ([[0], [1, 1]], "ab", "row 1 of the scores lists the same relevant clip twice"),
    ],
)
def test_invalid_columns_of_relevant_clips_are_refused(relevant: list[list[int]], names: str, words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        order.relevant_ranks(np.zeros((2, 2)), relevant, list(names))
