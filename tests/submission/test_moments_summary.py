"""Figures of moments with their intervals: hand-computed values, bootstrap by recordings, and real predictions."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from submission.editions import MOMENTS
from submission.errors import SubmissionError
from submission.formats.moments_truth import MomentQuery, MomentTruth, read_moment_truth
from submission.metrics.compare import compare
from submission.metrics.moments_summary import MomentSummary, summarise_moments, summarise_moments_file

E2026 = MOMENTS["2026"]
Answers = dict[str, list[list[float]]]


def truth_of(windows: Answers, seconds: float | None = 60.0) -> MomentTruth:
    """Return a truth. The recording is the part of the id before `_`."""
    queries = {
        qid: MomentQuery(number, qid, "?", qid.partition("_")[0], seconds, each)
        for number, (qid, each) in enumerate(windows.items(), start=1)
    }
    return MomentTruth(queries, "truth.jsonl", [])


def hits_and_misses(hits: dict[str, int]) -> MomentSummary:
    """Return a summary of queries with one window and one true window: a perfect match or a miss."""
    answers: Answers = {qid: [[0, 10]] if hit else [[30, 40]] for qid, hit in hits.items()}
    return summarise_moments(answers, truth_of({qid: [[0, 10]] for qid in hits}), E2026)


def test_moment_figures_match_hand_computed_values() -> None:
    """Query a_1: IoU 0.6, then the whole window; a_2: right; b_1: wrong twice."""
    answers: Answers = {"a_1": [[0, 6], [0, 10]], "a_2": [[5, 9]], "b_1": [[1, 2], [2, 3]]}
    summary = summarise_moments(answers, truth_of({"a_1": [[0, 10]], "a_2": [[5, 9]], "b_1": [[0, 60]]}), E2026)
    assert list(summary.values) == ["R1@0.5", "R1@0.7", "mAP", "mAP@0.5", "mAP@0.75"]
    # AP of a_1: 1 at .5, .55 and .6, then 1/2
    assert list(summary.values.values()) == pytest.approx([2 / 3, 1 / 3, (0.65 + 1) / 3, 2 / 3, 0.5])
    assert (summary.primary, summary.compared_metrics[:2]) == ("R1@0.7", ("R1@0.7", "R1@0.5"))
    assert summary.per_query["R1@0.7"].tolist() == [0, 1, 0]
    assert summary.per_query["mAP"].tolist() == pytest.approx([0.65, 1, 0])
    assert summary.queries.groups.tolist() == [0, 0, 1]
    assert (summary.queries.n_pool, summary.chance) == (2, 1 / 3)  # b_1 is true in the whole recording
    assert [row[0] for row in summary.rows()] == ["query", "a_1", "a_2", "b_1"]
    assert summary.rows()[0][1:] == ["true windows", "IoU", "R1@0.5", "R1@0.7", "AP", "AP@0.5", "AP@0.75"]
    assert summary.rows()[1][1:] == ["1", "0.6", "1", "0", "0.65", "1", "0.5"]


def test_moment_metrics_by_length_use_the_lengths_of_true_windows() -> None:
    answers: Answers = {"a": [[0, 5]], "b": [[0, 20]]}
    summary = summarise_moments(answers, truth_of({"a": [[0, 5], [20, 40]], "b": [[0, 20]]}), E2026)
    assert summary.by_length["long"] is None
    figures = summary.figures_by_length()
    assert {name: figures[f"mAP {name}"] for name in ("short", "middle")} == {"short": 1, "middle": 0.5}
    assert "mAP long" not in figures
    lines = "\n".join(summary.lines(by_length=True))
    assert (
        "short       R1@0.5 100.00 %  R1@0.7 100.00 %  mAP 100.00 %  mAP@0.5 100.00 %  mAP@0.75 100.00 %  (1 query)"
        in lines
    )
    assert "long        no query has a true window of this length" in lines
    assert "short" not in "\n".join(summary.lines())


def test_bootstrap_of_moment_metrics_draws_whole_recordings() -> None:
    """Two recordings, one with three hits and one with a miss: means of draws are 1, 3/4 and 0."""
    summary = hits_and_misses({"a_1": 1, "a_2": 1, "a_3": 1, "b_1": 0})
    assert summary.bootstrap == (0, 1)
    alone = hits_and_misses({"a_1": 1, "b_1": 1, "c_1": 1, "d_1": 0})
    assert alone.bootstrap[0] > 0
    assert alone.interval == summary.interval  # the jackknife takes every query as independent


def test_queries_repeated_within_a_recording_do_not_narrow_the_interval() -> None:
    rng = np.random.default_rng(5)
    once = {f"{number}_1": int(rng.random() < 0.4) for number in range(40)}
    five = {f"{qid[:-2]}_{n}": hit for qid, hit in once.items() for n in range(5)}
    one, many = hits_and_misses(once), hits_and_misses(five)
    for metric, interval in one.bootstraps.items():
        assert many.bootstraps[metric] == pytest.approx(interval, abs=1e-12)
        assert interval[0] < one.values[metric] < interval[1]
    assert np.diff(many.interval) < 0.5 * np.diff(one.interval)


def random_systems(seed: int) -> tuple[MomentSummary, MomentSummary]:
    rng = np.random.default_rng(seed)
    qids = [f"{recording}_{n}" for recording in range(9) for n in range(1 + recording % 3)]
    true = {qid: [[10.0, 10.0 + 4 * float(rng.integers(1, 8))]] for qid in qids}
    summaries = []
    for spread in (3.0, 8.0):
        answers = {
            qid: [[start + float(rng.normal() * spread), end + float(rng.normal())] for _ in range(3)]
            for qid, [[start, end]] in true.items()
        }
        answers = {qid: [[min(window), max(window)] for window in each] for qid, each in answers.items()}
        summaries.append(summarise_moments(answers, truth_of(true), E2026))
    return summaries[0], summaries[1]


@pytest.mark.parametrize("metric", E2026.metrics)
@pytest.mark.parametrize("seed", range(2))
def test_p_value_of_moment_systems_matches_enumeration_of_all_swaps_of_recordings(metric: str, seed: int) -> None:
    first, second = random_systems(seed)
    vids = [qid.partition("_")[0] for qid in first.queries.texts]
    difference = first.per_query[metric] - second.per_query[metric]
    sums = [sum(d for d, vid in zip(difference, vids, strict=True) if vid == each) for each in dict.fromkeys(vids)]
    ways = [
        abs(sum(s * part for s, part in zip(signs, sums, strict=True)))
        for signs in itertools.product((1, -1), repeat=9)
    ]
    exact = sum(way >= abs(sum(sums)) - 1e-12 for way in ways) / len(ways)
    found = compare(first, [second], metric)
    assert found.p == pytest.approx(exact, abs=0.015)
    assert (found.n_groups, found.mean) == (9, pytest.approx(float(difference.mean())))
    assert found.better == np.count_nonzero(difference > 0)


def test_comparison_of_moment_systems_uses_the_primary_metric_in_any_line_order() -> None:
    first, second = random_systems(0)
    assert compare(first, [second]) == compare(first, [second], "R1@0.7")
    assert compare(first, [second]) != compare(first, [second], "mAP")
    answers: Answers = {"b_1": [[0, 10]], "a_1": [[5, 9]], "a_2": [[0, 10]]}
    true: Answers = {"a_1": [[0, 10]], "a_2": [[0, 10]], "b_1": [[0, 10]]}
    here = summarise_moments({qid: answers[qid] for qid in true}, truth_of(true), E2026)
    there = summarise_moments(answers, truth_of(true), E2026)
    assert there.queries.texts == ["b_1", "a_1", "a_2"]
    assert (compare(here, [there]).mean, compare(here, [there]).equal) == (0, 3)
    with pytest.raises(SubmissionError, match="different"):
        compare(here, [hits_and_misses({"a_1": 1, "a_2": 1})])


def test_moment_system_is_compared_with_the_mean_metric_of_several_other_systems() -> None:
    system, one, none = (hits_and_misses({"a_1": x, "b_1": y}) for x, y in ((1, 1), (1, 0), (0, 0)))
    assert compare(system, [one, none]).mean == 0.75


def test_moment_metrics_of_a_single_recording_have_no_interval() -> None:
    summary = hits_and_misses({"a_1": 1, "a_2": 0})
    assert all(math.isnan(bound) for interval in summary.bootstraps.values() for bound in interval)
    assert "R1@0.7       50.00 %  95 % no interval, because there is only one group of queries" in summary.lines()


def test_summary_notes_dropped_true_windows_and_queries() -> None:
    true: Answers = {"a_1": [[0, 10], [3, 3]], "b_1": [[4, 2]], "c_1": [[0, 1501]], "d_1": []}
    summary = summarise_moments({qid: [[0, 10]] for qid in true}, truth_of(true), E2026)
    assert summary.notes == [
        "left out: 3 true windows of no length or longer than 1500 s",
        "left out, because they have no true window: query b_1 and 2 more queries",
    ]
    assert hits_and_misses({"a_1": 1}).notes == []
    assert summarise_moments({"a": [[0, 1]]}, truth_of({"a": [[0, 1]]}, None), E2026).chance is None


def test_chance_level_of_moment_metrics_is_missing_if_a_recording_length_is_unknown() -> None:
    truth = truth_of({"a_1": [[0, 10]], "b_1": [[0, 10]]})
    known = truth.queries["a_1"]
    assert summarise_moments({"a_1": [[0, 10]], "b_1": [[0, 10]]}, truth, E2026).chance == 0
    some = MomentTruth({"a_1": replace(known, seconds=None), "b_1": truth.queries["b_1"]}, "truth.jsonl", [])
    assert summarise_moments({"a_1": [[0, 10]], "b_1": [[0, 10]]}, some, E2026).chance is None


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def castella(goldens: Path, folder: Path) -> tuple[Path, Path]:
    """The baseline's predictions for CASTELLA's validation queries, and these queries; all but three texts are
    invented.
    """
    val = json.loads((goldens / "moments_2026.json").read_text())["castella_val"]
    texts = {qid: {"qid": qid, "query": "?", "vid": qid.rpartition("_")[0]} for qid in val["truth"]}
    lines = [texts[qid] | {"pred_relevant_windows": windows} for qid, windows in val["predictions"].items()]
    true = [texts[q] | {"duration": val["durations"][q], "relevant_windows": each} for q, each in val["truth"].items()]
    lines[:3], true[:3] = val["first_lines"], val["first_truths"]
    return write_lines(folder / "preds.jsonl", lines), write_lines(folder / "truth.jsonl", true)


def test_summary_of_the_baselines_moment_file_has_the_published_figures(goldens: Path, tmp_path: Path) -> None:
    path, true = castella(goldens, tmp_path)
    truth = read_moment_truth(true, E2026)
    summary = summarise_moments_file(path, truth, E2026)
    lines = summary.lines(by_length=True)
    assert lines[:2] == ["queries     352", "recordings  178"]
    figures = {line.split()[0]: float(line.split()[1]) for line in lines[2:7]}
    assert figures == {"R1@0.5": 27.56, "R1@0.7": 16.19, "mAP": 11.44, "mAP@0.5": 24.02, "mAP@0.75": 10.26}
    low, high = summary.bootstrap
    assert f"R1@0.7       16.19 %  95 % {100 * low:.2f} to {100 * high:.2f} %" in lines
    assert 0.06 < high - low < 0.09
    assert 0.06 < summary.interval[1] - summary.interval[0] < 0.09  # queries of these recordings are hardly alike
    by_length = json.loads((goldens / "moments_2026.json").read_text())["castella_val"]["by_length"]
    for name, expected in by_length.items():
        line = next(line for line in lines if line.startswith(name))
        assert f"R1@0.7 {expected['MR-R1']['0.7']:.2f} %  mAP {expected['MR-mAP']['average']:.2f} %  " in line
        assert f"({expected['queries']} queries)" in line
    notes = "\n".join(summary.notes)
    assert "preds.jsonl: 9 x a window has no length (`check` lists each)" in notes
    assert "truth.jsonl: " in notes
    assert "scores" not in notes


def test_faulty_moment_file_is_not_summarised(goldens: Path, tmp_path: Path) -> None:
    path, true = castella(goldens, tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))
    with pytest.raises(SubmissionError, match="whole"):
        summarise_moments_file(path, read_moment_truth(true, E2026), E2026)
