"""The report's numbers and figures, and the audio that it embeds."""

import doctest
import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from matplotlib.figure import Figure

from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.scoring import ranks_in_matrix
from submission.metrics.summary import summarise
from submission.report import figures, statistics
from submission.report.listening import AudioStore, to_mp3
from submission.report.results import _bins_table
from submission.report.statistics import Bar, choose_queries, random_shares, rank_bins, score_gaps, share_interval
from submission.runs.clips import read_clips


def matrix_of(values: list[list[float]], relevant: list[list[str]], **changes: Any) -> ScoreMatrix:
    ids = [chr(ord("a") + n) for n in range(len(values[0]))]
    names = [str(n) for n in range(len(values))]
    return ScoreMatrix(np.array(values, np.float32), names, names, ids, ids, list(relevant), **changes)


def test_docstring_examples_of_report_modules_are_right() -> None:
    found = doctest.testmod(statistics)
    assert found.failed == 0
    assert found.attempted >= 7


@pytest.mark.parametrize("width", [1.0, 0.1, 0.004, 3e-5, 1e-9])
def test_histogram_labels_distinguish_narrow_bins(width: float) -> None:
    edges = np.histogram_bin_edges([0.5, 0.5 + width], 30)
    rows = _bins_table("score", edges, {"queries": np.zeros(30, np.int64)}).rows
    ends = [float(end) for row in rows for end in row[0].split(" to ")]
    steps = np.diff(ends)[::2]
    assert steps == pytest.approx(np.full(30, width / 30), rel=0.2), "the width of each bin"
    assert len({row[0] for row in rows}) == 30


def test_histogram_labels_of_wide_bins_have_three_decimals() -> None:
    rows = _bins_table("score", np.linspace(-1, 1, 31), {"queries": np.zeros(30, np.int64)}).rows
    assert rows[0][0] == "-1.000 to -0.933"


def test_rank_bins_end_at_1_2_5_10_and_so_on() -> None:
    assert rank_bins(1) == [(1, 1)]
    assert rank_bins(5) == [(1, 1), (2, 2), (3, 5)]
    assert rank_bins(6)[-1] == (6, 6)
    assert rank_bins(1045)[6:] == [(51, 100), (101, 200), (201, 500), (501, 1000), (1001, 1045)]
    first = np.array([1, 1, 2, 5, 6, 10, 11, 30])
    assert statistics.count_ranks(first, rank_bins(30)) == [2, 1, 1, 2, 1, 1]


def test_expected_shares_of_random_ranks_match_enumeration_of_all_orders() -> None:
    single = [(rank, rank) for rank in range(1, 5)]
    assert random_shares(single, 4, np.array([2])) == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0])
    assert random_shares(single, 4, np.array([1, 2, 1, 2])) == pytest.approx([3 / 8, 7 / 24, 5 / 24, 1 / 8])
    assert random_shares([(1, 1), (2, 3)], 3, np.array([3])) == pytest.approx([1, 0])
    bins = [(1, 1), (2, 3), (4, 6)]
    firsts = [min(order[:3]) + 1 for order in itertools.permutations(range(6))]
    counted = [sum(low <= first <= high for first in firsts) / 720 for low, high in bins]
    assert random_shares(bins, 6, np.array([3])) == pytest.approx(counted)


def test_scores_of_best_relevant_and_hardest_negative_clips_match_hand_values() -> None:
    found = score_gaps(
        matrix_of(
            [[0.5, 0.25, 0.75], [0.5, 0.5, 0.25], [0.5, 0.5, 0.25], [3.0, 2.0, 1.0]],
            [["a"], ["a"], ["a", "b"], ["c", "a", "b"]],
        )
    )
    assert found.positive.tolist() == [0.5, 0.5, 0.5, 3.0]
    assert found.negative.tolist()[:3] == [0.75, 0.5, 0.25]
    assert math.isnan(found.negative[3])
    assert found.margin.tolist()[:3] == [-0.25, 0, 0.25]
    assert found.tied.tolist() == [False, True, False, False]


