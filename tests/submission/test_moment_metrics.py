"""Metrics of moments: hand-computed values, figures of the official script, and a slow reference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moment_figures import official_figures
from recorded_run import FOUND, QUERIES, write_true

from data_tools.errors import KitError
from submission.editions import MOMENTS
from submission.formats.moments import read_moment_truth
from submission.metrics.intervals import bootstrap_interval
from submission.metrics.moments import LENGTHS, THRESHOLDS, score_moments
from submission.metrics.summary import metric_values, summarise_moments

Answers = dict[str, list[list[float]]]
E2026 = MOMENTS["2026"]


@pytest.fixture(scope="module")
def golden():
    return json.loads((Path(__file__).parents[1] / "golden/moments_2026.json").read_text())


def iou(one: list[float], true: list[float]) -> float:
    shared = max(0, min(one[1], true[1]) - max(one[0], true[0]))
    union = (one[1] - one[0]) + (true[1] - true[0]) - shared
    return shared / union


def oracle_iou_of_first(first: list[float], truths: list[list[float]]) -> float:
    """The true window of highest IoU, then the IoU over the hull."""
    ious = [iou(first, true) for true in truths]
    true = truths[ious.index(max(ious))]
    hull = max(first[1], true[1]) - min(first[0], true[0])
    return max(0, min(first[1], true[1]) - max(first[0], true[0])) / hull


def oracle_ap(windows: list[list[float]], truths: list[list[float]], threshold: float) -> float:
    listed = windows[:10]
    if len(listed[0]) == 3:
        listed = sorted(listed, key=lambda window: -window[2])
    taken: set[int] = set()
    hits = []
    for window in listed:
        ious = [iou(window, true) for true in truths]
        free = [index for index in range(len(truths)) if index not in taken]
        best = max(free, key=lambda index: (ious[index], index), default=None)
        hits.append(best is not None and ious[best] >= threshold)
        if best is not None and hits[-1]:
            taken.add(best)
    precision = [sum(hits[: k + 1]) / (k + 1) for k in range(len(hits))]
    recall = [0.0, *(sum(hits[: k + 1]) / len(truths) for k in range(len(hits))), 1.0]
    steps = [k for k in range(len(hits)) if recall[k + 1] != recall[k]]
    terms = [(recall[k + 1] - recall[k]) * max(precision[k:]) for k in steps]
    return float(np.sum(terms + ([0.0] if recall[-1] != recall[-2] else [])))


def oracle(predictions: Answers, truth: Answers, lengths: tuple[float, float] = (0, 1500)) -> dict[str, Any]:
    low, high = lengths
    kept = {qid: [w for w in truth[qid] if low < w[1] - w[0] <= high] for qid in predictions}
    kept = {qid: windows for qid, windows in kept.items() if windows}
    aps = [[oracle_ap(predictions[qid], kept[qid], t) for t in THRESHOLDS] for qid in kept]
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
    assert list(scores["R1@0.5"]) == expected["qids"]
    for number, threshold in enumerate(THRESHOLDS):
        assert list(scores[f"mAP@{threshold:g}"].values()) == [row[number] for row in expected["AP"]]
        assert list(scores[f"R1@{threshold:g}"].values()) == [value >= threshold for value in expected["iou"]]
    assert official_figures(scores) == {"MR-R1": expected["MR-R1"], "MR-mAP": expected["MR-mAP"]}


def ap(windows: list[list[float]], truths: list[list[float]], threshold: float = 0.5) -> float:
    return score_moments({"a": windows}, {"a": truths})[f"mAP@{threshold:g}"]["a"]


def r1(windows: list[list[float]], truths: list[list[float]], threshold: float = 0.5) -> float:
    return score_moments({"a": windows}, {"a": truths})[f"R1@{threshold:g}"]["a"]


def test_metrics_of_two_queries_by_hand():
    """Query a: the first window has 9 of 10 s (IoU 0.9), the second matches nothing, the third is the second true
    window; precisions are 1, 1/2, 2/3. Query b: 6 of 12 s (IoU 0.5), then the whole true window.
    """
    predictions = {"a": [[0, 9, 0.9], [50, 60, 0.8], [20, 30, 0.7]], "b": [[6, 12, 0.6], [0, 12, 0.4]]}
    scores = score_moments(predictions, {"b": [[0, 12]], "a": [[0, 10], [20, 30]]})
    assert scores["R1@0.5"] == {"a": 1, "b": 1}
    assert scores["R1@0.9"] == {"a": 1, "b": 0}
    assert scores["R1@0.95"] == {"a": 0, "b": 0}
    a, b = ([scores[f"mAP@{threshold:g}"][qid] for threshold in THRESHOLDS] for qid in "ab")
    assert a == pytest.approx([5 / 6] * 9 + [1 / 6], abs=1e-15)  # (1 + 2/3) / 2; of .95 only the third, 1/3 of 1/2
    assert b == [1] + [0.5] * 9
    values = metric_values(scores, ["R1@0.7", "mAP", "mAP@0.5"])
    assert values == pytest.approx({"R1@0.7": 0.5, "mAP": (9 * 5 / 6 + 1 / 6 + 5.5) / 20, "mAP@0.5": (5 / 6 + 1) / 2})


REVERSED = {"reversed_as_long_as_a_truth", "outside_empty_or_reversed_predictions"}  # IoU 0 / 0, which `check` refuses


@pytest.mark.slow
def test_metrics_match_the_official_script_to_printed_decimals(golden):
    cases = golden["cases"] | {"castella_val": golden["castella_val"]}
    assert len(cases) == 19
    assert tuple(golden["thresholds"]) == THRESHOLDS
    for name in cases.keys() - REVERSED:
        case = cases[name]
        expected = {"whole": ((0, 1500), case["official"])}
        expected |= {r: (LENGTHS[r], by) for r, by in case["by_length"].items() if by["queries"]}
        for part, (lengths, figures) in expected.items():
            scores = score_moments(case["predictions"], case["truth"], lengths)
            for kind in ("MR-R1", "MR-mAP"):
                assert official_figures(scores)[kind] == figures[kind], (name, part)
            require_as_oracle(case["predictions"], case["truth"], lengths)


def test_average_precision_of_each_query_matches_the_official_script(golden):
    for name in golden["cases"].keys() - REVERSED:
        case = golden["cases"][name]
        scores = score_moments(case["predictions"], case["truth"])
        assert scores["R1@0.5"].keys() == case["AP"].keys()
        for qid, values in case["AP"].items():
            found = [scores[f"mAP@{threshold:g}"][qid] for threshold in THRESHOLDS]
            assert found == pytest.approx(values, abs=1e-9), (name, qid)


def test_windows_without_scores_are_in_file_order_and_the_2026_baseline_has_its_metrics(golden):
    scores = score_moments(golden["castella_val"]["predictions"], golden["castella_val"]["truth"])
    figures = metric_values(scores, E2026.metrics)
    assert [float(f"{100 * value:.2f}") for value in figures.values()] == [27.56, 16.19, 11.44, 24.02, 10.26]
    case = golden["cases"]["near"]
    bare = {qid: [window[:2] for window in windows] for qid, windows in case["predictions"].items()}
    assert official_figures(score_moments(bare, case["truth"])) == case["official"]


def random_case(seed: int) -> tuple[Answers, Answers]:
    """Return random predictions and truth with edge cases.

    There are whole and split seconds, ties, repeats, and more than ten windows of either kind. Some windows have no
    length or lie outside, and some true windows are dropped. Up to 40 true windows make sums of eight or
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
            windows.append(sorted([float(start + shift[0]), float(end + shift[1])]))
        if rng.random() < 0.3:
            windows.insert(1, list(windows[0]))
        predictions[f"q{number}"], truth[f"q{number}"] = windows, right
    if seed % 3:
        for windows in predictions.values():
            for window in windows:
                window.append(float(rng.integers(0, 5) / 4 if seed % 3 == 1 else rng.random()))
    return predictions, truth


