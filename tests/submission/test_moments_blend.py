"""Blends of files of moments: hand-computed votes, a slow reference, and the command line."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from submission.__main__ import main
from submission.editions import get_moments_edition
from submission.errors import SubmissionError
from submission.formats.moments_jsonl import Moments, read_moments
from submission.formats.moments_truth import MomentQuery, MomentTruth
from submission.metrics.moment_metrics import score_moments
from submission.metrics.moments_blend import MAX_IOU, blend_moments, search_moment_weights

E2026 = get_moments_edition()


def answer(windows: Sequence[Sequence[float]], qid: str = "a_1", vid: str | None = "a") -> Moments:
    return Moments(1, qid, f"text of {qid}", vid, [list(window) for window in windows])


def find_windows(parts: dict[str, list[Moments]], *options: Any) -> list[list[float]]:
    (only,) = blend_moments(parts, *options)
    return only.windows


def test_scores_of_blended_windows_match_hand_computed_values() -> None:
    one, other = [answer([[0, 10, 0.6], [20, 30, 0.3]])], [answer([[1, 10, 0.5]])]
    parts = {"one": one, "other": other}
    # [0, 10]: (0.6 + 0.9 x 0.5) / 2; [1, 10]: (0.9 x 0.6 + 0.5) / 2, which overlaps the better one by 0.9.
    assert find_windows(parts, "raw", E2026) == [[0, 10, 0.525], [20, 30, 0.15]]
    # A quarter and three quarters: 0.15 + 0.3375 and 0.135 + 0.375.
    assert find_windows(parts, "raw", E2026, [1, 3]) == [[1, 10, 0.51], [20, 30, 0.075]]
    # 1 and 1/2 of the first file, 1 of the second: both first windows get 0.95, and the earlier one comes first.
    assert find_windows(parts, "rank", E2026) == [[0, 10, 0.95], [20, 30, 0.25]]
    assert find_windows(parts, "raw", E2026, [1, 0]) == [[0, 10, 0.6], [20, 30, 0.3]]


def test_score_of_a_blended_window_is_the_mean_score_of_the_most_similar_window_per_file() -> None:
    parts = {"one": [answer([[0, 10, 0.5], [0, 9, 0.4], [0, 8, 0.4]])], "other": [answer([[0, 10, 0.1]])]}
    assert find_windows(parts, "raw", E2026) == [[0, 10, 0.3]]


def test_blend_keeps_windows_that_overlap_exactly_by_the_limit() -> None:
    """[0, 10] and [4, 10] have an IoU of 0.6, [0, 10] and [3.9, 10] one of 0.61."""
    parts = {"one": [answer([[0, 10, 0.9]])], "other": [answer([[4, 10, 0.1]])]}
    assert [window[:2] for window in find_windows(parts, "raw", E2026)] == [[0, 10], [4, 10]]
    parts = {"one": [answer([[0, 10, 0.9]])], "other": [answer([[3.9, 10, 0.1]])]}
    assert [window[:2] for window in find_windows(parts, "raw", E2026)] == [[0, 10]]


def test_each_file_and_the_blend_use_at_most_ten_windows() -> None:
    """The eleventh window of a file has no effect, wherever it is."""
    apart = [[float(20 * n), 20.0 * n + 5, 0.5 + n / 100] for n in range(12)]
    parts = {"one": [answer(apart)], "other": [answer([[300, 310, 0.9]])]}
    found = find_windows(parts, "raw", E2026)
    assert len(found) == 10
    assert [window[0] for window in found] == [300, 220, 200, 180, 160, 140, 120, 100, 80, 60]
    others = {"one": [answer(apart)], "other": [answer([[0, 5, 1.0]])]}
    assert find_windows(others, "raw", E2026)[0] == [0, 5, 0.5]  # of the other file alone


def test_window_of_no_length_gets_score_zero_in_a_blend() -> None:
    parts = {"one": [answer([[5, 5, 0.9], [0, 10, 0.1]])], "other": [answer([[5, 5, 0.9]])]}
    assert find_windows(parts, "raw", E2026) == [[0, 10, 0.05], [5, 5, 0]]


def test_windows_of_a_file_with_weight_zero_are_not_used() -> None:
    """Not even if another file supports them; the same holds in the search, whose figure the blend reaches."""
    parts = {"one": [answer([[0, 10, 0.6]])], "other": [answer([[1, 10, 0.9], [3, 10, 0.9], [30, 40, 0.9]])]}
    assert find_windows(parts, "raw", E2026, [1, 0]) == [[0, 10, 0.6]]
    assert find_windows(parts, "raw", E2026, [0, 1]) == [[1, 10, 0.9], [30, 40, 0.9]]
    of_q0 = {name: [replace(each, qid="q0") for each in part] for name, part in parts.items()}
    weights, reached = search_moment_weights(of_q0, "raw", truth_of([[0, 10]]), E2026)
    assert (weights, reached) == ([1.0, 0.0], 1.0)


@pytest.mark.parametrize("scale", [1e-60, 1e-30, 1.0, 1e300])
def test_blended_windows_keep_order_and_score_ratios_for_very_small_and_large_scores(scale: float) -> None:
    windows = [[0, 5, scale], [10, 15, 5 * scale], [20, 25, 3 * scale]]
    parts = {"one": [answer(windows)], "other": [answer([[10, 15, scale]])]}
    found = find_windows(parts, "raw", E2026)
    assert [window[:2] for window in found] == [[10, 15], [20, 25], [0, 5]]
    assert [window[2] / scale for window in found] == pytest.approx([3, 1.5, 0.5], rel=1e-12)


def test_blend_of_moments_is_bitwise_equal_in_any_file_order() -> None:
    """0.1, 0.2 and 0.3 add up to 0.6 or 0.6000000000000001, depending on the order."""
    parts = {str(score): [answer([[0, 5, score]])] for score in (0.1, 0.2, 0.3)}
    found = [find_windows(dict(order), "raw", E2026) for order in permutations(parts.items())]
    assert all(each == found[0] for each in found)
    weights = {"0.1": 0.3, "0.2": 0.7, "0.3": 0.1}
    found = [
        find_windows(dict(order), "raw", E2026, [weights[name] for name, _ in order])
        for order in permutations(parts.items())
    ]
    assert all(each == found[0] for each in found)


def test_blend_error_for_overflowing_window_scores_names_their_file() -> None:
    parts = {"one": [answer([[20, 25, 0.5]], "q0")], "other": [answer([[0, 5, 1.7e308]], "q0")]}
    said = "^other: the scores of this file are too large to be added; add --how rank, or scale them down$"
    with pytest.raises(SubmissionError, match=said):
        blend_moments(parts | {"third": parts["other"]}, "raw", E2026)
    with pytest.raises(SubmissionError, match=said):
        search_moment_weights(parts, "raw", truth_of([[0, 5]]), E2026)


def slow_blend(files: Sequence[Sequence[Sequence[float]]], weights: Sequence[float]) -> list[list[float]]:
    """Blend the windows of one query in loops."""

    def iou(one: Sequence[float], other: Sequence[float]) -> float:
        shared = max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
        return shared / ((one[1] - one[0]) + (other[1] - other[0]) - shared)

    scored = []
    for start, end in sorted({(window[0], window[1]) for file in files for window in file}):
        votes = [max(window[2] * iou((start, end), window) for window in file) for file in files]
        scored.append([start, end, sum(w * vote for w, vote in zip(weights, votes, strict=True)) / sum(weights)])
    kept: list[list[float]] = []
    for window in sorted(scored, key=lambda window: -window[2]):
        if len(kept) < 10 and all(iou(window, better) <= MAX_IOU for better in kept):
            kept.append(window)
    return kept


def drawn(rng: np.random.Generator, queries: int, most: int = 10) -> list[list[list[float]]]:
    """Return random windows by query, in any order, one to `most` of them."""
    found = []
    for _ in range(queries):
        starts = rng.uniform(0, 40, int(rng.integers(1, most + 1)))
        found.append([[s, s + rng.uniform(1, 20), rng.uniform(0, 1)] for s in starts.tolist()])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_blend_of_moments_equals_a_slow_reference_in_any_file_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = [drawn(rng, 7) for _ in range(3)]
    weights = rng.uniform(0.1, 1, 3).tolist()
    parts = {str(n): [answer(w, f"q{q}") for q, w in enumerate(file)] for n, file in enumerate(files)}
    found = blend_moments(parts, "raw", E2026, weights)
    for query, one in enumerate(found):
        expected = slow_blend([file[query] for file in files], weights)
        assert [window[:2] for window in one.windows] == [window[:2] for window in expected]
        assert [w[2] for w in one.windows] == pytest.approx([w[2] for w in expected], rel=1e-6)
    turned = blend_moments(dict(reversed(parts.items())), "raw", E2026, weights[::-1])
    assert [one.windows for one in turned] == [one.windows for one in found]


def truth_of(windows: Sequence[Sequence[float]]) -> MomentTruth:
    queries = {f"q{n}": MomentQuery(n, f"q{n}", "?", f"v{n}", 60.0, [list(w)]) for n, w in enumerate(windows)}
    return MomentTruth(queries, "truth.jsonl", [])


def test_weight_search_gives_a_noise_file_weight_zero_and_reports_the_best_score() -> None:
    """Two files complement each other; a third is noise with high scores."""
    rng = np.random.default_rng(1)
    right = [[s, s + 6] for s in rng.uniform(0, 40, 30).tolist()]
    sure = rng.uniform(0, 1, 30) < 0.5
    noise = [[window] for [window, *_] in drawn(rng, 30, 1)]

    def half(known: np.ndarray) -> list[Moments]:
        files = [[[*window, 0.8]] if k else [[50, 58, 0.3]] for window, k in zip(right, known, strict=True)]
        return [answer(windows, f"q{n}") for n, windows in enumerate(files)]

    parts = {"one": half(sure), "other": half(~sure)}
    parts["noise"] = [answer([[*w[0][:2], 0.95]], f"q{n}") for n, w in enumerate(noise)]
    weights, reached = search_moment_weights(parts, "raw", truth_of(right), E2026)
    assert weights[2] < min(weights[:2])
    assert reached == 1.0
    found = {one.qid: one.windows for one in blend_moments(parts, "raw", E2026, weights)}
    assert score_moments(found, truth_of(right).windows()).recall(0.7) == reached


def test_missing_query_text_and_recording_are_taken_from_another_file() -> None:
    bare = Moments(1, "a_1", None, None, [[0, 1, 0.5]])
    (found,) = blend_moments({"one": [bare], "other": [answer([[0, 1, 0.5]])]}, "raw", E2026)
    assert (found.query, found.vid) == ("text of a_1", "a")


@pytest.mark.parametrize(
    ("other", "how", "weights", "words"),
    [
        ([answer([[0, 1, 0.5]], "b_1")], "raw", None, "only one of other and one has the query 'a_1'"),
        ([answer([[0, 1, 0.5]], vid="b")], "raw", None, r"for the query 'a_1' \(vid 'b' and 'a'\)"),
        ([answer([[0, 1]])], "raw", None, "other: the windows have no scores; add --how rank"),
        ([answer([[0, 1, 0.5], [2, 3, -0.5]])], "raw", None, "other: line 1 has a window with the score -0.5, but raw"),
        ([answer([[0, 1, 0.5]])], "raw", [1], "1 weights are given for 2 systems"),
        ([answer([[0, 1, 0.5]])], "rank", [0, 0], "a finite sum above 0"),
    ],
)
def test_invalid_blends_of_moments_are_refused(
    other: list[Moments], how: Any, weights: list[float] | None, words: str
) -> None:
    with pytest.raises(SubmissionError, match=words):
        blend_moments({"one": [answer([[0, 1, 0.5]])], "other": other}, how, E2026, weights)


def write(name: str, windows: dict[str, list[list[float]]], key: str = "pred_relevant_windows") -> None:
    """Write a file of moments. Query ids are RECORDING_N."""
    known = {q: {"qid": q, "query": f"text of {q}", "vid": q[:-2], "duration": 60} for q in windows}
    lines = [known[q] | {key: each} for q, each in windows.items()]
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models' files of a test list, and of a validation list with its truth."""
    monkeypatch.chdir(tmp_path)
    for split, at in (("", 0), ("val_", 20)):
        qids = [f"{split}{vid}_1" for vid in "xyz"]
        write(f"{split}good.jsonl", {qid: [[at + n, at + n + 5.0, 0.7]] for n, qid in enumerate(qids)})
        write(f"{split}poor.jsonl", {qid: [[50, 55, 0.9], [at + n, at + n + 4, 0.2]] for n, qid in enumerate(qids)})
        write(f"{split}truth.jsonl", {qid: [[at + n, at + n + 5]] for n, qid in enumerate(qids)}, "relevant_windows")
    write("bare.jsonl", {f"{vid}_1": [[n, n + 5], [30, 31]] for n, vid in enumerate("xyz")})
    return tmp_path


