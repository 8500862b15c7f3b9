"""Windows that a moment overlaps with, by one model and by several whose frames differ."""

import numpy as np
import pytest
import torch
from window_tables import as_scores

from data_tools.errors import KitError
from data_tools.moments import Moment
from submission.metrics.moments import ious
from system.models.scores import MomentScore
from system.moments.windows import (
    IOU,
    Decoding,
    Found,
    Grid,
    mean_edge_sums,
    overlap_probability,
    refine_edges,
    select_windows,
)
from system.ranking.windows import FrameSeries, find_windows, fit_score


def series(*rows: tuple[list[float], float]) -> FrameSeries:
    """Return frame series from (values, hop) rows that start at second 0."""
    grids = [Grid(hop, hop / 2) for _, hop in rows]
    edges = [grid.edges(len(values), len(values) * grid.hop) for (values, _), grid in zip(rows, grids, strict=True)]
    return FrameSeries([torch.tensor(values) for values, _ in rows], edges, grids)


def test_moment_windows_of_a_model_averaged_with_itself_equal_its_windows() -> None:
    score = MomentScore()
    asked = series(([0.1, 0.5, 0.6, 0.2, 0.9], 1.0), ([0.7, 0.0, 0.3], 0.5))
    alone = find_windows([(score, asked)], Decoding())
    for one, other in zip(find_windows([(score, asked)] * 2, Decoding()), alone, strict=True):
        assert [w[:2] for w in one.windows] == [w[:2] for w in other.windows]
        assert [w.score for w in one.windows] == pytest.approx([w.score for w in other.windows], abs=1e-12)
        assert one.frames == pytest.approx(other.frames, abs=1e-12)