def test_interval_of_a_share_equals_the_wilson_interval_with_groups_as_trials() -> None:
    """The bounds are the roots of |p - m| = z sqrt(p (1 - p) / n), found here by bisection."""

    def root(mean: float, n: float, low: float, high: float) -> float:
        inside = mean
        outside = low if low < mean else high
        for _ in range(80):
            middle = (inside + outside) / 2
            within = abs(middle - mean) <= 1.959963984540054 * math.sqrt(middle * (1 - middle) / n)
            inside, outside = (middle, outside) if within else (inside, middle)
        return inside

    for values, groups, n in (
        ([1, 0, 0, 1, 1], [0, 1, 2, 3, 4], 5),
        ([1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 2, 2], 3),
        ([1, 1, 1, 0], [0, 0, 0, 1], 16 / 10),
        ([0.5, 0.25], [4, 9], 2),
    ):
        mean = float(np.mean(values))
        low, high = share_interval(np.array(values, float), np.array(groups))
        assert low == pytest.approx(root(mean, n, 0, mean), abs=1e-9)
        assert high == pytest.approx(root(mean, n, mean, 1), abs=1e-9)
    assert share_interval(np.zeros(3), np.zeros(3, int)) == pytest.approx((0, 1 - 1 / (1 + 1.959963984540054**2)))


def test_histogram_bins_of_the_report_include_their_lower_limit() -> None:
    assert [statistics.bin_number(n, statistics.WORDS) for n in (1, 4, 5, 7, 8, 19, 20, 99)] == [0, 0, 1, 1, 2, 5, 6, 6]
    assert list(statistics.bin_labels(statistics.WORDS, whole=True).values()) == [
        "1–4",
        "5–7",
        "8–10",
        "11–13",
        "14–16",
        "17–19",
        "20+",
    ]
    assert [statistics.bin_number(s, statistics.SECONDS) for s in (0, 4.999, 5, 29.9, 30, math.nan)] == [
        0,
        0,
        1,
        5,
        6,
        None,
    ]
    seconds = statistics.bin_labels(statistics.SECONDS, whole=False)
    assert list(seconds.values()) == ["0–5", "5–10", "10–15", "15–20", "20–25", "25–30", "30+"]
    bars = statistics.mean_bars(
        np.array([1.0, 0.0, 0.5, 1.0]),
        [0, 0, None, 6],
        statistics.bin_labels(statistics.WORDS, whole=True),
        np.array([0, 1, 2, 3]),
    )
    assert [(bar.label, bar.mean, bar.n) for bar in bars] == [("1–4", 0.5, 2), ("20+", 1.0, 1)]
    assert bars[1].interval == pytest.approx((1 / (1 + 1.959963984540054**2), 1))


def test_report_chooses_the_best_middle_and_worst_queries() -> None:
    def chosen(first: list[int], margin: list[float]) -> list[list[int]]:
        return list(choose_queries(np.array(first), np.array(margin)).values())

    assert chosen([3], [0.1]) == [[0], [], []]
    assert chosen([3, 1], [0.1, 0.2]) == [[1], [], [0]]
    assert chosen([4, 1, 3, 2], [0.0] * 4) == [[1], [3], [0]]
    assert chosen([1, 1, 1], [0.1, math.nan, 0.2]) == [[1], [2], [0]], "among equal ranks the margin decides"
    assert chosen([2, 2, 2], [-0.1, -0.3, -0.2]) == [[0], [2], [1]]
    assert chosen([1, 1, 1], [0.1, 0.1, 0.1]) == [[0], [1], [2]], "then the row"
    assert chosen(list(range(1, 21)), [0.0] * 20) == [[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [19, 18, 17, 16, 15]]
    groups = chosen(list(range(1, 12)), [0.0] * 11)
    assert [len(group) for group in groups] == [3, 3, 3]
    assert groups[1] == [4, 5, 6]


def test_clips_csv_of_a_run_is_read_in_the_clip_order_of_its_score_matrix(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('clip,path,seconds,norm one\nb,/b.wav,,2\n"a,1",/a.wav,1.5,3\nunasked,/c,9,9\n')
    clips = read_clips(tmp_path / "x.csv", ["a,1", "b"])
    assert clips.paths == [Path("/a.wav"), Path("/b.wav")]
    assert clips.seconds[0] == 1.5
    assert math.isnan(clips.seconds[1])
    assert {name: norms.tolist() for name, norms in clips.norms.items()} == {"one": [3.0, 2.0]}


def test_report_has_no_player_for_an_unreadable_clip(tmp_path: Path) -> None:
    store = AudioStore()
    (tmp_path / "broken.wav").write_bytes(b"RIFF of nothing")
    number, why = store.add(tmp_path / "broken.wav")
    assert number is None
    assert why.startswith("no audio: broken.wav cannot be read (")
    assert store.uris == []


def test_long_clip_is_cut_to_ten_seconds_of_mono_mp3(tmp_path: Path) -> None:
    t = np.arange(12 * 44_100) / 44_100
    left = 0.5 * np.sin(2 * np.pi * np.where(t < 10.5, 440, 3000) * t)
    soundfile.write(tmp_path / "long.wav", np.stack([left, 0 * left], axis=1), 44_100)
    mp3 = to_mp3(tmp_path / "long.wav")
    wave, rate = soundfile.read(io.BytesIO(mp3))
    assert (rate, wave.ndim) == (24_000, 1)
    assert len(wave) / rate == pytest.approx(10, abs=0.1)
    assert len(mp3) == pytest.approx(40_000 / 8 * 10, rel=0.05), "40 kbit/s keep the page small"
    power = np.abs(np.fft.rfft(wave)) ** 2
    hertz = np.fft.rfftfreq(len(wave), 1 / rate)
    assert hertz[power.argmax()] == pytest.approx(440, abs=1)
    assert power[hertz > 2000].sum() < 1e-4 * power.sum(), "sound after ten seconds is included"
    assert np.abs(wave[5000:-5000]).max() == pytest.approx(0.25, abs=0.02), "channels are averaged"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    kept: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure))
    return kept


