"""Ranked CSVs: written, checked, and read, with invented and real names."""

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from ranked import (
    CAPTIONS,
    E2022,
    NAMES,
    change_cell,
    change_line,
    check_problems,
    good_lines,
    rename,
    score_csv,
    score_matrix,
    small_matrix,
)

from submission.errors import SubmissionError
from submission.formats.csv_table import format_table, parse_table
from submission.formats.ranked_csv import check_ranked_csv, read_ranked_csv, write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import matrix_truth, read_clotho_truth


def test_written_ranked_csv_matches_expected_bytes(tmp_path: Path) -> None:
    matrix = ScoreMatrix(
        values=np.array([[0.5, 2, 0.5, -1], [0, 0, 0, 0]], dtype=np.float32),
        query_ids=["1", "2"],
        query_texts=[' Rain, "hard"', "A&#39;s"],
        clip_ids=list("wxyz"),
        file_names=["c.wav", " b.wav", "a,1.wav", "d .wav"],
        relevant=[None, None],
    )
    edition = dataclasses.replace(E2022, name="2030", rank_prefix="n_", ranking_length=3)
    write_ranked_csv(matrix, tmp_path / "out.csv", edition)
    assert (tmp_path / "out.csv").read_bytes() == (
        b'caption,n_1,n_2,n_3\n" Rain, ""hard""", b.wav,"a,1.wav",c.wav\nA&#39;s, b.wav,"a,1.wav",c.wav\n'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_ranked_csv_scores_the_same_as_its_matrix(tmp_path: Path, truth_path: Path) -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).integers(0, 5, size=(24, 12)).astype(np.float32)
        matrix = small_matrix(values=values)
        write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
        assert score_csv(tmp_path / "out.csv", truth_path).values == score_matrix(matrix).values