def test_blend_verb_uses_moment_weights_from_validation(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blend", "good.jsonl", "poor.jsonl", "--out", "equal.jsonl"]) == 0
    shares = ["  0.50  good.jsonl", "  0.50  poor.jsonl"]
    assert capsys.readouterr().out.splitlines() == [*shares, "wrote equal.jsonl: 3 queries, windows with raw scores"]
    assert read_moments(files / "equal.jsonl", E2026)[0].windows == [[50, 55, 0.45], [0, 5, 0.43]]
    searched = ["--validation", "val_good.jsonl", "val_poor.jsonl", "--truth", "val_truth.jsonl"]
    assert main(["blend", "good.jsonl", "poor.jsonl", *searched, "--out", "best.jsonl"]) == 0
    first, *shares, _ = capsys.readouterr().out.splitlines()
    assert first == "searched the weights on the validation split, where R1@0.7 is 100.00 %"
    assert shares == ["  1.00  good.jsonl", "  0.00  poor.jsonl"]
    assert main(["check", "best.jsonl", "--queries", "truth.jsonl"]) == 0
    capsys.readouterr()
    assert main(["score", "best.jsonl", "--truth", "truth.jsonl"]) == 0
    assert "R1@0.7      100.00" in capsys.readouterr().out
    assert main(["blend", "bare.jsonl", "poor.jsonl", "--how", "rank", "--weights", "3", "1", "--out", "r.jsonl"]) == 0
    assert read_moments(files / "r.jsonl", E2026)[0].windows[0] == [0, 5, 0.85]


def test_blend_verb_overwrites_an_older_blend_of_moments(files: Path) -> None:
    for weights in (["1", "1"], ["1", "3"]):
        assert main(["blend", "good.jsonl", "poor.jsonl", "--weights", *weights, "--out", "o.jsonl"]) == 0
    assert read_moments(files / "o.jsonl", E2026)[0].windows[0] == [50, 55, 0.675]


def test_blend_of_moments_omits_keys_that_all_files_lack(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        Path(f"{name}.jsonl").write_text('{"qid": "x_1", "pred_relevant_windows": [[0, 5, 0.5]]}\n')
    assert main(["blend", "one.jsonl", "other.jsonl", "--out", "o.jsonl"]) == 0
    assert json.loads((files / "o.jsonl").read_text()) == {"qid": "x_1", "pred_relevant_windows": [[0, 5, 0.5]]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("good.jsonl a.npy --out o.jsonl", "a.npy ranks clips; moments (.jsonl) can only be blended with moments"),
        ("good.jsonl poor.jsonl --out o.npy", "o.npy: a blend of moments is JSON lines; give a name ending in .jsonl"),
        (
            "good.jsonl poor.jsonl --out truth.jsonl",
            "truth.jsonl already exists, and it is not a file of moments; choose another file",
        ),
        (
            "good.jsonl poor.jsonl --how standardised --out o.jsonl",
            "for score matrices; for moments use raw or rank",
        ),
        ("good.jsonl poor.jsonl --truth truth.jsonl --out o.jsonl", "give both --validation FILES and --truth TRUTH"),
        ("good.jsonl poor.jsonl --validation val_good.jsonl val_poor.jsonl --out o.jsonl", "give both"),
        (
            "good.jsonl poor.jsonl --validation val_good.jsonl --truth val_truth.jsonl --out o.jsonl",
            "--validation has 1 system; give 2",
        ),
        (
            "good.jsonl poor.jsonl --validation good.jsonl poor.jsonl --truth truth.jsonl --out o.jsonl",
            "good.jsonl and good.jsonl have 3 queries in common (first 'x_1'); search the weights on a validation",
        ),
        ("good.jsonl ./good.jsonl --out o.jsonl", "the same system is given twice"),
        ("good.jsonl --out o.jsonl", "a blend needs two or more systems, but only 1 is given"),
        ("good.jsonl poor.jsonl --out good.jsonl", "good.jsonl would overwrite the input file good.jsonl"),
        ("good.jsonl val_poor.jsonl --out o.jsonl", "only one of val_poor.jsonl and good.jsonl has the query"),
        ("good.jsonl gone.jsonl --out o.jsonl", "gone.jsonl: no such file"),
        ("good.jsonl truth.jsonl --out o.jsonl", "give the file with your windows, not the truth"),
        ("good.jsonl bare.jsonl --out o.jsonl", "bare.jsonl: the windows have no scores"),
        ("good.jsonl poor.jsonl --edition 2025 --out o.jsonl", "edition 2025 ranks clips, not moments"),
    ],
)
def test_refused_blends_of_moments_print_one_line_and_write_nothing(
    files: Path, arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    assert main(["blend", *arguments.split()]) == 1
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_blend_refuses_validation_on_tested_recordings(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "poor"):
        write(f"two_{name}.jsonl", {f"{vid}_2": [[0, 5, 0.5]] for vid in "xuv"})
    write("two_truth.jsonl", {f"{vid}_2": [[0, 5]] for vid in "xuv"}, "relevant_windows")
    searched = ["--validation", "two_good.jsonl", "two_poor.jsonl", "--truth", "two_truth.jsonl"]
    assert main(["blend", "good.jsonl", "poor.jsonl", *searched, "--out", "o.jsonl"]) == 1
    assert "good.jsonl and two_good.jsonl have 1 recording in common (first 'x')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        (("good",), "poor.jsonl and two_good.jsonl have 1 recording in common (first 'x')"),
        (("two_good",), "good.jsonl and two_poor.jsonl have 1 recording in common (first 'x')"),
        (("two_good", "two_poor"), "good.jsonl and two_truth.jsonl have 1 recording in common (first 'x')"),
        (("good", "two_good", "two_poor"), "poor.jsonl and two_truth.jsonl have 1 recording in common (first 'x')"),
    ],
)
def test_blend_refuses_recordings_shared_by_validation_and_test(
    files: Path, silent: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """silent: files without recordings."""
    for name in ("good", "poor"):
        write(f"two_{name}.jsonl", {f"{vid}_2": [[0, 5, 0.5]] for vid in "xuv"})
    write("two_truth.jsonl", {f"{vid}_2": [[0, 5]] for vid in "xuv"}, "relevant_windows")
    for name in silent:
        lines = [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()]
        text = "".join(json.dumps({k: v for k, v in line.items() if k != "vid"}) + "\n" for line in lines)
        Path(f"{name}.jsonl").write_text(text)
    searched = ["--validation", "two_good.jsonl", "two_poor.jsonl", "--truth", "two_truth.jsonl"]
    assert main(["blend", "good.jsonl", "poor.jsonl", *searched, "--out", "o.jsonl"]) == 1
    assert words in capsys.readouterr().err
