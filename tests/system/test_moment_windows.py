"""Windows from frames, frames from windows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from window_tables import Table, as_scores, moment_posteriors

from submission.metrics.moments import ious
from system.moments.labellings import posteriors
from system.moments.windows import (
    Decoding,
    Found,
    Grid,
    WindowScores,
    best_windows,
    label_frames,
    threshold_windows,
)

SECOND = Grid(hop=1.0, first=0.5)
PLAIN = Decoding()


def test_frame_times_of_a_grid_match_hand_values() -> None:
    yamnet = Grid(hop=0.48, first=0.4875)
    assert yamnet.centres(3).tolist() == pytest.approx([0.4875, 0.9675, 1.4475])
    assert yamnet.edges(3, 60.0).tolist() == pytest.approx([0.0, 0.7275, 1.2075, 1.6875])
    assert yamnet.edges(3, 1.9).tolist() == pytest.approx([0.0, 0.7275, 1.2075, 1.9]), "0.2 s are the last frame's"
    assert yamnet.edges(3, 2.1).tolist() == pytest.approx([0.0, 0.7275, 1.2075, 2.1]), "and 0.4 s are"
    assert yamnet.edges(3, 1.0).tolist() == pytest.approx([0.0, 0.7275, 1.0, 1.0]), "nothing after the end"
    assert SECOND.edges(3, 3.0).tolist() == [0, 1, 2, 3]
    assert SECOND.edges(3, 4.0).tolist() == [0, 1, 2, 3], "a whole hop behind the last frame has no frame"


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([(1.0, 3.0)], [0, 1, 1, 0, 0]),
        ([(1.5, 3.5)], [0, 1, 1, 0, 0]),  # a centre at the start counts, at the end it does not
        ([(1.6, 2.4)], [0, 1, 0, 0, 0]),  # between two centres: the nearest to 2.0 is the first of them at 1.5
        ([(1.8, 2.45)], [0, 0, 1, 0, 0]),  # of a start at 1.8 the nearest is 1.5, of the middle it is 2.5
        ([(0.0, 1.0), (4.0, 9.0)], [1, 0, 0, 0, 1]),
        ([(7.0, 9.0)], [0, 0, 0, 0, 1]),  # after the last frame
    ],
)
def test_frame_labels_of_true_moment_windows_match_hand_values(
    windows: list[tuple[float, float]], expected: list[int]
) -> None:
    assert label_frames(windows, 5, SECOND).astype(int).tolist() == expected


def table_of(size: int, scores: dict[tuple[int, int], float]) -> Table:
    table = np.full((size, size), -np.inf)
    for place, score in scores.items():
        table[place] = score
    return as_scores(table)


def test_moment_windows_that_overlap_a_better_one_are_left_out() -> None:
    table = table_of(10, {(0, 4): -1.0, (0, 3): -2.0, (0, 2): -3.0, (6, 9): -2.5})
    found = best_windows(table, SECOND.edges(10, 10.0), PLAIN)
    assert found == [Found(0, 5, -1.0), Found(6, 10, -2.5), Found(0, 3, -3.0)], "0 to 4 has IoU 0.8, 0 to 3 0.6"
    few = best_windows(table, SECOND.edges(10, 10.0), Decoding(windows=1))
    assert few == [Found(0, 5, -1.0)]
    table = table_of(10, {(5, 6): 0.0, (2, 3): 0.0, (2, 2): 0.0})
    found = best_windows(table, SECOND.edges(10, 10.0), PLAIN)
    assert [one[:2] for one in found] == [(2, 3), (2, 4), (5, 7)], "equal scores: the earlier, then the shorter"


def test_best_windows_are_found_even_if_1640_candidates_have_equal_scores() -> None:
    """1640 windows with equal scores, all with frame 40, exceed the first candidates."""
    table = table_of(100, {(i, j): 1.0 for i in range(41) for j in range(40, 80)} | {(90, 91): 0.0})
    found = best_windows(table, SECOND.edges(100, 100.0), Decoding(max_iou=0.0))
    assert found == [Found(0, 41, 1.0), Found(90, 92, 0.0)]


def test_best_windows_are_found_even_after_the_first_300_start_frames() -> None:
    """The best windows begin with 300 different frames and share frame 300; others begin later."""
    shared = {(i, j): 1.0 for i in range(300) for j in range(300, 305)}
    table = table_of(420, shared | {(400, 401): 0.5, (410, 411): 0.25})
    found = best_windows(table, SECOND.edges(420, 420.0), Decoding(max_iou=0.0))
    assert found == [Found(0, 301, 1.0), Found(400, 402, 0.5), Found(410, 412, 0.25)]


def test_window_edges_are_rounded_to_four_digits() -> None:
    found = best_windows(table_of(1, {(0, 0): 0.0}), np.array([0.12344, 1.98766]), PLAIN)
    assert found == [Found(0.1234, 1.9877, 0.0)]


def test_rounded_windows_are_longer_than_zero_and_end_within_the_recording() -> None:
    grid = Grid(hop=0.4, first=0.2)
    whole = Decoding(round_to=1.0)
    edges = grid.edges(25, 9.7)
    assert [one[:2] for one in best_windows(table_of(25, {(3, 3): 0.0}), edges, whole)] == [(1, 2)]
    assert [one[:2] for one in best_windows(table_of(25, {(24, 24): 0.0}), edges, whole)] == [(9, 10)]
    assert [one[:2] for one in best_windows(table_of(25, {(6, 11): 0.0}), edges, whole)] == [(2, 5)]
    assert [one[:2] for one in best_windows(table_of(25, {(6, 11): 0.0}), edges, PLAIN)] == [(2.4, 4.8)]
    with pytest.raises(ValueError, match="finite"):
        best_windows(table_of(25, {}), edges, PLAIN)


def slow_windows(table: np.ndarray, edges: np.ndarray, decoding: Decoding) -> list[Found]:
    """Every pair of frames in order of score, one after the other."""
    pairs = [(i, j) for i in range(len(table)) for j in range(i, len(table)) if edges[j + 1] > edges[i]]
    found: list[Found] = []
    for i, j in sorted(pairs, key=lambda pair: -table[pair]):
        start, end = edges[i], edges[j + 1]
        shared = [max(0.0, min(end, one.end) - max(start, one.start)) for one in found]
        shares = [s / (end - start + one.end - one.start - s) for s, one in zip(shared, found, strict=True)]
        if all(value <= decoding.max_iou for value in shares):
            found.append(Found(start, end, table[i, j]))
        if len(found) == decoding.windows:
            break
    return found


@pytest.mark.parametrize("frames", [1, 2, 7, 40, 80, 400])
@pytest.mark.parametrize("max_iou", [0.0, 0.3, 0.6])
def test_best_windows_match_slow_search(frames: int, max_iou: float) -> None:
    """Best windows of 80 frames without overlap are beyond the first candidates, 400 frames beyond the first rows."""
    generator = torch.Generator().manual_seed(frames)
    for scale in (0.3, 3.0):
        scores = torch.randn(1, frames, dtype=torch.float64, generator=generator) * scale
        asked = scores, torch.tensor([frames]), *torch.tensor([-2.0, -2.0])
        table = moment_posteriors(*asked)[0].numpy()
        _, begin, end = posteriors(*asked)
        edges, decoding = Grid(0.5, 0.25).edges(frames, frames / 2), Decoding(max_iou=max_iou)
        found = best_windows(WindowScores(begin[0].numpy(), end[0].numpy()), edges, decoding)
        assert found == slow_windows(table, edges, decoding)


def test_moment_windows_found_by_thresholds_match_hand_values() -> None:
    scores = np.array([0.05, 0.95, 0.95, 0.45, 0.05, 0.25])
    found = threshold_windows(scores, SECOND.edges(6, 6.0), PLAIN)
    assert [one[:2] for one in found] == [(1, 3), (5, 6)], "1 to 4 has IoU 2/3 with the best"
    assert found[0].score == pytest.approx(0.95 - 0.8 / 4)
    assert found[1].score == pytest.approx(0.25 - 2.45 / 5)
    at_a_threshold = threshold_windows(np.array([0.1, 0.5, 0.05]), SECOND.edges(3, 3.0), PLAIN)
    assert [one[:2] for one in at_a_threshold] == [(1, 2), (0, 2)]
    silent = threshold_windows(np.array([0.01, 0.02]), SECOND.edges(2, 2.0), PLAIN)
    assert silent == [Found(1, 2, pytest.approx(0.01))]
    assert threshold_windows(np.ones(3), SECOND.edges(3, 3.0), PLAIN) == [Found(0, 3, 1.0)]


def test_iou_of_moment_windows_matches_code_of_the_2026_baseline(goldens: Path) -> None:
    """Compared for all pairs of the baseline's spans that have a length; two empty ones have no IoU."""
    stored = np.load(goldens / "moments_2026.npz")
    first, second = (stored[f"span_{name}"].astype(float) for name in "ab")
    kept = first[:, 1] > first[:, 0]
    assert np.abs(ious(first[kept], second) - stored["span_iou"][kept]).max() < 1e-5


