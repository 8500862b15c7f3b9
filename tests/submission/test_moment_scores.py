"""Scores of moments: hand-computed values, published figures, known edge cases, and a slow reference."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moment_figures import official_figures

from submission.errors import SubmissionError
from submission.metrics.moment_metrics import LENGTHS, THRESHOLDS, published_percent, score_moments

Answers = dict[str, list[list[float]]]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/moments_2026.json").read_text())
    return found


def iou(one: list[float], true: list[float]) -> float:
    """Return the IoU; NaN for 0 / 0, as in the official script."""
    shared = max(0, min(one[1], true[1]) - max(one[0], true[0]))
    union = (one[1] - one[0]) + (true[1] - true[0]) - shared
    return shared / union if union else math.nan


def oracle_iou_of_first(first: list[float], truths: list[list[float]], undefined_hits: bool = False) -> float:
    """Find the true window of highest IoU (NaN is the highest), then return the IoU over the hull."""
    ious = [iou(first, true) for true in truths]
    if any(map(math.isnan, ious)):
        chosen = next(index for index, value in enumerate(ious) if math.isnan(value))
    else:
        chosen = ious.index(max(ious))
    true = truths[chosen]
    hull = max(first[1], true[1]) - min(first[0], true[0])
    return max(0, min(first[1], true[1]) - max(first[0], true[0])) / hull if hull else 0.0


def oracle_ap(windows: list[list[float]], truths: list[list[float]], threshold: float, undefined_hits: bool) -> float:
    """undefined_hits: 0 / 0 counts as more than any threshold, as in the official script."""
    listed = windows[:10]
    if len(listed[0]) == 3:
        listed = sorted(listed, key=lambda window: -window[2])
    taken: set[int] = set()
    hits = []
    for window in listed:
        ious = [iou(window, true) for true in truths]
        worth = [(math.inf if undefined_hits else 0.0) if math.isnan(value) else value for value in ious]
        free = [index for index in range(len(truths)) if index not in taken]
        best = max(free, key=lambda index: (worth[index], index), default=None)
        hits.append(best is not None and worth[best] >= threshold)
        if best is not None and hits[-1]:
            taken.add(best)
    precision = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits))]
    recall = [0.0, *(sum(hits[: k + 1]) / len(truths) for k in range(len(hits))), 1.0]
    steps = [k for k in range(len(hits)) if recall[k + 1] != recall[k]]
    terms = [(recall[k + 1] - recall[k]) * max(precision[k:]) for k in steps]
    return float(np.sum(terms + ([0.0] if recall[-1] != recall[-2] else [])))


def oracle(
    predictions: Answers, truth: Answers, lengths: tuple[float, float] = (0, 1500), undefined_hits: bool = False
) -> dict[str, Any]:
    low, high = lengths
    kept = {qid: [w for w in truth[qid] if low < w[1] - w[0] <= high] for qid in predictions}
    kept = {qid: windows for qid, windows in kept.items() if windows}
    aps = [[oracle_ap(predictions[qid], kept[qid], t, undefined_hits) for t in THRESHOLDS] for qid in kept]
    ious = [oracle_iou_of_first(predictions[qid][0][:2], kept[qid]) for qid in kept]
    means = np.array(aps).mean(0)
    by_threshold = {str(t): float(f"{100 * mean:.2f}") for t, mean in zip(THRESHOLDS, means, strict=True)}
    return {
        "qids": list(kept),
        "AP": aps,
        "iou": ious,
        "MR-mAP": by_threshold | {"average": float(f"{100 * np.mean(means):.2f}")},
        "MR-R1": {str(t): float(f"{100 * np.mean([value >= t for value in ious]):.2f}") for t in THRESHOLDS},
    }


def require_as_oracle(predictions: Answers, truth: Answers, lengths: tuple[float, float] = (0, 1500)) -> None:
    """Require equality with the slow reference to the last bit."""
    scores, expected = score_moments(predictions, truth, lengths), oracle(predictions, truth, lengths)
    assert scores.qids == expected["qids"]
    assert scores.precisions.tolist() == expected["AP"]
    assert scores.ious.tolist() == expected["iou"]
    assert official_figures(scores) == {"MR-R1": expected["MR-R1"], "MR-mAP": expected["MR-mAP"]}


def ap(windows: list[list[float]], truths: list[list[float]], threshold: float = 0.5) -> float:
    return score_moments({"a": windows}, {"a": truths}).mean_precision(threshold)


def test_moment_metrics_of_two_queries_match_hand_computed_values() -> None:
    """Query a: the first window has 9 of 10 s (IoU 0.9), the second matches nothing, the third is the second true
    window; precisions are 1, 1/2, 2/3. Query b: 6 of 12 s (IoU 0.5), then the whole true window.
    """
    predictions = {"a": [[0, 9, 0.9], [50, 60, 0.8], [20, 30, 0.7]], "b": [[6, 12, 0.6], [0, 12, 0.4]]}
    truth = {"b": [[0, 12]], "a": [[0, 10], [20, 30]]}
    scores = score_moments(predictions, truth)
    assert scores.qids == ["a", "b"]
    assert scores.ious.tolist() == [0.9, 0.5]
    assert scores.n_true.tolist() == [2, 1]
    assert (scores.recall(0.5), scores.recall(0.55), scores.recall(0.9), scores.recall(0.95)) == (1, 0.5, 0.5, 0)
    assert scores.hits(0.7).tolist() == [1, 0]
    a, b = scores.precisions.tolist()
    assert a == pytest.approx([5 / 6] * 9 + [1 / 6], abs=1e-15)  # (1 + 2/3) / 2; of .95 only the third, 1/3 of 1/2
    assert b == [1] + [0.5] * 9
    assert scores.mean_precision(0.5) == pytest.approx((5 / 6 + 1) / 2)
    assert scores.mean_precision() == pytest.approx((9 * 5 / 6 + 1 / 6 + 5.5) / 20)
    assert scores.precisions_at().tolist() == pytest.approx([(9 * 5 / 6 + 1 / 6) / 10, 0.55])
    assert scores.precisions_at(0.5).tolist() == [a[0], 1]


def test_moment_percentages_round_like_the_official_script() -> None:
    assert [published_percent(share) for share in (0.43125, 0.43135, 1 / 3, 1)] == [43.12, 43.13, 33.33, 100]
    assert published_percent(24 / 177) == 13.56  # of the baseline, on the blind set


UNDEFINED = {"reversed_as_long_as_a_truth", "outside_empty_or_reversed_predictions"}  # which hold 0 / 0


def test_moment_metrics_match_the_official_script_to_printed_decimals(golden: dict[str, Any]) -> None:
    cases = golden["cases"] | {"castella_val": golden["castella_val"]}
    assert len(cases) == 19
    assert tuple(golden["thresholds"]) == THRESHOLDS
    for name, case in cases.items():
        predictions, truth = case["predictions"], case["truth"]
        expected = {"whole": ((0, 1500), case["official"])}
        expected |= {r: (LENGTHS[r], by) for r, by in case["by_length"].items() if by["queries"]}
        for part, (lengths, figures) in expected.items():
            slow = oracle(predictions, truth, lengths, undefined_hits=True)
            ours = official_figures(score_moments(predictions, truth, lengths, undefined_hits=True))
            for kind in ("MR-R1", "MR-mAP"):
                assert slow[kind] == figures[kind], (name, part, "the oracle")
                assert ours[kind] == figures[kind], (name, part)
            if name not in UNDEFINED:
                assert official_figures(score_moments(predictions, truth, lengths)) == ours, (name, part)
            require_as_oracle(predictions, truth, lengths)
            if part != "whole":
                assert len(slow["qids"]) == case["by_length"][part]["queries"]
                assert list(lengths) == case["by_length"][part]["range"]


def test_moment_metrics_of_each_query_match_the_official_script(golden: dict[str, Any]) -> None:
    compared = 0
    for name, case in golden["cases"].items():
        scores = score_moments(case["predictions"], case["truth"], undefined_hits=True)
        assert set(scores.qids) == case["AP"].keys() == case["iou_of_first"].keys()
        for qid, first, values in zip(scores.qids, scores.ious, scores.precisions, strict=True):
            assert first == pytest.approx(case["iou_of_first"][qid], abs=1e-9)
            assert values == pytest.approx(case["AP"][qid], abs=1e-9), (name, qid)
            compared += 1
    assert compared > 600


def test_moment_metrics_of_the_baseline_match_the_published_ones(golden: dict[str, Any]) -> None:
    scores = score_moments(golden["castella_val"]["predictions"], golden["castella_val"]["truth"])
    figures = [scores.recall(0.5), scores.recall(0.7), *map(scores.mean_precision, (None, 0.5, 0.75))]
    assert [published_percent(figure) for figure in figures] == [27.56, 16.19, 11.44, 24.02, 10.26]


def random_case(seed: int) -> tuple[Answers, Answers]:
    """Return random predictions and truth with edge cases.

    There are whole and split seconds, ties, repeats, and more than ten windows of either kind. Some windows have no
    length, lie outside or are reversed, and some true windows are dropped. Up to 40 true windows make sums of eight or
    more terms.
    """
    rng = np.random.default_rng(seed)
    step = (1.0, 0.5, 0.1, 0.013)[seed % 4]
    predictions, truth = {}, {}
    for number in range(int(rng.integers(1, 25))):
        starts = rng.integers(0, 60, rng.integers(1, 41 if number % 4 == 0 else 6))
        right = [[float(s * step), float((s + n) * step)] for s in starts for n in [rng.integers(0, 15)]]
        if number % 5 == 0:
            right += [[3.0, 1503.0], [5.0, 2.0], [0.0, 1503.5]]
        windows = []
        for _ in range(int(rng.integers(1, 15))):
            start, end = right[rng.integers(len(right))] if rng.random() < 0.6 else rng.integers(-3, 70, 2) * step
            shift = rng.integers(-2, 3, 2) * step * (rng.random() < 0.5)
            windows.append([float(start + shift[0]), float(end + shift[1])])
        if rng.random() < 0.3:
            windows.insert(1, list(windows[0]))
        predictions[f"q{number}"], truth[f"q{number}"] = windows, right
    if seed % 3:
        for windows in predictions.values():
            for window in windows:
                window.append(float(rng.integers(0, 5) / 4 if seed % 3 == 1 else rng.random()))
    return predictions, truth


@pytest.mark.parametrize("seed", range(60))
def test_metrics_of_random_windows_equal_a_slow_reference_to_the_last_bit(seed: int) -> None:
    predictions, truth = random_case(seed)
    require_as_oracle(predictions, truth)
    for lengths in LENGTHS.values():
        if any(lengths[0] < w[1] - w[0] <= lengths[1] for windows in truth.values() for w in windows):
            require_as_oracle(predictions, truth, lengths)


def test_windows_given_as_arrays_score_the_same_as_lists() -> None:
    predictions, truth = random_case(2)
    arrays = {qid: np.array(windows) for qid, windows in predictions.items()}
    right = {qid: np.array(windows) for qid, windows in truth.items()}
    found = score_moments(arrays, right)  # type: ignore[arg-type]
    assert official_figures(found) == official_figures(score_moments(predictions, truth))
    with pytest.raises(SubmissionError, match="the query 'a' has no window"):
        score_moments({"a": np.zeros((0, 3))}, {"a": [[0, 1]]})  # type: ignore[dict-item]


def test_moment_metrics_do_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, truth = random_case(1)
    whole = score_moments(predictions, truth)
    monkeypatch.setattr("submission.metrics.moment_metrics._MAX_BATCH_WINDOWS", 7)
    parts = score_moments(predictions, truth)
    assert np.array_equal(whole.precisions, parts.precisions)
    assert np.array_equal(whole.ious, parts.ious)


# The rows of the edge cases, in the order of the specification.


def test_average_precision_uses_at_most_ten_windows() -> None:
    wrong = [[100 + n, 101 + n, 0.5] for n in range(10)]
    assert ap([[0, 10, 0.9]], [[0, 10], [20, 30]]) == 0.5
    assert ap([*wrong, [0, 10, 0.99]], [[0, 10]]) == 0
    assert ap([*wrong[:9], [0, 10, 0.99]], [[0, 10]]) == 1
    assert score_moments({"a": [*wrong, [0, 10, 0.99]]}, {"a": [[0, 10]]}).recall(0.5) == 0


def test_windows_with_equal_scores_keep_file_order_and_r1_uses_the_first_window() -> None:
    wrong, right = [100, 110], [0, 10]
    assert ap([[*wrong, 0.5], [*right, 0.5]], [right]) == 0.5
    assert ap([[*right, 0.5], [*wrong, 0.5]], [right]) == 1
    unsorted = score_moments({"a": [[*wrong, 0.1], [*right, 0.9]]}, {"a": [right]})
    assert (unsorted.recall(0.7), unsorted.mean_precision(0.75)) == (0, 1)


def test_repeated_window_counts_as_wrong_unless_it_matches_a_second_true_window() -> None:
    twice = [[0, 10, 0.9], [0, 10, 0.8], [20, 30, 0.7]]
    assert ap(twice, [[0, 10], [20, 30]]) == pytest.approx((1 + 2 / 3) / 2)
    assert ap(twice, [[0, 10], [1, 10], [20, 30]]) == 1


def test_found_window_with_equal_iou_to_two_true_windows_matches_the_later_one() -> None:
    """Two true windows have the same IoU with the first window; the second window fits only the earlier one."""
    truths = [[0, 10], [4, 14]]
    assert ap([[2, 12, 0.9], [0, 10, 0.8]], truths) == 1
    assert ap([[2, 12, 0.9], [4, 14, 0.8]], truths, 0.65) == 0.5
    assert ap([[2, 12, 0.9], [4, 14, 0.8]], truths[::-1], 0.65) == 1


def test_only_the_first_10_of_16_correct_windows_count_for_average_precision() -> None:
    truths = [[10 * n, 10 * n + 5] for n in range(16)]
    assert ap(truths, truths) == pytest.approx(10 / 16)


@pytest.mark.parametrize("window", [[5, 5], [-20, -10], [400, 500], [-5, -5], [12, 3]])
def test_moment_windows_that_are_empty_negative_or_outside_the_recording_score_zero(window: list[float]) -> None:
    scores = score_moments({"a": [window]}, {"a": [[0, 10]]})
    assert (scores.ious.tolist(), scores.precisions.tolist()) == ([0], [[0] * 10])
    assert ap([window, [0, 10]], [[0, 10]]) == 0.5


def test_reversed_window_with_the_length_of_a_true_window_scores_zero() -> None:
    """0 / 0: the official script counts it as right in AP."""
    scores = score_moments({"a": [[30, 20, 0.9], [1, 2, 0.1]]}, {"a": [[10, 20], [40, 45]]})
    assert (scores.ious.tolist(), scores.mean_precision()) == ([0], 0)
    assert ap([[30, 20, 0.9], [10, 20, 0.1]], [[10, 20]]) == 0.5


def test_moment_windows_without_scores_are_ranked_in_file_order(golden: dict[str, Any]) -> None:
    case = golden["cases"]["near"]
    bare = {qid: [window[:2] for window in windows] for qid, windows in case["predictions"].items()}
    assert official_figures(score_moments(bare, case["truth"])) == case["official"]
    assert golden["faults"]["no_scores"]["error"] == "IndexError"  # of the official script


@pytest.mark.parametrize(
    ("predictions", "truth", "message"),
    [
        (
            {"a": [[0, 1]], "b": []},
            {"a": [[0, 1]], "b": [[0, 1]]},
            "the query 'b' has no window; each query needs one or",
        ),
        (
            {"a": [[0, 1]]},
            {"a": [[0, 1]], "b": [[0, 1]], "c": []},
            r"the query 'b' has no predicted windows \(and 1 more\)",
        ),
        (
            {"a": [[0, 1]], "b": [[0, 1]]},
            {"a": [[0, 1]]},
            "the query 'b' is not in the truth; give predictions and a truth",
        ),
        ({"a": [[0, 1], [0, 1, 0.5]]}, {"a": [[0, 1]]}, "query 'a': only some windows have a score"),
        ({"a": [[0, 1]], "b": [[0, 1, 0.5]]}, {"a": [[0, 1]], "b": [[0, 1]]}, "query 'b': only some windows"),
        ({"a": [[0]]}, {"a": [[0, 1]]}, r"must be \[start, end\] or \[start, end, score\]"),
        ({"a": [[0, math.nan]]}, {"a": [[0, 1]]}, "query 'a': a window contains NaN or infinity"),
        ({"a": [[0, 1, math.inf]]}, {"a": [[0, 1]]}, "query 'a': a window contains NaN or infinity"),
        ({"a": [[0, 1]]}, {"a": [[0, 1], [1, 2, 3]]}, r"query 'a': a true window must be \[start, end\]"),
        ({"a": [[0, 1]]}, {"a": [[math.nan, 1]]}, "query 'a': a window contains NaN or infinity"),
        ({"a": [[0, 1]]}, {"a": [[3, 3]]}, "no query has a true window longer than 0 s and up to 1500 s"),
        ({"a": [[0, 1]]}, {"a": []}, "so no query can be scored"),
        ({}, {}, "no query to score"),
    ],
)
def test_invalid_predicted_or_true_windows_are_refused(predictions: Answers, truth: Answers, message: str) -> None:
    with pytest.raises(SubmissionError, match=message):
        score_moments(predictions, truth)


def test_empty_and_overlong_true_windows_are_dropped_and_counted() -> None:
    predictions = {"a": [[0, 10]], "b": [[0, 10]], "c": [[0, 1500]], "d": [[0, 10]]}
    truth = {"a": [[0, 10], [5, 5], [9, 3]], "b": [[0, 1500.5]], "c": [[0, 1500]], "d": []}
    scores = score_moments(predictions, truth)
    assert (scores.qids, scores.n_true.tolist()) == (["a", "c"], [1, 1])
    assert (scores.n_dropped, scores.left_out) == (3, ["b", "d"])
    assert scores.mean_precision() == 1


def test_window_length_ranges_exclude_their_lower_and_include_their_upper_limit() -> None:
    predictions: Answers = {"a": [[0, 10]], "b": [[0, 30]]}
    truth: Answers = {"a": [[0, 10]], "b": [[0, 30]]}
    found = {name: score_moments(predictions, truth, LENGTHS[name]).qids for name in ("short", "middle")}
    assert found == {"short": ["a"], "middle": ["b"]}
    with pytest.raises(SubmissionError, match="longer"):
        score_moments(predictions, truth, LENGTHS["long"])


def test_moment_windows_with_extreme_numbers_score_zero_without_warnings() -> None:
    scores = score_moments({"a": [[-1.7e308, 1.7e308]], "b": [[0, 1e-320]]}, {"a": [[0, 10]], "b": [[0, 10]]})
    assert scores.ious.tolist() == pytest.approx([0, 0])