def test_probability_that_a_moment_overlaps_a_window_matches_hand_values() -> None:
    """Four frames of 1 s. [0, 3] has an IoU of 2 / 3 with [1, 3], and of 0.75 with [0, 4]."""
    table = np.full((4, 4), -np.inf)
    table[1, 2], table[0, 2], table[0, 3], table[3, 3] = np.log([0.4, 0.2, 0.3, 0.1])
    asked = np.array([[1.0, 3.0], [0.0, 3.0], [0.0, 4.0], [3.0, 4.0], [0.8, 3.0], [0.5, 1.0]])
    expected = [0.4, 0.2 + 0.3, 0.2 + 0.3, 0.1, 0.4 + 0.2, 0.0]
    assert overlap_probability(asked, as_scores(table), np.arange(5.0)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_probability_that_a_moment_overlaps_a_window_matches_sum_over_all_windows(seed: int) -> None:
    """Frames of any width, the last two of width 0; windows with any edges, some after the end."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([[0.0], rng.uniform(0.2, 2.0, 9).cumsum()])
    edges = np.append(edges, edges[[-1, -1]])
    table = np.where(np.triu(np.ones((11, 11))) > 0, np.log(rng.uniform(0, 0.02, (11, 11))), -np.inf)
    asked = [sorted(rng.choice(np.unique(edges), 2, replace=False)) for _ in range(20)]
    asked += [sorted(rng.uniform(0, edges[-1] + 1, 2)) for _ in range(20)]
    for window in np.array(asked):
        inside = np.minimum(window, edges[-1])
        expected = 0.0
        for i in range(11):
            for j in range(i, 11):
                moment = np.array([[edges[i], edges[j + 1]]])
                if (
                    edges[j + 1] > edges[i]
                    and inside[1] > inside[0]
                    and ious(moment, np.array([inside]))[0, 0] >= IOU - 1e-9
                ):
                    expected += np.exp(table[i, j])
        (found,) = overlap_probability(window[None], as_scores(table), edges)
        assert found == pytest.approx(min(expected, 1.0), abs=1e-9)


def test_moment_at_the_end_with_zero_width_frames_is_found() -> None:
    """61 frames of 1 s in 60 s, as the published frames of Clotho-Moment may be."""
    values = torch.tensor([0.0] * 50 + [1.0] * 11)
    grid = Grid(1.0, 0.5)
    asked = FrameSeries([values], [grid.edges(61, 60.0)], [grid])
    (found,) = find_windows([(MomentScore(), asked)], Decoding())
    assert found.windows[0][:2] == (50, 60)
    assert found.windows[0].score > 0.9


def test_window_end_rounded_past_the_end_of_the_recording_is_kept() -> None:
    grid = Grid(1.0, 0.5)
    values = torch.tensor([0.0] * 6 + [1.0] * 2)
    asked = FrameSeries([values], [grid.edges(8, 7.6)], [grid])
    (found,) = find_windows([(MomentScore(), asked)], Decoding(round_to=1))
    assert found.windows[0][:2] == (6, 8)
    assert found.windows[0].score > 0.9


def test_windows_with_equal_scores_are_ordered_by_start_then_length() -> None:
    asked = np.array([[5.0, 9.0], [2.0, 4.0], [2.0, 9.0], [0.0, 1.0]])
    found = select_windows(asked, np.array([0.5, 0.5, 0.5, 0.4]), 10.0, Decoding(max_iou=1.0))
    assert [window[:2] for window in found] == [(2, 4), (2, 9), (5, 9), (0, 1)]


def test_the_eleventh_window_of_both_models_may_be_the_best() -> None:
    """Each model has ten likelier windows, which are unlikely by the other model."""
    values = np.zeros((2, 84))
    values[0, :40:4] = values[1, 44::4] = 1.0
    values[:, 40] = 0.9
    (found,) = find_windows([(MomentScore(), series((row.tolist(), 1.0))) for row in values], Decoding())
    assert found.windows[0][:2] == (40, 41)


def test_windows_of_several_models_may_lie_where_only_one_model_has_frames() -> None:
    """40 frames of half a second, and 30 of a second that end with a moment from 24 to 29 s."""
    values = torch.tensor([0.0] * 24 + [1.0] * 5 + [0.0])
    members = [
        (MomentScore(), FrameSeries([torch.zeros(40)], [Grid(0.5, 0.25).edges(40, 30.0)], [Grid(0.5, 0.25)])),
        (MomentScore(), FrameSeries([values], [Grid(1.0, 0.5).edges(30, 30.0)], [Grid(1.0, 0.5)])),
    ]
    (found,) = find_windows(members, Decoding(round_to=1))
    assert found.windows[0][:2] == (24, 29)


def test_moment_windows_are_found_for_extreme_frame_scores() -> None:
    score = MomentScore()
    with torch.no_grad():
        score.scale.fill_(200.0), score.offset.fill_(-900.0)
    (found,) = find_windows([(score, series(([0.1, 0.2], 1.0)))] * 2, Decoding())
    assert found.windows


def test_windows_stay_within_a_recording_that_ends_inside_a_frame() -> None:
    """4.6 s: five frames of 1 s, and nine of half a second."""
    members = [
        (MomentScore(), FrameSeries([torch.rand(n)], [Grid(h, h / 2).edges(n, 4.6)], [Grid(h, h / 2)]))
        for n, h in ((5, 1.0), (9, 0.5))
    ]
    (found,) = find_windows(members, Decoding())
    assert found.edges[-1] == pytest.approx(4.6)
    assert all(0 <= start < end <= 4.6 for start, end, _ in found.windows)
    assert ((found.frames >= 0) & (found.frames <= 1)).all()


def test_recording_with_too_many_frames_is_refused() -> None:
    grid, size = Grid(0.1, 0.05), 20_001
    series = FrameSeries([torch.zeros(size)], [grid.edges(size, 2000.1)], [grid])
    said = "recording of 2,000 s has 20,001 frames, but the limit is 20,000"
    for found in (
        lambda: find_windows([(MomentScore(), series)], Decoding()),
        lambda: find_windows([(MomentScore(), series)] * 2, Decoding()),
    ):
        with pytest.raises(KitError, match=said):
            found()
    (one,) = find_windows([(MomentScore(), series)], Decoding(), "thresholds")  # compares no pairs of frames
    assert len(one.frames) == size


def test_fit_with_a_scale_below_zero_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Frames that are lower where the sentence is heard."""
    asked = series(([0.9, 0.9, 0.1, 0.1, 0.9, 0.9], 1.0))
    moments = [Moment(id="q", text="?", clip="c", windows=[(2.0, 4.0)])]
    assert fit_score(MomentScore(), asked, moments, "runs/A").scale <= 0
    assert "runs/A: its scores are no better than chance" in caplog.text


def test_expected_window_edges_match_hand_values() -> None:
    """Four frames of 1 s. [1, 4] has an IoU of 0.75 with [0, 4] and of 2 / 3 with [1, 3]."""
    table = np.full((4, 4), -np.inf)
    table[1, 3], table[0, 3], table[1, 2] = np.log([0.3, 0.1, 0.5])
    edges = np.arange(5.0)
    sums = mean_edge_sums(np.array([[1.0, 4.0], [3.0, 4.0]]), as_scores(table), edges)
    assert sums.tolist() == [pytest.approx([0.3 * 1 + 0.1 * 0, 0.4 * 4, 0.4]), pytest.approx([0, 0, 0])]
    chosen = [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)]
    assert refine_edges(chosen, sums, 4.0, Decoding()) == [Found(0.75, 4.0, 0.9), Found(3.0, 4.0, 0.2)]
    rounded = refine_edges(chosen, sums, 4.0, Decoding(round_to=0.5))
    assert rounded == [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)], "0.75 s is nearer to the even multiple"
    near = [Found(1.0, 4.0, 0.9), Found(1.2, 4.0, 0.5), Found(3.0, 4.0, 0.2)]
    once = refine_edges(near, np.zeros((3, 3)), 4.0, Decoding(round_to=0.5))
    assert once == [Found(1.0, 4.0, 0.9), Found(3.0, 4.0, 0.2)], "a window that equals a better one is dropped"


@pytest.mark.parametrize("seed", range(3))
def test_expected_window_edges_match_a_sum_over_all_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.concatenate([[0.0], rng.uniform(0.2, 2.0, 9).cumsum()])
    table = np.where(np.triu(np.ones((9, 9))) > 0, np.log(rng.uniform(0, 0.02, (9, 9))), -np.inf)
    asked = np.array([sorted(rng.choice(edges, 2, replace=False)) for _ in range(15)])
    for window, found in zip(asked, mean_edge_sums(asked, as_scores(table), edges), strict=True):
        expected = np.zeros(3)
        for i in range(9):
            for j in range(i, 9):
                moment = np.array([[edges[i], edges[j + 1]]])
                if ious(moment, np.array([window]))[0, 0] >= IOU - 1e-9:
                    expected += np.exp(table[i, j]) * np.array([edges[i], edges[j + 1], 1.0])
        assert found == pytest.approx(expected, abs=1e-9)