@pytest.mark.parametrize("seed", range(24))
def test_metrics_of_random_windows_equal_a_slow_reference_to_the_last_bit(seed):
    predictions, truth = random_case(seed)
    for lengths in [(0.0, 1500.0), *LENGTHS.values()]:
        if any(lengths[0] < w[1] - w[0] <= lengths[1] for windows in truth.values() for w in windows):
            require_as_oracle(predictions, truth, lengths)


def test_order_ties_repeats_and_the_limit_of_ten_windows_by_hand():
    wrong = [[100 + n, 101 + n, 0.5] for n in range(10)]
    assert ap([[0, 10, 0.9]], [[0, 10], [20, 30]]) == 0.5
    assert ap([*wrong, [0, 10, 0.99]], [[0, 10]]) == 0
    assert ap([*wrong[:9], [0, 10, 0.99]], [[0, 10]]) == 1
    assert r1([*wrong, [0, 10, 0.99]], [[0, 10]]) == 0
    wrong, right = [100, 110], [0, 10]
    assert ap([[*wrong, 0.5], [*right, 0.5]], [right]) == 0.5
    assert ap([[*right, 0.5], [*wrong, 0.5]], [right]) == 1
    unsorted = [[*wrong, 0.1], [*right, 0.9]]
    assert (r1(unsorted, [right], 0.7), ap(unsorted, [right], 0.75)) == (0, 1)
    twice = [[0, 10, 0.9], [0, 10, 0.8], [20, 30, 0.7]]
    assert ap(twice, [[0, 10], [20, 30]]) == pytest.approx((1 + 2 / 3) / 2)
    assert ap(twice, [[0, 10], [1, 10], [20, 30]]) == 1
    # Two true windows have the same IoU with the first window; the second window fits only the earlier one.
    truths = [[0, 10], [4, 14]]
    assert ap([[2, 12, 0.9], [0, 10, 0.8]], truths) == 1
    assert ap([[2, 12, 0.9], [4, 14, 0.8]], truths, 0.65) == 0.5
    assert ap([[2, 12, 0.9], [4, 14, 0.8]], truths[::-1], 0.65) == 1
    truths = [[10 * n, 10 * n + 5] for n in range(16)]
    assert ap(truths, truths) == pytest.approx(10 / 16)
    predictions = {"a": [[0, 10]], "b": [[0, 10]], "c": [[0, 1500]], "d": [[0, 10]]}
    truth = {"a": [[0, 10], [5, 5], [9, 3]], "b": [[0, 1500.5]], "c": [[0, 1500]], "d": []}
    assert score_moments(predictions, truth)["mAP@0.5"] == {"a": 1, "c": 1}
    lengths = {"a": [[0, 10]], "b": [[0, 30]]}
    found = {name: list(score_moments(lengths, lengths, LENGTHS[name])["R1@0.5"]) for name in ("short", "middle")}
    assert found == {"short": ["a"], "middle": ["b"]}