def test_score_matrix_with_several_relevant_clips_per_query_counts_them_all() -> None:
    values = np.tile(np.arange(12, 0, -1, dtype=np.float32), (24, 1))
    summary = score_matrix(small_matrix(values=values, relevant=[["clip1", "clip3"]] * 24), E2022)
    assert summary.values == {"R@1": 0.0, "R@5": 1.0, "R@10": 1.0, "mAP@10": 0.5}
    assert (summary.queries.n_relevant.tolist(), summary.queries.n_pool) == ([2] * 24, 12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_names": ["x.wav", *NAMES[1:11], "x.wav"]}, "'clip0' and 'clip11' have the same file name 'x.wav'"),
        ({"query_texts": ["same", *map(str, range(22)), "same"]}, "'q0' and 'q23' have the same text 'same'.*remove"),
        ({"query_texts": [" ", *map(str, range(23))]}, r"out\.csv is not written, .*: line 2: caption is empty"),
        ({"query_texts": ["a\0b", *map(str, range(23))]}, "line 2: the row contains a NUL byte"),
        ({"query_texts": ["a\ud800b", *map(str, range(23))]}, "line 2: the row is not UTF-8"),
        ({"file_names": ["", *NAMES[1:]]}, r"line \d+: file_name_\d+ is empty"),
    ],
)  # fmt: skip
def test_ambiguous_or_invalid_ranked_csv_is_not_written(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_ranked_csv(small_matrix(**changes), tmp_path / "out.csv", E2022)
    assert list(tmp_path.iterdir()) == []


def test_written_ranked_csv_equals_that_of_pandas_byte_for_byte() -> None:
    rows = [[name, *captions] for name, captions in zip(NAMES, CAPTIONS, strict=True)]
    frame = pandas.DataFrame(rows, columns=["a", "b, c", "d"])
    assert format_table([["a", "b, c", "d"], *rows]) == frame.to_csv(index=False, lineterminator="\n").encode()


def test_ranked_csv_is_refused_if_an_edition_lists_more_clips_than_the_score_matrix_has(tmp_path: Path) -> None:
    ids = list("abcdefghi")
    matrix = ScoreMatrix(np.zeros((1, 9), dtype=np.float32), ["q"], ["q"], ids, ids, [None])
    with pytest.raises(SubmissionError, match="pool"):
        write_ranked_csv(matrix, tmp_path / "out.csv", E2022)


def test_line_breaks_in_queries_survive_a_round_trip_through_a_ranked_csv(tmp_path: Path) -> None:
    texts = ["one\ntwo", "three\rfour", "five\r\nsix", *map(str, range(21))]
    matrix = small_matrix(query_texts=texts)
    write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
    ranked = read_ranked_csv(tmp_path / "out.csv", E2022, matrix_truth(matrix))
    assert [answer.query for answer in ranked] == texts
    # Editors count line feeds: the rows after a cell that holds one start a line later each time.
    assert [answer.line for answer in ranked[:5]] == [2, 4, 5, 7, 8]


FORM_FAULTS: list[tuple[str, Callable[[list[bytes]], bytes], list[str]]] = [
    ("empty file", lambda lines: b"", [r"line 1: the file is empty"]),
    ("only a header", lambda lines: lines[0], [r"line 1: no row follows the header"]),
    ("only an empty line", lambda lines: b"\n", [r"line 1: found 0 of 11 columns; the header of edition 2022 is capt"]),
    ("header of another year", change_line(1, lambda line: line.replace(b"file_name_", b"fname_")),
     [r"line 1: this is the header of edition 2023 and 2024: add --edition 2023 or --edition 2024; the"]),
    ("header missing", lambda lines: b"".join(lines[1:]), [r"line 1: the header is missing; the header of ed"]),
    ("header short", change_line(1, lambda line: line.replace(b",file_name_10", b"")),
     [r"line 1: found 10 of 11 columns"]),
    ("header with blanks", change_line(1, lambda line: line.replace(b",", b", ")),
     [r"line 1: column 2 is ' file_name_1' instead"]),
    ("byte order mark", lambda lines: b"\xef\xbb\xbf" + b"".join(lines), [r"line 1: .* byte order mark"]),
    ("UTF-16", lambda lines: b"".join(lines).decode().encode("utf-16"), [r"line 1: the file is not UTF-8 but UTF-16"]),
    ("Latin-1 row", change_line(13, lambda line: b"Soun\xe9" + line),
     [r"line 13: the row is not UTF-8 \(character 5 is the byte 0xE9, 'é' in Latin-1\)"]),
    ("Latin-1 header", change_line(1, lambda line: b"\xe9" + line), [r"line 1: the row is not UTF-8"]),
    ("NUL bytes", change_line(6, lambda line: line.replace(b"Sound", b"So\0und")), [r"line 6: the row contains a NUL"]),
    ("short row", change_line(5, lambda line: line.rsplit(b",", 1)[0] + b"\n"), [r"line 5: found 10 of 11 columns"]),
    ("long row", change_line(4, lambda line: line.rstrip() + b",x.wav\n"), [r"line 4: found 12 of 11 columns"]),
    ("trailing comma", change_line(4, lambda line: line.rstrip() + b",\n"), [r"line 4: a comma at the end"]),
    ("empty line", change_line(4, lambda line: b"\n" + line), [r"line 4: the line is empty"]),
    ("empty last line", lambda lines: b"".join(lines) + b"\n", [r"line 26: the line is empty"]),
    ("empty name", change_cell(9, 4, lambda cell: ""), [r"line 9: file_name_4 is empty"]),
    ("blank name", change_cell(9, 10, lambda cell: "  "), [r"line 9: file_name_10 is empty"]),
    ("two empty names", lambda lines: change_line(9, lambda line: b"q,,a,,b,c,d,e,f,g,h\n")(lines),
     [r"line 9: file_name_1 and file_name_3 are empty"]),
    ("empty caption", change_cell(3, 0, lambda cell: ""), [r"line 3: caption is empty"]),
    ("file listed twice", change_line(7, lambda line: b"q,a,b,c,a,d,e,f,g,a,h\n"),
     [r"line 7: the file 'a' is listed more than once, as file_name_1 and file_name_4 and file_name_9"]),
    ("query repeated", lambda lines: b"".join([*lines, lines[3]]),
     [r"line 26: the query 'Sound 1, near' is repeated; it is already on line 4"]),
    ("quote inside a bare cell", change_line(9, lambda line: b'a"b"' + line), [r"line 9: the row's quoting is broken"]),
    ("one quote inside a bare cell", change_line(9, lambda line: b'a"b' + line),
     [r"line 9: a quote on this line is never closed"]),
    ("text after a quoted cell", change_line(8, lambda line: b'"a"b' + line), [r"line 8: the row's quoting is broken"]),
    ("quote never closed", change_line(8, lambda line: b'"' + line.replace(b'"', b"")),
     [r"line 8: a quote on this line is never closed"]),
    ("two rows with an open quote", lambda lines: change_line(20, lambda line: b'"' + line.replace(b'"', b""))(
        change_line(8, lambda line: b'"' + line.replace(b'"', b""))(lines).splitlines(keepends=True)),
     [r"line 8: the row's quoting is broken", r"line 20: a quote on this line is never"]),
    ("carriage return alone", change_line(8, lambda line: b"a\rb" + line), [r"line 8: a carriage return is outside"]),
    ("carriage return at the very end", lambda lines: b"".join(lines).rstrip() + b"\r",
     [r"line 25: the row's quoting is broken"]),
    ("cell beyond what csv reads", change_cell(8, 0, lambda cell: "x" * 200_000), [r"line 8: field larger than field"]),
    ("semicolons", lambda lines: b"caption;file_name_1\nq;a\n",
     [r"line 1: columns are separated by semicolons"]),
    ("line after a quoted line break", lambda lines: b"".join([lines[0], b'"a\nb",1,2,3,4,5,6,7,8,9,0\n', b"q,a\n"]),
     [r"line 4: found 2 of 11 columns"]),
    ("several faults", lambda lines: b"".join([*lines[:2], b"q,a,a,,1,2,3,4,5,6,7\n", b"\xff\n", b"q,1\n", lines[1]]),
     [r"line 3: the file 'a' is listed", r"line 3: file_name_3 is empty", r"line 4: the row is not UTF-8",
      r"line 5: the query 'q' is repeated; it is already on line 3", r"line 5: found 2 of 11",
      r"line 6: the query 'Sound 0, near' is repeated; it is already on line 2"]),
]  # fmt: skip

TRUTH_FAULTS: list[tuple[str, Callable[[list[bytes]], bytes], list[str]]] = [
    ("unknown name", rename(2, "g.wav", "nobody.wav"), [r"line 2: unknown file name 'nobody\.wav' in file_name_\d+$"]),
    ("name stripped", rename(2, " Ambience Birds.wav", "Ambience Birds.wav"),
     [r"line 2: unknown file name 'Ambience Birds.wav' in .* similar .* ' Ambience Birds.wav', which differs in"]),
    ("name unescaped", rename(3, "Chris&#39; Elevator.wav", "Chris' Elevator.wav"),
     [r"line 3: unknown file name .* similar known one is 'Chris&#39; Elevator\.wav'"]),
    ("name decomposed", rename(2, "Fàbrica.wav", "Fa\u0300brica.wav"),
     [r"line 2: unknown file name .* similar known one is 'Fàbrica\.wav'"]),
    ("missing query", lambda lines: b"".join([*lines[:4], *lines[5:]]),
     [r"whole file: no row for the query 'Sound 1 far' \(line 3 of captions\.csv\)"]),
    ("unknown query", lambda lines: b"".join([*lines, b"new," + lines[1].split(b",", 2)[2]]),
     [r"line 26: unknown query 'new'$"]),
    ("query stripped", change_cell(13, 0, lambda cell: cell.strip()),
     [r"line 13: unknown query 'Sound 5 \"far\"'; the most similar .* 'Sound 5 \"far\" '", "whole file: no row for"]),
    ("header missing before a short row", lambda lines: lines[1].rsplit(b",", 1)[0] + b"\n" + b"".join(lines[2:]),
     [r"line 1: the header is missing", r"line 1: found 10 of 11"]),
    ("short row of a known query", change_line(5, lambda line: line.rsplit(b",", 1)[0] + b"\n"),
     [r"line 5: found 10 of 11"]),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(*case[1:], id=case[0]) for case in FORM_FAULTS])
