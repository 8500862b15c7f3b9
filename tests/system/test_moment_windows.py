"""Windows from frames, frames from windows."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from window_tables import Table, as_scores, moment_posteriors

from data_tools.errors import KitError
from data_tools.moments import Moment
from submission.metrics.moments import ious
from system.models.scores import MomentScore
from system.moments.labellings import posteriors
from system.moments.windows import (
    IOU,
    Decoding,
    Found,
    Grid,
    WindowScores,
    best_windows,
    label_frames,
    mean_edge_sums,
    overlap_probability,
    refine_edges,
    select_windows,
    threshold_windows,
)
from system.ranking.windows import Located, QueryFrames, find_windows, fit_score

SECOND = Grid(hop=1.0, first=0.5)
PLAIN = Decoding()


def test_frame_times_of_a_grid_match_hand_values():
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
def test_frame_labels_of_true_moment_windows_match_hand_values(windows, expected):
    assert label_frames(windows, 5, SECOND).astype(int).tolist() == expected


def table_of(size: int, scores: dict[tuple[int, int], float]) -> Table:
    table = np.full((size, size), -np.inf)
    for place, score in scores.items():
        table[place] = score
    return as_scores(table)


def spans(found: list[Found]) -> list[tuple[float, float]]:
    return [one[:2] for one in found]


def test_moment_windows_that_overlap_a_better_one_are_left_out():
    table = table_of(10, {(0, 4): -1.0, (0, 3): -2.0, (0, 2): -3.0, (6, 9): -2.5})
    found = best_windows(table, SECOND.edges(10, 10.0), PLAIN)
    assert found == [Found(0, 5, -1.0), Found(6, 10, -2.5), Found(0, 3, -3.0)], "0 to 4 has IoU 0.8, 0 to 3 0.6"
    assert best_windows(table, SECOND.edges(10, 10.0), Decoding(windows=1)) == [Found(0, 5, -1.0)]
    table = table_of(10, {(5, 6): 0.0, (2, 3): 0.0, (2, 2): 0.0})
    found = best_windows(table, SECOND.edges(10, 10.0), PLAIN)
    assert spans(found) == [(2, 3), (2, 4), (5, 7)], "equal scores: the earlier, then the shorter"
    with pytest.raises(ValueError, match="finite"):
        best_windows(table_of(10, {}), SECOND.edges(10, 10.0), PLAIN)


def test_best_windows_are_found_among_many_equal_or_late_candidates():
    # 1640 windows with equal scores, all with frame 40, exceed the first candidates.
    table = table_of(100, {(i, j): 1.0 for i in range(41) for j in range(40, 80)} | {(90, 91): 0.0})
    expected = [Found(0, 41, 1.0), Found(90, 92, 0.0)]
    assert best_windows(table, SECOND.edges(100, 100.0), Decoding(max_iou=0.0)) == expected
    # The best windows begin with 300 different frames and share frame 300; others begin later.
    shared = {(i, j): 1.0 for i in range(300) for j in range(300, 305)}
    table = table_of(420, shared | {(400, 401): 0.5, (410, 411): 0.25})
    found = best_windows(table, SECOND.edges(420, 420.0), Decoding(max_iou=0.0))
    assert found == [Found(0, 301, 1.0), Found(400, 402, 0.5), Found(410, 412, 0.25)]


@pytest.mark.parametrize(
    ("window", "end", "unit", "expected"),
    [
        ((0.12344, 1.98766), 2.0, None, (0.1234, 1.9877)),
        ((1.2, 1.6), 9.7, 1.0, (1, 2)),
        ((9.6, 9.7), 9.7, 1.0, (9, 10)),  # a partial second at the end counts
        ((2.4, 4.8), 9.7, 1.0, (2, 5)),
        ((2.55, 3.3), 8.0, 1.0, (2, 3)),  # of no length: the second around the middle
        ((2.7, 3.4), 8.0, 1.0, (3, 4)),
        ((4.5675, 5.2), 5.2, 1.0, (4, 5)),
        ((0.0, 0.4), 8.0, 1.0, (0, 1)),
        ((0.11, 0.29), 0.71, 0.1, (0.1, 0.3)),
        ((0.29, 0.71), 0.71, 0.1, (0.3, 0.7)),
    ],
)
def test_window_edges_are_rounded_to_lengths_above_zero_within_the_recording(window, end, unit, expected):
    found = best_windows(table_of(2, {(0, 0): 0.0}), np.array([*window, end]), Decoding(round_to=unit))
    assert found == [Found(*expected, 0.0)]


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


@pytest.mark.parametrize("frames", [1, 2, 7, 80, 400])
@pytest.mark.parametrize("max_iou", [0.0, 0.6])
def test_best_windows_match_slow_search(frames, max_iou):
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


def test_moment_windows_found_by_thresholds_match_hand_values():
    scores = np.array([0.05, 0.95, 0.95, 0.45, 0.05, 0.25])
    found = threshold_windows(scores, SECOND.edges(6, 6.0), PLAIN)
    assert spans(found) == [(1, 3), (5, 6)], "1 to 4 has IoU 2/3 with the best"
    assert found[0].score == pytest.approx(0.95 - 0.8 / 4)
    assert found[1].score == pytest.approx(0.25 - 2.45 / 5)
    at_thresholds = threshold_windows(np.array([0.1, 0.5, 0.05]), SECOND.edges(3, 3.0), PLAIN)
    assert spans(at_thresholds) == [(1, 2), (0, 2)]
    silent = np.array([0.01, 0.02])
    assert threshold_windows(silent, SECOND.edges(2, 2.0), PLAIN) == [Found(1, 2, pytest.approx(0.01))]
    assert spans(threshold_windows(silent, np.array([0.0, 1.0, 1.0]), PLAIN)) == [(0, 1)], "the only one with a length"
    assert threshold_windows(np.ones(3), SECOND.edges(3, 3.0), PLAIN) == [Found(0, 3, 1.0)]


def test_iou_frame_labels_and_rounded_windows_match_code_of_the_2026_baseline(goldens):
    # Compared for all pairs of the baseline's spans that have a length; two empty ones have no IoU.
    stored = np.load(goldens / "moments_2026.npz")
    first, second = (stored[f"span_{name}"].astype(float) for name in "ab")
    kept = first[:, 1] > first[:, 0]
    assert np.abs(ious(first[kept], second) - stored["span_iou"][kept]).max() < 1e-5
    others = []
    for case in json.loads(str(stored["labels_json"])):
        found = np.flatnonzero(label_frames([tuple(case["window"])], case["frames"], SECOND))
        if (found[0], found[-1]) != (case["first"], case["last"]):
            others.append((case["window"], found[0], case["first"], found[-1], case["last"]))
    assert others == [([70.9, 81.2], 71, 70, 80, 80)]
    # A recording has 300 s; windows that the baseline rounds to no length are one second long here.
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


def series(*rows: tuple[Any, float], seconds: float | None = None) -> list[QueryFrames]:
    """Return frame series from (values, hop) rows that start at second 0, and end with the last frame."""
    return [
        QueryFrames(torch.as_tensor(values), Grid(hop, hop / 2), seconds or len(values) * hop) for values, hop in rows
    ]


def found_by(*models: list[QueryFrames], **decoding: Any) -> Located:
    """Windows of the only query by one or several models."""
    (found,) = find_windows([(MomentScore(), one) for one in models], Decoding(**decoding))
    return found


def test_windows_at_or_past_the_ends_of_recordings_are_found():
    # 61 frames of 1 s in 60 s, as the published frames of Clotho-Moment may be.
    found = found_by(series(([0.0] * 50 + [1.0] * 11, 1.0), seconds=60.0))
    assert found.windows[0][:2] == (50, 60)
    assert found.windows[0].score > 0.9
    found = found_by(series(([0.0] * 6 + [1.0] * 2, 1.0), seconds=7.6), round_to=1)
    assert found.windows[0][:2] == (6, 8)
    assert found.windows[0].score > 0.9
    # 4.6 s: five frames of 1 s, and nine of half a second.
    found = found_by(*(series((torch.rand(n), hop), seconds=4.6) for n, hop in ((5, 1.0), (9, 0.5))))
    assert found.edges[-1] == pytest.approx(4.6)
    assert all(0 <= start < end <= 4.6 for start, end, _ in found.windows)
    assert ((found.frames >= 0) & (found.frames <= 1)).all()


def test_windows_of_several_models_are_ordered_and_need_not_be_the_best_of_one():
    asked = np.array([[5.0, 9.0], [2.0, 4.0], [2.0, 9.0], [0.0, 1.0]])
    found = select_windows(asked, np.array([0.5, 0.5, 0.5, 0.4]), 10.0, Decoding(max_iou=1.0))
    assert spans(found) == [(2, 4), (2, 9), (5, 9), (0, 1)]
    # Each model has ten likelier windows than the common one; the other model finds them unlikely.
    values = np.zeros((2, 84), np.float32)
    values[0, :40:4] = values[1, 44::4] = 1.0
    values[:, 40] = 0.9
    assert found_by(*(series((row, 1.0)) for row in values)).windows[0][:2] == (40, 41)
    # 40 frames of half a second, and 30 of a second that end with a moment from 24 to 29 s.
    longer = series(([0.0] * 24 + [1.0] * 5 + [0.0], 1.0))
    found = found_by(series((torch.zeros(40), 0.5), seconds=30.0), longer, round_to=1)
    assert found.windows[0][:2] == (24, 29)
    for row in (([0.1, 0.5, 0.6, 0.2, 0.9], 1.0), ([0.7, 0.0, 0.3], 0.5)):
        one, alone = found_by(*[series(row)] * 2), found_by(series(row))
        assert spans(one.windows) == spans(alone.windows)
        assert [w.score for w in one.windows] == pytest.approx([w.score for w in alone.windows], abs=1e-12)
        assert one.frames == pytest.approx(alone.frames, abs=1e-12)
    score = MomentScore()
    with torch.no_grad():
        score.scale.fill_(200.0), score.offset.fill_(-900.0)
    (found,) = find_windows([(score, series(([0.1, 0.2], 1.0)))] * 2, Decoding())
    assert found.windows


def test_recording_with_too_many_frames_is_refused():
    many = series((torch.zeros(20_001), 0.1))
    for models in ([many], [many] * 2):
        with pytest.raises(KitError, match="recording of 2,000 s has 20,001 frames, but the limit is 20,000"):
            found_by(*models)
    (one,) = find_windows([(MomentScore(), many)], Decoding(), "thresholds")  # compares no pairs of frames
    assert len(one.frames) == 20_001


def test_fit_with_a_scale_below_zero_is_warned_about(caplog):
    """Frames that are lower where the sentence is heard."""
    asked = series(([0.9, 0.9, 0.1, 0.1, 0.9, 0.9], 1.0))
    moments = [Moment(id="q", text="?", clip="c", windows=[(2.0, 4.0)])]
    assert fit_score(MomentScore(), asked, moments, "runs/A").scale <= 0
    assert "runs/A: its scores are no better than chance" in caplog.text


def test_expected_window_edges_match_hand_values():
    """Four frames of 1 s. [1, 4] has an IoU of 0.75 with [0, 4] and of 2 / 3 with [1, 3]."""
    table = np.full((4, 4), -np.inf)
    table[1, 3], table[0, 3], table[1, 2] = np.log([0.3, 0.1, 0.5])
    edges, asked = np.arange(5.0), np.array([[1.0, 4.0], [3.0, 4.0], [0.8, 4.0]])
    sums = mean_edge_sums(asked, as_scores(table), edges)
    assert sums.tolist() == pytest.approx(np.array([[0.3 * 1 + 0.1 * 0, 0.4 * 4, 0.4], [0, 0, 0], [0.3, 1.6, 0.4]]))
    assert overlap_probability(asked, as_scores(table), edges) == pytest.approx([0.4, 0.0, 0.4])
    exact, asked = table_of(10, {(0, 6): np.log(0.5), (0, 9): np.log(0.25)}), np.array([[0.0, 10.0], [0.0, 7.0]])
    found = mean_edge_sums(asked, exact, np.arange(11.0))
    assert found == pytest.approx(np.array([[0.0, 6.0, 0.75]] * 2)), "an IoU of 0.7 is enough"
    chosen = [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)]
    assert refine_edges(chosen, sums[:2], 4.0, Decoding()) == [Found(0.75, 4.0, 0.9), Found(3.0, 4.0, 0.2)]
    rounded = refine_edges(chosen, sums[:2], 4.0, Decoding(round_to=0.5))
    assert rounded == [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)], "0.75 s is nearer to the even multiple"
    near = [Found(1.0, 4.0, 0.9), Found(1.2, 4.0, 0.5), Found(3.0, 4.0, 0.2)]
    once = refine_edges(near, np.zeros((3, 3)), 4.0, Decoding(round_to=0.5))
    assert once == [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)], "a window that equals a better one is dropped"


@pytest.mark.parametrize("seed", range(3))
def test_probability_and_edges_of_moments_that_overlap_a_window_match_a_sum_over_all_windows(seed):
    """Frames of any width, the last two of width 0; windows with any edges, some after the end."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([[0.0], rng.uniform(0.2, 2.0, 9).cumsum()])
    edges = np.append(edges, edges[[-1, -1]])
    table = np.where(np.triu(np.ones((11, 11))) > 0, np.log(rng.uniform(0, 0.02, (11, 11))), -np.inf)
    pairs = [(i, j) for i in range(11) for j in range(i, 11) if edges[j + 1] > edges[i]]
    moments = np.array([[edges[i], edges[j + 1]] for i, j in pairs])
    asked = [sorted(rng.choice(np.unique(edges), 2, replace=False)) for _ in range(20)]
    asked = np.array([*asked, *(sorted(rng.uniform(0, edges[-1] + 1, 2)) for _ in range(20))])
    sums, known = mean_edge_sums(asked, as_scores(table), edges), asked.clip(max=edges[-1])
    for window, found in zip(known, sums, strict=True):
        expected = np.zeros(3)
        shares = ious(moments, window[None])[:, 0] if window[1] > window[0] else np.zeros(len(moments))
        for pair, moment, share in zip(pairs, moments, shares, strict=True):
            expected += (share >= IOU - 1e-9) * np.exp(table[pair]) * np.array([*moment, 1.0])
        assert found == pytest.approx(expected, abs=1e-9)
    assert overlap_probability(asked, as_scores(table), edges) == pytest.approx(sums[:, 2].clip(0, 1), abs=1e-12)