@pytest.mark.parametrize("window", [[5, 5], [-20, -10], [400, 500], [-5, -5]])
def test_moment_windows_that_are_empty_negative_or_outside_the_recording_score_zero(window):
    assert (r1([window], [[0, 10]]), ap([window], [[0, 10]])) == (0, 0)
    assert ap([window, [0, 10]], [[0, 10]]) == 0.5


def test_summary_has_intervals_over_recordings_and_leaves_out_queries_without_windows(tmp_path):
    truth = read_moment_truth(write_true(tmp_path / "true.jsonl"))
    summary = summarise_moments(FOUND, truth, E2026)
    scores = score_moments(FOUND, QUERIES)
    assert summary.values == metric_values(scores, E2026.metrics)
    assert summary.queries.texts == ["a_1", "a_2", "b_1"]
    assert summary.queries.groups.tolist() == [0, 0, 1]
    assert summary.per_query["R1@0.7"].tolist() == [1, 0, 1]
    assert summary.bootstrap == bootstrap_interval(np.array([1.0, 0, 1]), np.array([0, 0, 1]))
    assert summary.chance == 0  # whole recordings
    assert summary.by_length["R1@0.7 under 2 s"] == 0.5
    assert "R1@0.7 2 to 5 s" not in summary.by_length
    assert "mAP long" not in summary.by_length
    assert any("66.67 %" in line for line in summary.lines())
    assert summary.queries.n_relevant.tolist() == [1, 2, 1]
    assert summary.notes[0] == "left out: 1 query without a true window"
    blind = read_moment_truth(write_true(tmp_path / "blind.jsonl", blind=True))
    with pytest.raises(KitError, match="blind"):
        summarise_moments(FOUND, blind, E2026)