def test_frame_labels_match_2026_baseline_for_whole_seconds(goldens: Path) -> None:
    cases = json.loads(str(np.load(goldens / "moments_2026.npz")["labels_json"]))
    others = []
    for case in cases:
        found = np.flatnonzero(label_frames([tuple(case["window"])], case["frames"], SECOND))
        if (found[0], found[-1]) != (case["first"], case["last"]):
            others.append((case["window"], found[0], case["first"], found[-1], case["last"]))
    assert others == [([70.9, 81.2], 71, 70, 80, 80)]


def test_rounded_windows_match_2026_baseline(goldens: Path) -> None:
    """A recording has 300 s; windows that the baseline rounds to no length are one second long here."""
    stored = np.load(goldens / "moments_2026.npz")
    for given, expected in zip(stored["round_in"], stored["round_out"], strict=True):
        edges = np.array([*np.clip(given[:2], 0, 300).astype(float), 300.0])
        table = table_of(2, {(0, 0): float(given[2])})
        if edges[0] == edges[1]:
            continue
        (found,) = best_windows(table, edges, Decoding(round_to=1.0))
        if expected[0] < expected[1]:
            assert found[:2] == (expected[0], expected[1])
        else:
            assert found.end - found.start == 1
            assert min(abs(found.start - expected[0]), abs(found.end - expected[0])) == 0


@pytest.mark.parametrize(
    ("window", "end", "expected"),
    [((2.55, 3.3), 8.0, (2, 3)), ((2.7, 3.4), 8.0, (3, 4)), ((4.5675, 5.2), 5.2, (4, 5)), ((0.0, 0.4), 8.0, (0, 1))],
)
def test_window_rounded_to_no_length_becomes_its_middle_second(
    window: tuple[float, float], end: float, expected: tuple[int, int]
) -> None:
    edges = np.array([*window, end])
    (found,) = best_windows(table_of(2, {(0, 0): 1.0}), edges, Decoding(round_to=1.0))
    assert found[:2] == expected


def test_rounded_edges_have_no_float_noise() -> None:
    same = WindowScores(np.zeros(3), np.zeros(3))
    found = best_windows(same, np.array([0.0, 0.11, 0.29, 0.71]), Decoding(round_to=0.1, max_iou=1.0))
    assert {(window.start, window.end) for window in found} == {
        (0.0, 0.1), (0.0, 0.3), (0.0, 0.7), (0.1, 0.3), (0.1, 0.7), (0.3, 0.7)
    }  # fmt: skip
