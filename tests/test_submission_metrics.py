"""The submission room's metrics: worked by hand, against the definition, and on degenerate input."""

import doctest
import math
from collections.abc import Callable

import numpy as np
import pytest

from submission import metrics
from submission.errors import SubmissionError

# --- metrics: worked by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "n_relevant", "k", "expected"),
    [
        ([1], 1, 10, 1.0),
        ([2], 1, 10, 0.5),
        ([10], 1, 10, 0.1),
        ([11], 1, 10, 0.0),
        ([], 1, 10, 0.0),
        ([1, 2], 2, 10, 1.0),
        ([2, 4], 2, 10, (1 / 2 + 2 / 4) / 2),
        ([1, 3, 20], 3, 10, (1 + 2 / 3) / 3),
        ([1], 4, 10, 1 / 4),
        ([3, 16], 2, 16, (1 / 3 + 2 / 16) / 2),
        ([1, 2, 3], 3, 2, 2 / 3),  # the divisor is every relevant clip, not the k that could be found
    ],
)
def test_average_precision_by_hand(ranks: list[int], n_relevant: int, k: int, expected: float) -> None:
    assert metrics.average_precision(ranks, n_relevant, k) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("ranks", "n_relevant", "k", "expected"),
    [([1], 1, 1, 1.0), ([2], 1, 1, 0.0), ([5], 1, 5, 1.0), ([6], 1, 5, 0.0), ([1, 7, 9], 4, 8, 0.5), ([], 2, 5, 0.0)],
)
def test_recall_by_hand(ranks: list[int], n_relevant: int, k: int, expected: float) -> None:
    assert metrics.recall(ranks, n_relevant, k) == expected


@pytest.mark.parametrize("metric", [metrics.average_precision, metrics.recall])
@pytest.mark.parametrize(
    ("ranks", "n_relevant", "words"),
    [
        ([0], 1, "from 1 that rise"),
        ([2, 2], 2, "rise strictly"),
        ([3, 2], 2, "rise strictly"),
        ([1.5], 1, "whole numbers"),
        ([1], 0, "1 ranks are given for 0"),
        ([], 0, "0 ranks are given for 0"),
        ([1, 2], 1, "2 ranks are given for 1"),
    ],
)
def test_metrics_refuse_ranks_that_are_none(
    metric: Callable[..., float], ranks: list[float], n_relevant: int, words: str
) -> None:
    with pytest.raises(SubmissionError, match=words):
        metric(ranks, n_relevant, 10)


def test_the_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(metrics)
    assert (results.failed, results.attempted) == (0, 5)


def test_ranks_by_hand_ties_go_by_file_name() -> None:
    values = np.array([[3, 1, 2, 2], [0, 0, 0, 0]], dtype=np.float32)
    names = ["d.wav", "a.wav", "c.wav", "B.wav"]  # code points: B < a < c < d
    ranks = metrics.relevant_ranks(values, [[2, 0], [1, 3]], names)
    assert [own.tolist() for own in ranks] == [[1, 3], [1, 2]]
    assert metrics.ranked_columns(values, names, 4).tolist() == [[0, 3, 2, 1], [3, 1, 2, 0]]


def test_jackknife_interval_by_hand() -> None:
    # Mean 1/2, standard deviation sqrt(1/2), standard error 1/2; 1.959964 standard errors either way.
    assert metrics.jackknife_interval([0.0, 1.0]) == pytest.approx((0.5 - 0.979982, 0.5 + 0.979982), abs=1e-6)
    assert metrics.jackknife_interval([0.25] * 9) == (0.25, 0.25)
    assert all(math.isnan(bound) for bound in metrics.jackknife_interval([1.0]))
    with pytest.raises(SubmissionError, match="no query"):
        metrics.jackknife_interval([])


def test_jackknife_interval_is_the_leave_one_out_one() -> None:
    samples = np.random.default_rng(3).random(37)
    left_out = np.array([np.delete(samples, index).mean() for index in range(37)])
    error = math.sqrt(36 / 37 * np.sum((left_out - left_out.mean()) ** 2))
    expected = (samples.mean() - 1.6448536 * error, samples.mean() + 1.6448536 * error)
    assert metrics.jackknife_interval(samples, confidence=0.90) == pytest.approx(expected, abs=1e-8)


def test_chance_by_hand() -> None:
    assert metrics.chance(1) == 1.0
    assert metrics.chance(2, k=1) == 0.5
    assert metrics.chance(1045) == pytest.approx(2.9289682539682538 / 1045)
    assert metrics.chance(2, n_relevant=2) == 1.0
    # Three clips, two relevant: first miss (1/2 + 2/3) / 2, second (1 + 2/3) / 2, third 1.
    assert metrics.chance(3, n_relevant=2) == pytest.approx((7 / 12 + 5 / 6 + 1) / 3)
    with pytest.raises(SubmissionError, match="pool of 3 clips cannot hold 4"):
        metrics.chance(3, n_relevant=4)


def test_summary_by_hand() -> None:
    summary = metrics.summarise([[1], [4], [7, 8], []], [1, 1, 2, 1], n_clips=20)
    assert summary.values == {
        "R@1": 0.25,
        "R@5": 0.5,
        "R@10": 0.75,
        "mAP@10": pytest.approx((1 + 1 / 4 + (1 / 7 + 2 / 8) / 2 + 0) / 4),
    }
    assert list(summary.values) == ["R@1", "R@5", "R@10", "mAP@10"]
    assert (summary.n_queries, summary.n_relevant, summary.n_clips) == (4, 1.25, 20)
    assert summary.interval == metrics.jackknife_interval([1, 1 / 4, (1 / 7 + 2 / 8) / 2, 0])
    with pytest.raises(SubmissionError, match="1 queries have ranks and 2"):
        metrics.summarise([[1]], [1, 1])
    with pytest.raises(SubmissionError, match="no query"):
        metrics.summarise([], [])


