"""Moments at the command line: check, score, compare, write and facts, and every refusal."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from schemas import published

from submission.__main__ import main

QUERIES = [
    {"qid": f"{vid}_{n}", "query": f"Sound {n} of {vid}", "duration": 60, "vid": vid}
    | {"relevant_windows": [[10 * n, 10 * n + 5]]}
    for vid in "abcdef"
    for n in (1, 2)
]


def write_lines(name: str, lines: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def answers(found: Callable[[int], bool], scored: bool = True) -> list[dict[str, Any]]:
    """Return two windows per query: the right one is first if `found` is true for the query's position, else second."""
    lines = []
    for place, query in enumerate(QUERIES):
        right = [float(second) for second in query["relevant_windows"][0]]  # type: ignore[attr-defined]
        windows = [right, [40.0, 43.0]] if found(place) else [[40.0, 43.0], right]
        if scored:
            windows = [[*window, score] for window, score in zip(windows, (0.75, 0.5), strict=True)]
        lines.append({key: query[key] for key in ("qid", "query", "vid")} | {"pred_relevant_windows": windows})
    return lines


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files of a test: truth.jsonl and blind.jsonl; all.jsonl is right, half.jsonl is right for the first
    recordings, bare.jsonl is half.jsonl without scores, and none.jsonl has the right window second everywhere.
    """
    monkeypatch.chdir(tmp_path)
    write_lines("truth.jsonl", QUERIES)
    write_lines("blind.jsonl", [{k: v for k, v in query.items() if k != "relevant_windows"} for query in QUERIES])
    write_lines("all.jsonl", answers(lambda place: True))
    write_lines("half.jsonl", answers(lambda place: place < 6))
    write_lines("bare.jsonl", answers(lambda place: place < 6, scored=False))
    write_lines("none.jsonl", answers(lambda place: False))
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    capsys.readouterr()
    assert main([*arguments]) == status
    return capsys.readouterr().out.splitlines()


def report(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    found = json.loads("\n".join(output(capsys, *arguments, "--json", status=status)))
    Draft202012Validator(json.loads(published("submission", arguments[0]).read_text())).validate(found)
    return found


def test_score_verb_prints_moment_metrics_in_per_cent_with_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    for edition in ([], ["--edition", "2026"]):
        lines = output(capsys, "score", "half.jsonl", "--truth", "truth.jsonl", *edition)
        assert lines[:2] == ["queries     12", "recordings  6"]
        assert lines[3].startswith("R1@0.7       50.00 %  95 % ")
        assert lines[4].startswith("mAP          75.00 %  95 % ")
        assert "trivial       0.00 %  R1@0.7 if each answer is the whole recording" in lines
        assert len(lines) == 9
    bare = output(capsys, "score", "bare.jsonl", "--truth", "truth.jsonl")
    assert bare == output(capsys, "score", "half.jsonl", "--truth", "truth.jsonl")


def test_score_verb_prints_moment_metrics_by_window_length(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "score", "half.jsonl", "--truth", "truth.jsonl", "--by-length")
    figures = "R1@0.5 50.00 %  R1@0.7 50.00 %  mAP 75.00 %  mAP@0.5 75.00 %  mAP@0.75 75.00 %  (12 queries)"
    assert f"short       {figures}" in lines
    assert "middle      no query has a true window of this length" in lines
    found = report(capsys, "score", "half.jsonl", "--truth", "truth.jsonl", "--by-length")
    assert (found["values"]["mAP short"], found["values"]["mAP"]) == (0.75, 0.75)
    assert "mAP middle" not in found["values"]


def test_score_json_follows_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "score", "half.jsonl", "--truth", "truth.jsonl")
    assert (found["queries"], found["pool"], found["primary"], found["chance"]) == (12, 6, "R1@0.7", 0)
    assert found["values"] == {"R1@0.5": 0.5, "R1@0.7": 0.5, "mAP": 0.75, "mAP@0.5": 0.75, "mAP@0.75": 0.75}
    assert found["median_rank"] is None
    low, high = found["bootstrap"]
    assert low < 0.2 < 0.8 < high  # three recordings of six
    write_lines("truth.jsonl", [{k: v for k, v in query.items() if k != "duration"} for query in QUERIES])
    assert report(capsys, "score", "half.jsonl", "--truth", "truth.jsonl")["chance"] is None


def test_score_verb_writes_a_table_with_one_line_per_moment_query(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "score", "half.jsonl", "--truth", "truth.jsonl", "--per-query", "q.csv")
    rows = list(csv.DictReader(Path("q.csv").read_text().splitlines()))
    assert [row["query"] for row in rows] == [query["qid"] for query in QUERIES]
    assert [(row["R1@0.7"], row["AP"], row["IoU"]) for row in (rows[0], rows[6])] == [
        ("1", "1", "1"),
        ("0", "0.5", "0"),
    ]


def test_compare_verb_swaps_whole_recordings_and_prints_every_moment_metric(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "compare", "all.jsonl", "half.jsonl", "--truth", "truth.jsonl")
    assert lines[:2] == ["100.00 %  all.jsonl", "50.00 %  half.jsonl"]
    assert lines[2].startswith("+50.00 %  R1@0.7, the first minus the second; 95 % +")
    # Three recordings differ, so that 2 of 2^3 ways to flip them are as extreme.
    assert lines[3].endswith("paired randomisation test with 6 groups of queries that share their recording")
    assert float(lines[3].split()[1]) == pytest.approx(0.25, abs=0.02)
    assert lines[4] == "the first is better for 6 queries, equal for 6, worse for 0"
    assert [line.split()[2] for line in lines[2::3]] == ["R1@0.7,", "R1@0.5,", "mAP,", "mAP@0.5,", "mAP@0.75,"]
    assert lines[8].startswith("+25.00 %  mAP, ")
    found = report(capsys, "compare", "all.jsonl", "half.jsonl", "none.jsonl", "--truth", "truth.jsonl")
    assert (found["difference"], found["groups"], found["primary"]) == (0.75, 6, "R1@0.7")


def test_check_verb_accepts_valid_moment_files_and_notes_oddities(capsys: pytest.CaptureFixture[str]) -> None:
    for against in (
        ["--truth", "truth.jsonl"],
        ["--queries", "blind.jsonl"],
        ["--queries", "blind.jsonl", "--edition", "2026"],
    ):
        assert output(capsys, "check", "bare.jsonl", *against) == ["ok: 12 queries, 24 windows without scores"]
    assert output(capsys, "check", "bare.jsonl")[1:] == [
        "note: the queries were not compared with a truth; add --truth, or --queries for a blind list"
    ]
    lines = answers(lambda place: True, scored=False)
    lines[2]["pred_relevant_windows"] = [[5, 5], [50, 70], [0, 1]]
    write_lines("odd.jsonl", lines)
    assert output(capsys, "check", "odd.jsonl", "--truth", "truth.jsonl") == [
        "note: line 3: window 1, [5, 5], has no length",
        "note: line 3: window 2, [50, 70], ends after the recording, which lasts 60 s",
        "ok: 12 queries, 25 windows without scores",
    ]
    found = report(capsys, "check", "odd.jsonl", "--truth", "truth.jsonl")
    assert (found["ok"], found["compared"], found["columns"], found["edition"]) == (True, True, 3, "2026")
    assert (found["notes"][0]["line"], found["notes"][0]["kind"]) == (3, "a window has no length")


def test_check_verb_counts_repeated_oddities_of_the_same_kind_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    windows = [[n, n] for n in range(25)]
    write_lines("odd.jsonl", [{"qid": "a", "query": "q", "vid": "v", "pred_relevant_windows": windows}])
    lines = output(capsys, "check", "odd.jsonl")
    assert "note: lines 1: 5 more problems of the kind: a window has no length (`check --all` prints each)" in lines
    assert len(output(capsys, "check", "odd.jsonl", "--all")) == len(lines) + 4


def test_check_verb_lists_problems_of_a_file_that_score_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    lines = answers(lambda place: True)
    lines[1]["pred_relevant_windows"] = [[9.0, 3.0, 0.5]]
    lines[3]["qid"] = "x_9"
    write_lines("bad.jsonl", lines)
    assert output(capsys, "check", "bad.jsonl", "--truth", "truth.jsonl", status=1) == [
        "line 2: window 1 ends before it starts: '[9.0, 3.0, 0.5]'",
        "line 4: unknown query 'x_9'",
        "whole file: no line for the query 'b_2' (line 4 of truth.jsonl)",
    ]
    found = report(capsys, "check", "bad.jsonl", "--truth", "truth.jsonl", status=1)
    assert (found["ok"], len(found["problems"])) == (False, 3)
    assert main(["score", "bad.jsonl", "--truth", "truth.jsonl"]) == 1
    assert re.fullmatch(r"error: bad\.jsonl: line 2: .*\[9\.0, 3\.0, 0\.5\].*2 more.*\n", capsys.readouterr().err)


def test_check_verb_accepts_a_ground_truth_file_of_moments(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "check", "truth.jsonl") == ["ok: true windows for 12 queries of 6 recordings"]
    queries = [dict(query) for query in QUERIES]
    queries[1]["relevant_windows"] = [[55, 61]]
    write_lines("truth.jsonl", queries)
    assert output(capsys, "check", "truth.jsonl")[0].startswith("note: line 2: the true window [55, 61] ends after")
    queries[1]["qid"] = "a_1"
    write_lines("truth.jsonl", queries)
    problem = "line 2: the query 'a_1' is repeated; it is already on line 1"
    assert output(capsys, "check", "truth.jsonl", status=1) == [problem]


def test_check_gives_one_error_for_a_moments_file_of_the_kit_or_a_list_without_windows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [{"id": "a_1", "text": "Rain", "clip": "a", "windows": windows} for windows in ([[0, 5]], None)]
    write_lines("moments.jsonl", own)
    said = "this is the kit's internal file of moments, with the keys id, text, clip, windows; "
    said += "give the published list, whose lines "
    assert main(["check", "bare.jsonl", "--queries", "moments.jsonl"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"error: moments.jsonl: whole file: {said}have qid, query and vid\n")
    assert output(capsys, "check", "moments.jsonl", status=1) == [f"whole file: {said}have qid, query and vid"]
    without = "this is a list of queries without windows; give the file with your windows, "
    without += "and add --queries with this list"
    for against in ([], ["--queries", "blind.jsonl"]):
        assert output(capsys, "check", "blind.jsonl", *against, status=1) == [f"whole file: {without}"]
    assert main(["score", "blind.jsonl", "--truth", "truth.jsonl"]) == 1
    assert capsys.readouterr().err == f"error: blind.jsonl: whole file: {without}\n"


def test_wrong_or_missing_keys_of_moment_answers_are_reported_with_their_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = answers(lambda place: True, scored=False)
    write_lines("wrong.jsonl", [{k.replace("pred_", "my_"): v for k, v in line.items()} for line in lines])
    assert "line 1: the key pred_relevant_windows is missing; add it" in output(
        capsys, "check", "wrong.jsonl", status=1
    )
    write_lines("first.jsonl", [{k: v for k, v in lines[0].items() if k != "pred_relevant_windows"}, *lines[1:]])
    assert output(capsys, "check", "first.jsonl", status=1) == [
        "line 1: the key pred_relevant_windows is missing; add it"
    ]


def test_write_verb_makes_a_moment_submission_without_scores(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["wrote out.jsonl: 12 queries, at most 10 windows per query, without scores"]
    assert output(capsys, "write", "half.jsonl", "--out", "out.jsonl") == said
    assert Path("out.jsonl").read_bytes() == Path("bare.jsonl").read_bytes()
    assert output(capsys, "write", "all.jsonl", "--out", "out.jsonl", "--edition", "2026") == said
    assert output(capsys, "write", "all.jsonl", "--out", "none.jsonl", "--force") == ["wrote none.jsonl" + said[0][15:]]
    assert Path("none.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_verbs_accept_predictions_of_the_2026_baseline(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    val = json.loads((goldens / "moments_2026.json").read_text())["castella_val"]
    texts = {qid: {"qid": qid, "query": "?", "vid": qid.rpartition("_")[0]} for qid in val["truth"]}
    write_lines("p.jsonl", [texts[q] | {"pred_relevant_windows": each} for q, each in val["predictions"].items()])
    true = [texts[q] | {"duration": val["durations"][q], "relevant_windows": w} for q, w in val["truth"].items()]
    write_lines("t.jsonl", true)
    lines = output(capsys, "score", "p.jsonl", "--truth", "t.jsonl", "--edition", "2026")
    assert [float(line.split()[1]) for line in lines[2:7]] == [27.56, 16.19, 11.44, 24.02, 10.26]
    found = report(capsys, "compare", "p.jsonl", "p.jsonl", "--truth", "t.jsonl")
    assert (found["difference"], found["p"], found["groups"]) == (0, 1, 178)
    output(capsys, "write", "p.jsonl", "--out", "o.jsonl")
    assert output(capsys, "score", "o.jsonl", "--truth", "t.jsonl")[2:7] == lines[2:7]  # it is sorted by score
    assert np.isfinite([float(line.split()[5]) for line in lines[2:7]]).all()