def test_ranked_csv_format_faults_are_reported_once_with_their_lines(
    tmp_path: Path, fault: Callable[[list[bytes]], bytes], expected: list[str]
) -> None:
    lines = good_lines(tmp_path)
    assert check_ranked_csv(b"".join(lines), E2022)[1] == []
    check_problems(check_ranked_csv(fault(lines), E2022)[1], expected)


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(*case[1:], id=case[0]) for case in TRUTH_FAULTS])
def test_ranked_csv_differences_from_the_truth_are_reported_with_their_lines(
    tmp_path: Path, truth_path: Path, fault: Callable[[list[bytes]], bytes], expected: list[str]
) -> None:
    lines, truth = good_lines(tmp_path), read_clotho_truth(truth_path)
    assert check_ranked_csv(b"".join(lines), E2022, truth)[1] == []
    check_problems(check_ranked_csv(fault(lines), E2022, truth)[1], expected)


def test_ranked_csv_with_crlf_line_ends_or_without_final_line_end_is_accepted(tmp_path: Path, truth_path: Path) -> None:
    data = b"".join(good_lines(tmp_path))
    truth = read_clotho_truth(truth_path)
    for same in (data.replace(b"\n", b"\r\n"), data.removesuffix(b"\n")):
        ranked, problems = check_ranked_csv(same, E2022, truth)
        assert problems == []
        assert [dataclasses.astuple(answer) for answer in ranked] == [
            dataclasses.astuple(answer) for answer in check_ranked_csv(data, E2022, truth)[0]
        ]


