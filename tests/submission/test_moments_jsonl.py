"""Files of moments and their truths: faults and oddities by line, random damage, and the published files."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from data_tools.errors import KitError
from submission.editions import MOMENTS, get_edition, get_moments_edition
from submission.errors import SubmissionError
from submission.formats.csv_table import Problem
from submission.formats.moments_jsonl import check_moments, is_scored, read_moments, write_moments
from submission.formats.moments_truth import MomentTruth, check_moment_truth, format_size, is_truth, read_moment_truth
from submission.metrics import moment_metrics

E2026 = MOMENTS["2026"]
QUERIES = [
    {"qid": "a_1", "query": "A dog barks, far", "duration": 60, "vid": "a", "relevant_windows": [[10, 20], [30, 41.5]]},
    {"qid": "a_2", "query": 'Someone says "ü"', "duration": 60, "vid": "a", "relevant_windows": [[0, 60]]},
    {"qid": "b_1", "query": "Rain", "duration": 30, "vid": "b", "relevant_windows": [[5, 6]]},
]
SCORED = [[[10.0, 20.0, 0.9], [31, 40, 0.25]], [[1, 59, 0.5]], [[4, 6, 0.75], [0, 1, 0.5], [8, 9, 0.5]]]


def truth_bytes(queries: list[dict[str, Any]] = QUERIES) -> bytes:
    return "".join(json.dumps(query) + "\n" for query in queries).encode()


def answers(scored: bool = True) -> list[dict[str, Any]]:
    return [
        {key: query[key] for key in ("qid", "query", "vid")}
        | {"pred_relevant_windows": [window if scored else window[:2] for window in windows]}
        for query, windows in zip(QUERIES, SCORED, strict=True)
    ]


def answer_bytes(scored: bool = True, **changes: Any) -> bytes:
    """Return a file of answers. changes: of the second line."""
    lines = answers(scored)
    lines[1] |= changes
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def windows_on_line_2(windows: Any, scored: bool = False) -> bytes:
    return answer_bytes(scored, pred_relevant_windows=windows)


def truth(queries: list[dict[str, Any]] = QUERIES) -> MomentTruth:
    found, problems, notes = check_moment_truth(truth_bytes(queries), E2026)
    assert not problems
    return MomentTruth(found, "truth.jsonl", notes)


def require(problems: list[Problem], expected: list[str]) -> None:
    found = [str(problem) for problem in problems]
    assert len(found) == len(expected), found
    for line, pattern in zip(found, expected, strict=True):
        assert re.match(pattern, line), (line, pattern)


def test_moment_files_with_and_without_scores_are_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for scored in (True, False):
        path.write_bytes(answer_bytes(scored).replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
        found = read_moments(path, E2026, truth())
        assert [each.line for each in found] == [1, 2, 3]
        assert [each.windows for each in found] == [line["pred_relevant_windows"] for line in answers(scored)]
        assert (found[1].qid, found[1].query, found[1].vid) == ("a_2", 'Someone says "ü"', "a")
        assert is_scored(found) == scored


def test_ground_truth_of_moments_is_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(truth_bytes([*QUERIES, {"qid": "c", "query": "q", "vid": "c", "relevant_windows": [[1, 2]]}]))
    found = read_moment_truth(path, E2026)
    assert found.windows() == {"a_1": [[10, 20], [30, 41.5]], "a_2": [[0, 60]], "b_1": [[5, 6]], "c": [[1, 2]]}
    assert [(query.vid, query.seconds) for query in found.queries.values()][2:] == [("b", 30), ("c", None)]
    assert (format_size(found), found.notes, found.is_blind) == ("4 queries of 3 recordings", [], False)
    assert is_truth(path.read_bytes())
    assert not is_truth(answer_bytes())
    assert not is_truth(answer_bytes().replace(b'{"qid"', b'{"relevant_windows": [], "qid"'))


GOOD = answer_bytes().splitlines(keepends=True)
SCORES = "whole file: windows have scores, which the public scorer needs, but a submission must not"
FAULTS: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b" \n", ["line 1: the file is empty"]),
    "list": (
        json.dumps(answers()).encode(),
        ["line 1: the file is one list of JSON, not lines of JSON; write one object per line"],
    ),
    "mark": (b"\xef\xbb\xbf" + answer_bytes(), ["line 1: the file starts with a byte order mark"]),
    "blank line": (GOOD[0] + b"\n" + GOOD[1] + GOOD[2], ["line 2: the line is empty; remove it"]),
    "not json": (GOOD[0] + b"{'qid'}\n" + GOOD[2], ["line 2: not JSON", "whole file: no line for the query 'a_2'"]),
    "cut": (b"".join(GOOD)[:-9], ["line 3: not JSON", r"whole file: no line for .*'b_1' \(line 3 of truth.jsonl\)"]),
    "not utf8": (GOOD[0] + GOOD[1].decode().encode("latin-1") + GOOD[2], ["line 2: not UTF-8", "whole file: no line"]),
    "no object": (b"".join(GOOD) + b"[]\n", [r"line 4: the line must be an object \{...\}, not '\[\]'"]),
    "vast": (windows_on_line_2([[0, 10**399]]), ["line 2: window 1 contains a value that is not a number"]),
    "far": (
        windows_on_line_2([[0, 1], [0, 2e9]]),
        [r"line 2: window 2 has a time beyond 1e\+09 s: '\[0, 2000000000.0\]'"],
    ),
    "no windows key": (
        truth_bytes(),
        [f"line {n}: the key pred_relevant_windows is missing; give the file" for n in (1, 2, 3)],
    ),
    "none": (windows_on_line_2([]), ["line 2: pred_relevant_windows is empty; each query needs at least one window"]),
    "no list": (windows_on_line_2({"a": 1}), ["line 2: pred_relevant_windows must be a list of windows, not"]),
    "null": (windows_on_line_2(None), ["line 2: pred_relevant_windows must be a list of windows, not 'None'"]),
    "one number": (
        windows_on_line_2([[3]]),
        [r"line 2: window 1 must be \[start, end\] or \[start, end, score\], not"],
    ),
    "four numbers": (windows_on_line_2([[1, 2], [1, 2, 3, 4]]), [r"line 2: window 2 must be \[start, end\] or"]),
    "no window": (windows_on_line_2([7]), [r"line 2: window 1 must be \[start, end\] or .* not '7'"]),
    "text": (
        windows_on_line_2([[1, "2"]]),
        [r"line 2: window 1 contains a value that is not a number: \"\[1, '2'\]\""],
    ),
    "true": (
        windows_on_line_2([[0, True]]),
        [r"line 2: window 1 contains a value that is not a number: '\[0, True\]'"],
    ),
    "reversed": (windows_on_line_2([[1, 2], [9, 5]]), [r"line 2: window 2 ends before it starts: '\[9, 5\]'"]),
    "both forms": (
        windows_on_line_2([[1, 2]], True),
        ["line 2: window 1 has no score, but the first window of line 1 has one"],
    ),
    "both in one": (
        windows_on_line_2([[1, 2], [1, 2, 3]]),
        ["line 2: window 2 has a score, but the first window of line 1 has"],
    ),
    "no qid": (
        answer_bytes(qid="").replace(b'"qid": ""', b'"id": 1'),
        ["line 2: qid is missing", "whole file: no line"],
    ),
    "qid a number": (answer_bytes(qid=7), ["line 2: qid must be text, not '7'; put it in double quotes", "whole file"]),
    "qid null": (answer_bytes(qid=None), ["line 2: qid must be text, not 'None'; write it as text", "whole file: no"]),
    "blank qid": (answer_bytes(qid=" "), ["line 2: qid is empty", "whole file: no line for the query 'a_2'"]),
    "twice": (
        answer_bytes(qid="a_1"),
        ["line 2: the query 'a_1' is repeated; it is already on line 1", "whole file: no line for the query 'a_2'"],
    ),
    "unknown": (
        answer_bytes(qid="A_2"),
        ["line 2: unknown query 'A_2'; the most similar known one is 'a_2', which differs", "who"],
    ),
    "missing": (GOOD[0] + GOOD[1], [r"whole file: no line for the query 'b_1' \(line 3 of truth.jsonl\)"]),
    "another set": (
        answer_bytes().replace(b'_1"', b'_9"').replace(b'_2"', b'_8"'),
        ["whole file: no query of this file"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_moment_answers_are_refused_with_their_lines(name: str, tmp_path: Path) -> None:
    data, expected = FAULTS[name]
    _, problems, _ = check_moments(data, E2026, truth())
    require(problems, expected)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    more = rf" \(and {len(expected) - 1} more problems?; `check` lists all\)$" if len(expected) > 1 else ""
    with pytest.raises(SubmissionError, match=rf"bad\.jsonl: {expected[0]}.*{more}"):
        read_moments(path, E2026, truth())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (answer_bytes(False), []),
        (answer_bytes(True), [SCORES]),
        (windows_on_line_2([[3, 3]]), [r"line 2: window 1, \[3, 3\], has no length"]),
        (windows_on_line_2([[0, 60]]), []),
        (
            windows_on_line_2([[60, 61], [-4, 0]]),
            [r"line 2: .*\[60, 61\], is outside", r"line 2: .*\[-4, 0\], is out"],
        ),
        (windows_on_line_2([[-0.5, 3]]), [r"line 2: window 1, \[-0.5, 3\], begins before the recording"]),
        (
            windows_on_line_2([[50, 60.5]]),
            [r"line 2: window 1, \[50, 60.5\], ends after the recording, which lasts 60 s"],
        ),
        (windows_on_line_2([[0, 1], [1, 2], [0, 1.0]]), ["line 2: window 3 repeats window 1"]),
        (windows_on_line_2([[n, n + 1] for n in range(10)]), []),
        (
            windows_on_line_2([[n, n + 1] for n in range(11)]),
            ["line 2: the line has 11 windows, but metrics use only the first 10"],
        ),
        (windows_on_line_2([[0, 1, 0.5], [1, 2, 0.5]], True), [SCORES]),
        (
            windows_on_line_2([[0, 1, 0.4], [1, 2, 0.5]], True),
            ["line 2: windows are not sorted by descending score", SCORES],
        ),
        (
            answer_bytes(False, query="Rain"),
            ["line 2: query is 'Rain', but 'Someone says \"ü\"' in the truth; correct it"],
        ),
        (
            answer_bytes(False, vid="b"),
            ["line 2: vid is 'b', but 'a' in the truth; correct it"],
        ),
        (
            answer_bytes(False, vid=None),
            ["line 2: the key vid is missing; add it before you submit the file"],
        ),
        (
            b"".join(reversed(answer_bytes(False).splitlines(keepends=True))),
            ["whole file: the queries of this file are in another"],
        ),
    ],
)
def test_moment_answers_with_oddities_are_read_and_noted(data: bytes, expected: list[str], tmp_path: Path) -> None:
    found, problems, notes = check_moments(data, E2026, truth())
    assert (problems, len(found)) == ([], 3)
    require(notes, expected)


def test_check_uses_the_duration_in_an_answer_if_no_truth_is_given() -> None:
    assert check_moments(windows_on_line_2([[50, 70]]), E2026)[1:] == ([], [])
    for duration, expected in ((60, ["line 2: window 1, .* ends after the recording"]), ("60", []), (None, [])):
        data = answer_bytes(False, pred_relevant_windows=[[50, 70]], duration=duration)
        require(check_moments(data, E2026)[2], expected)


def change(number: int, **changes: Any) -> list[dict[str, Any]]:
    """Return the queries with other values on one line; the value ... removes the key."""
    queries = [dict(query) for query in QUERIES]
    queries[number - 1] = {k: v for k, v in (queries[number - 1] | changes).items() if v is not ...}
    return queries


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (change(2, qid="a_1"), ["line 2: the query 'a_1' is repeated; it is already on line 1"]),
        (change(2, qid=2), ["line 2: qid must be text, not '2'"]),
        (
            answers(),
            [
                f"line {n}: pred_relevant_windows is a key of found windows, not of queries; give the file of"
                for n in (1, 2, 3)
            ],
        ),
        (change(2, vid=...), ["line 2: vid is missing"]),
        (change(2, query=" "), ["line 2: query is empty"]),
        (change(2, duration=0), ["line 2: duration must be a number of seconds above 0, not '0'"]),
        (change(2, duration="60"), ["line 2: duration must be a number of seconds above 0, not \"'60'\""]),
        (
            change(2, relevant_windows=...),
            ["line 2: the line has no relevant_windows, unlike the first line; give this key in all lines or in none"],
        ),
        (
            change(1, relevant_windows=...),
            ["line 2: the line has relevant_windows, unlike the first line", "line 3: the line has relevant"],
        ),
        (change(2, relevant_windows=7), [r"line 2: relevant_windows must be a list of \[start, end\], not '7'"]),
        (change(2, relevant_windows=[[1, 2, 3]]), [r"line 2: window 1 must be \[start, end\], not '\[1, 2, 3\]'"]),
        (change(2, relevant_windows=[[1, None]]), ["line 2: window 1 contains a value that is not a number"]),
        (change(2, relevant_windows=[[1, float("inf")]]), ["line 2: window 1"]),
    ],
)
def test_faulty_ground_truth_of_moments_is_refused_with_line_numbers(
    queries: list[dict[str, Any]], expected: list[str], tmp_path: Path
) -> None:
    require(check_moment_truth(truth_bytes(queries), E2026)[1], expected)
    (tmp_path / "t.jsonl").write_bytes(truth_bytes(queries))
    with pytest.raises(SubmissionError, match=rf"t\.jsonl: {expected[0]}"):
        read_moment_truth(tmp_path / "t.jsonl", E2026)


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (change(2, relevant_windows=[]), ["line 2: the query 'a_2' has no true window, so metrics leave it out"]),
        (change(2, relevant_windows=[[3, 3], [5, 4]]),
         [r"line 2: the true window \[3, 3\] has no length and is not", r"line 2: the true window \[5, 4\] has no"]),
        (change(2, duration=..., relevant_windows=[[0, 1500], [0, 1500.5]]),
         [r"line 2: the true window \[0, 1500.5\] is longer than 1500 s and is not", "line 2: the recording 'a'"]),
        (change(2, relevant_windows=[[-1, 3]]), [r"line 2: the true window \[-1, 3\] begins before the recording"]),
        (change(2, relevant_windows=[[55, 61]]), [r"line 2: .* \[55, 61\] ends after the end of the recording, .*"]),
        (change(2, relevant_windows=[[60, 61]]), [r"line 2: .* \[60, 61\] begins after the end of the recording"]),
        (change(2, duration=61), ["line 2: the recording 'a' has different lengths, 61 s and 60 s"]),
    ],
)  # fmt: skip
def test_ground_truth_of_moments_with_oddities_is_read_and_noted(
    queries: list[dict[str, Any]], expected: list[str]
) -> None:
    assert len(truth(queries).queries) == 3
    require(truth(queries).notes, expected)


def test_scoring_against_a_blind_list_of_moments_is_refused() -> None:
    blind = truth([{key: query[key] for key in ("qid", "query", "duration", "vid")} for query in QUERIES])
    assert blind.is_blind
    assert check_moments(answer_bytes(False), E2026, blind)[1:] == ([], [])
    with pytest.raises(SubmissionError, match="true"):
        blind.windows()


def test_written_moment_submission_has_the_10_best_windows_sorted_and_without_scores(tmp_path: Path) -> None:
    windows = [[n, n + 1.5, round(0.1 * (n % 6), 1)] for n in range(12)]
    path, out = tmp_path / "dev.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(answer_bytes(pred_relevant_windows=windows))
    write_moments(out, read_moments(path, E2026), E2026)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0] == answers(False)[0]
    assert [start for start, _ in lines[1]["pred_relevant_windows"]] == [5, 11, 4, 10, 3, 9, 2, 8, 1, 7]
    assert check_moments(out.read_bytes(), E2026, truth())[1:] == ([], [])
    write_moments(tmp_path / "again.jsonl", read_moments(out, E2026), E2026)
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()


def test_answer_without_query_or_recording_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    for key in ("vid", "query"):
        path.write_bytes(answer_bytes(**{key: None}))
        with pytest.raises(
            SubmissionError, match=f"line 2: the key {key} is missing; add it, since a submission needs it"
        ):
            write_moments(tmp_path / "out.jsonl", read_moments(path, E2026), E2026)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_randomly_damaged_moment_files_are_read_or_refused_without_a_crash(tmp_path: Path) -> None:
    """After a change of a byte, a bracket or a number, the file is valid or raises KitError, never another error."""
    rng = random.Random(2026)
    path = tmp_path / "x.jsonl"
    sentences = []
    for number in range(1500):
        data = bytearray(truth_bytes() if number % 2 else answer_bytes())
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 3)] = rng.choice(
                [b"", b"[", b"}", b"\n", b"9e9", b"-", b'"', b"\xff", b"null"]
            )
        path.write_bytes(bytes(data))
        try:
            if number % 2:
                read_moment_truth(path, E2026)
            else:
                write_moments(tmp_path / "y.jsonl", read_moments(path, E2026, truth()), E2026)
        except KitError as error:
            sentences.append(str(error))
    assert 300 < len(sentences) < 1500
    assert all(
        re.search(r"x\.jsonl: (line \d+|whole file): |line \d+: the key \w+ is missing", text) for text in sentences
    )


def test_published_moment_files_are_read(goldens: Path, tmp_path: Path) -> None:
    golden = json.loads((goldens / "moments_2026.json").read_text())
    blind = tmp_path / "blind.jsonl"
    blind.write_text("".join(json.dumps(query) + "\n" for query in golden["evaluation_queries"]))
    listed = read_moment_truth(blind, E2026)
    assert (format_size(listed), listed.notes, listed.is_blind) == ("177 queries of 100 recordings", [], True)
    val = golden["castella_val"]
    texts = {qid: {"qid": qid, "query": "?", "vid": qid.rpartition("_")[0]} for qid in val["truth"]}
    truths = [
        texts[qid] | {"duration": val["durations"][qid], "relevant_windows": w} for qid, w in val["truth"].items()
    ]
    truths[:3] = val["first_truths"]
    known = truth(truths)
    assert format_size(known) == "352 queries of 178 recordings"
    behind = {"a true window ends after the end", "a true window begins after the end"}
    assert [note.kind in behind for note in known.notes] == [True] * 12
    lines = [texts[qid] | {"pred_relevant_windows": windows} for qid, windows in val["predictions"].items()]
    lines[:3] = val["first_lines"]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    found, problems, notes = check_moments(data, E2026, known)
    assert (len(found), problems) == (352, [])
    assert sum(note.kind == "a window has no length" for note in notes) == 9  # of 3,520


def test_edition_2026_has_the_limits_that_the_moment_metrics_use() -> None:
    assert (E2026.thresholds, E2026.max_windows) == (moment_metrics.THRESHOLDS, moment_metrics.MAX_WINDOWS)
    assert (E2026.max_seconds, E2026.lengths) == (moment_metrics.MAX_SECONDS, moment_metrics.LENGTHS)
    assert get_moments_edition() is get_moments_edition(2026) is E2026
    for name, message in ((2025, "edition 2025 ranks clips, not moments; choose one of: 2026"),
                          (1999, "edition 1999 is unknown; choose one of: 2026")):  # fmt: skip
        with pytest.raises(SubmissionError, match=message):
            get_moments_edition(name)
    with pytest.raises(SubmissionError, match="finds"):
        get_edition(2026)