def test_box_plot_shows_quartiles(drawn: list[Figure], tmp_path: Path) -> None:
    figures.draw_boxes(tmp_path / "x.svg", {"a": np.arange(101.0), "b": np.full(3, 7.0)}, "norm")
    axes = drawn[0].axes[0]
    assert [box.get_path().get_extents().intervaly.tolist() for box in axes.patches] == [[25, 75], [7, 7]]
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 95


def test_bar_plot_shows_means_and_intervals(drawn: list[Figure], tmp_path: Path) -> None:
    bars = [Bar("1–4", 0.5, (0.25, 0.875), 12), Bar("20+", 1.0, (0.75, 1.0), 3)]
    figures.draw_bars(tmp_path / "x.svg", bars, "words", "R@10", 0.6)
    axes = drawn[0].axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 1.0]
    (lines,) = axes.collections
    assert [segment[:, 1].tolist() for segment in lines.get_segments()] == [[0.25, 0.875], [0.75, 1.0]]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axes.texts] == ["n 12", "n 3"]


def test_rank_plot_shows_percentages_of_ranks_and_those_of_a_random_order(drawn: list[Figure], tmp_path: Path) -> None:
    figures.draw_ranks(tmp_path / "x.svg", ["1", "2–4"], [3, 1], [0.25, 0.75])
    axes = drawn[0].axes[0]
    assert [bar.get_height() for bar in axes.patches] == [75, 25]
    assert list(map(float, axes.lines[0].get_ydata())) == [25, 75]  # type: ignore[arg-type]


def test_score_difference_plot_marks_the_margins_of_the_losses(drawn: list[Figure], tmp_path: Path) -> None:
    figures.draw_score_differences(tmp_path / "x.svg", np.array([-1.0, 0, 1]), np.array([2, 3]), "score", [0.2, 0.5])
    figures.draw_score_differences(tmp_path / "x.svg", np.array([-1.0, 0, 1]), np.array([2, 3]), "score", [])
    marked, plain = (figure.axes[0] for figure in drawn)
    assert [line.get_xdata()[0] for line in marked.lines] == [0, 0.2, 0.5]  # type: ignore[index]
    assert [text.get_text() for text in marked.get_legend().get_texts()] == ["margin 0.2", "margin 0.5"]
    assert plain.get_legend() is None


def test_plot_labels_are_escaped_and_cut(drawn: list[Figure], tmp_path: Path) -> None:
    own = summarise(ranks_in_matrix(matrix_of([[0.5, 0.75], [0.75, 0.5]], [["a"], ["a"]])))
    figures.draw_systems(tmp_path / "x.svg", {"this run": own, "雨$x$" + 99 * "y": own}, {"chance": 0.1}, "mAP@10")
    texts = [text.get_text() for text in drawn[0].axes[0].texts]
    value = own.values["mAP@10"]
    assert texts[0] == f"this run  {value:.4f}"
    assert texts[1].startswith("\\u96e8$x$yyy")
    assert texts[1].endswith(f"yyy  {value:.4f}")
    assert len(texts[1]) <= 64
    assert texts[2] == "chance  0.1000"
    drawn[0].canvas.draw()  # a formula or a missing letter would warn