def test_ranked_csv_with_unnecessary_quotes_is_accepted(tmp_path: Path) -> None:
    data = b'"caption",file_name_1,file_name_2,file_name_3,file_name_4,file_name_5,file_name_6,file_name_7,' \
        b'file_name_8,file_name_9,"file_name_10"\n"a ""b"" c",1,2,3,4,5,6,7,8,9,"10"\n'  # fmt: skip
    ranked, problems = check_ranked_csv(data, E2022)
    assert problems == []
    assert (ranked[0].query, ranked[0].file_names[-1]) == ('a "b" c', "10")


def test_baseline_submission_scores_as_published(baseline: Path, clotho: Callable[[str], Path]) -> None:
    summary = score_csv(baseline, clotho("evaluation"))
    assert {name: round(value, 4) for name, value in summary.values.items()} == {
        "R@1": 0.0316, "R@5": 0.1095, "R@10": 0.1883, "mAP@10": 0.0679,
    }  # fmt: skip
    assert (len(summary.queries.texts), summary.queries.n_pool) == (5225, 1045)
    # The official loop over dictionaries keyed by caption, on the same files.
    with clotho("evaluation").open(encoding="utf-8", newline="") as file:
        truth = {caption: row[0] for row in list(csv.reader(file))[1:] for caption in row[1:]}
    with baseline.open(encoding="utf-8", newline="") as file:
        rows = {row[0]: row[1:] for row in list(csv.reader(file))[1:]}
    precisions = [1 / (rows[text].index(name) + 1) if name in rows[text] else 0.0 for text, name in truth.items()]
    assert summary.values["mAP@10"] == pytest.approx(sum(precisions) / 5225, abs=1e-12)
    half_width = 1.959963985 * np.std(precisions, ddof=1) / math.sqrt(5225)
    assert summary.interval == pytest.approx((np.mean(precisions) - half_width, np.mean(precisions) + half_width))


def test_baseline_submission_survives_a_round_trip(baseline: Path) -> None:
    data = baseline.read_bytes()
    rows, problems = parse_table(data)
    assert problems == []
    assert format_table(row.cells for row in rows) == data


def test_clotho_names_and_captions_survive_a_ranked_csv(tmp_path: Path, clotho: Callable[[str], Path]) -> None:
    with clotho("evaluation").open(encoding="utf-8", newline="") as file:
        clips = list(csv.reader(file))[1:]
    names = [row[0] for row in clips]
    texts = [caption for row in clips for caption in row[1:]]
    # Query n ranks clips n, n + 1, ... first, so that every name occurs in every column.
    distance = (np.arange(1045) - np.arange(5225)[:, None]) % 1045
    relevant: list[list[str] | None] = [[str(row // 5)] for row in range(5225)]
    ids = [str(column) for column in range(1045)]
    matrix = ScoreMatrix(-distance.astype(np.float32), list(texts), texts, ids, names, relevant)
    write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert header == list(E2022.columns)
    assert rows == [
        [text, *(names[(row + rank) % 1045] for rank in range(10))] for row, text in enumerate(texts)
    ]  # fmt: skip
    data = (tmp_path / "out.csv").read_bytes()
    assert b"\r" not in data
    assert all(name.encode() in data for name in names)
    assert score_csv(tmp_path / "out.csv", clotho("evaluation")).values == score_matrix(matrix).values