def test_summary_of_one_query_shows_no_interval() -> None:
    lines = metrics.summarise([[1]], [1]).lines()
    assert any("one query shows no spread" in line for line in lines)
    assert not any(word in line for line in lines for word in ("nan", "chance", "clips"))


# --- metrics: against the definition -----------------------------------------------------------------------------


def slow_ranks(scores: np.ndarray, columns: list[int], names: list[str]) -> list[int]:
    order = sorted(range(len(names)), key=lambda column: (-scores[column], names[column]))
    return [rank for rank, column in enumerate(order, start=1) if column in columns]


def slow_average_precision(ranks: list[int], n_relevant: int, k: int) -> float:
    total = 0.0
    for position in range(1, k + 1):
        if position in ranks:
            total += len([rank for rank in ranks if rank <= position]) / position
    return total / n_relevant


@pytest.mark.parametrize("seed", range(25))
def test_metrics_agree_with_a_slow_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(metrics, "BLOCK_ROWS", int(random.integers(1, 9)))  # blocks must not show in the result
    n_queries, n_clips = (int(size) for size in random.integers(1, 24, size=2))
    # Whole numbers from a small range: ties everywhere.
    values = random.integers(-3, 4, size=(n_queries, n_clips)).astype(np.float32)
    names = [f"{index:02d} é"[:: int(random.choice([1, -1]))] for index in random.permutation(n_clips)]
    relevant = [
        random.choice(n_clips, size=random.integers(1, min(n_clips, 12) + 1), replace=False).tolist()
        for _ in range(n_queries)
    ]
    expected = [slow_ranks(row, columns, names) for row, columns in zip(values, relevant, strict=True)]
    ranks = metrics.relevant_ranks(values, relevant, names)
    assert [own.tolist() for own in ranks] == expected
    best = metrics.ranked_columns(values, names, n_clips)
    assert [
        [rank for rank, column in enumerate(row, start=1) if column in columns]
        for row, columns in zip(best.tolist(), relevant, strict=True)
    ] == expected
    summary = metrics.summarise(ranks, [len(columns) for columns in relevant], ks=(1, 3, 10), map_k=16)
    pairs = list(zip(expected, relevant, strict=True))
    for k in (1, 3, 10):
        hits = [sum(rank <= k for rank in own) / len(columns) for own, columns in pairs]
        assert summary.values[f"R@{k}"] == pytest.approx(sum(hits) / n_queries)
    precisions = [slow_average_precision(own, len(columns), 16) for own, columns in pairs]
    assert summary.values["mAP@16"] == pytest.approx(sum(precisions) / n_queries)


@pytest.mark.parametrize(("n_clips", "n_relevant", "k"), [(15, 1, 10), (7, 1, 10), (9, 3, 4), (5, 5, 10)])
def test_chance_is_what_random_orders_score(n_clips: int, n_relevant: int, k: int) -> None:
    random = np.random.default_rng(0)
    drawn = [np.sort(random.permutation(n_clips)[:n_relevant]) + 1 for _ in range(20_000)]
    average = np.mean([metrics.average_precision(ranks, n_relevant, k) for ranks in drawn])
    assert average == pytest.approx(metrics.chance(n_clips, k, n_relevant), abs=0.006)


# --- metrics: degenerate input -----------------------------------------------------------------------------------


def test_a_constant_matrix_scores_at_chance() -> None:
    # Were ties given to the relevant clip, this would score 1.
    values = np.zeros((40, 40), dtype=np.float32)
    ranks = metrics.relevant_ranks(values, [[column] for column in range(40)], [f"{n:02d}" for n in range(40)])
    summary = metrics.summarise(ranks, [1] * 40)
    assert summary.values["mAP@10"] == pytest.approx(metrics.chance(40))
    assert summary.values["R@1"] == 1 / 40


def test_perfect_and_worst_systems() -> None:
    names = [f"{n:02d}" for n in range(30)]
    relevant = [[column] for column in range(30)]
    perfect = metrics.summarise(metrics.relevant_ranks(np.eye(30), relevant, names), [1] * 30)
    assert set(perfect.values.values()) == {1.0}
    assert perfect.interval == (1.0, 1.0)
    worst = metrics.summarise(metrics.relevant_ranks(-np.eye(30), relevant, names), [1] * 30)
    assert set(worst.values.values()) == {0.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_refused(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "BLOCK_ROWS", 1)  # the row named is the matrix's, not its block's
    values = np.zeros((3, 4), dtype=np.float32)
    values[1, 2] = bad
    words = r"row 1, column 2 \(from 0\) is -?(nan|inf)"
    with pytest.raises(SubmissionError, match=words):
        metrics.relevant_ranks(values, [[0], [0], [0]], list("abcd"))
    with pytest.raises(SubmissionError, match=words):
        metrics.ranked_columns(values, list("abcd"), 2)


@pytest.mark.parametrize(
    ("relevant", "names", "words"),
    [
        ([[0]], "ab", r"shape \(2, 2\) need 2 lists of relevant columns and 2 file names; there are 1 and 2"),
        ([[0], [1]], "abc", "there are 2 and 3"),
        ([[0], [2]], "ab", "outside 0 to 1"),
        ([[0], [-1]], "ab", "outside 0 to 1"),
        ([[0], [1, 1]], "ab", "row 1 of the scores names one relevant column twice"),
    ],
)
def test_relevant_ranks_refuses_columns_that_do_not_fit(relevant: list[list[int]], names: str, words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        metrics.relevant_ranks(np.zeros((2, 2)), relevant, list(names))
