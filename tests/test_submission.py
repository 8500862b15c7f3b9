"""The submission room's files and door: editions, score matrices, ranked CSVs, and truth."""

import csv
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from submission import metrics
from submission.__main__ import main
from submission.editions import EDITIONS, Edition, get_edition
from submission.errors import SubmissionError
from submission.ranking import check_ranked_csv, read_ranked_csv, write_ranked_csv
from submission.scores import ScoreMatrix, read_scores, write_scores
from submission.scoring import score_matrix, score_ranked_csv
from submission.table import format_table, parse_table
from submission.truth import matrix_truth, read_clotho_truth

E2022 = EDITIONS[2022]
# The traps of the real file names, in one small pool: blanks, commas, quotes, entities, letters outside ASCII.
NAMES = [
    " Ambience Birds.wav", "Breaking Glass .wav", "b, c, and d.wav", "Chris&#39; Elevator.wav", 'the "bus".wav',
    "Fàbrica.wav", "雨.wav", "g.wav", "h.wav", "i.wav", "j.wav", "k.wav",
]  # fmt: skip
CAPTIONS = [[f"Sound {number}, near", f'Sound {number} "far" ' if number == 5 else f"Sound {number} far"]
            for number in range(len(NAMES))]  # fmt: skip


def truth_bytes() -> bytes:
    rows = [[name, *captions] for name, captions in zip(NAMES, CAPTIONS, strict=True)]
    return format_table([["file_name", "caption_1", "caption_2"], *rows])


@pytest.fixture
def truth_path(tmp_path: Path) -> Path:
    path = tmp_path / "captions.csv"
    path.write_bytes(truth_bytes())
    return path


def small_matrix(seed: int = 0, **changes: Any) -> ScoreMatrix:
    """24 queries against 12 clips; two captions a clip, in the order of truth_bytes."""
    values = np.random.default_rng(seed).normal(size=(24, 12)).astype(np.float32)
    texts = [caption for captions in CAPTIONS for caption in captions]
    matrix = ScoreMatrix(
        values=values,
        query_ids=[f"q{row}" for row in range(24)],
        query_texts=texts,
        clip_ids=[f"clip{column}" for column in range(12)],
        file_names=list(NAMES),
        relevant=[[f"clip{row // 2}"] for row in range(24)],
        facts={"model": "none"},
    )
    return dataclasses.replace(matrix, **changes)


def good_lines(tmp_path: Path) -> list[bytes]:
    """A ranked CSV without a fault, by line: the header and 24 rows."""
    path = tmp_path / "good.csv"
    write_ranked_csv(small_matrix(), path, E2022)
    return path.read_bytes().splitlines(keepends=True)


# --- editions ----------------------------------------------------------------------------------------------------


def test_the_2022_edition_is_what_was_published() -> None:
    edition = get_edition(2022)
    assert ",".join(edition.columns) == (
        "caption,file_name_1,file_name_2,file_name_3,file_name_4,file_name_5,"
        "file_name_6,file_name_7,file_name_8,file_name_9,file_name_10"
    )
    assert (edition.task, edition.ranking_length, edition.metric) == ("6b", 10, "mAP@10")
    with pytest.raises(SubmissionError, match="no edition 1999 is known; choose one of: 2022"):
        get_edition(1999)


def test_every_edition_says_where_each_fact_comes_from() -> None:
    facts = {field.name for field in dataclasses.fields(Edition)} - {"sources"}
    for year, edition in EDITIONS.items():
        assert year == edition.year
        assert set(edition.sources) == facts
        assert all(edition.sources.values())


def test_a_new_year_is_one_record(tmp_path: Path, truth_path: Path) -> None:
    edition = Edition(2030, "9", ("query", "f_1", "f_2", "f_3"), (1, 3), 3, {})
    write_ranked_csv(small_matrix(), tmp_path / "new.csv", edition)
    assert (tmp_path / "new.csv").read_bytes().startswith(b"query,f_1,f_2,f_3\n")
    summary = score_ranked_csv(tmp_path / "new.csv", truth_path, edition)
    assert list(summary.values) == ["R@1", "R@3", "mAP@3"]


# --- score matrices ----------------------------------------------------------------------------------------------


def test_a_matrix_survives_its_files(tmp_path: Path) -> None:
    matrix = small_matrix(relevant=[None] * 23 + [["clip3", "clip1"]])
    write_scores(tmp_path / "s.npy", matrix)
    again = read_scores(tmp_path / "s.npy")
    assert isinstance(again.values, np.memmap)
    assert again.values.tobytes() == matrix.values.tobytes()
    for field in dataclasses.fields(ScoreMatrix)[1:]:
        assert getattr(again, field.name) == getattr(matrix, field.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.npy"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": np.zeros((24, 12))}, "must be a float32 matrix, queries x clips; got float64"),
        ({"values": np.zeros(24, dtype=np.float32)}, r"of shape \(24,\)"),
        ({"values": np.zeros((24, 11), dtype=np.float32)}, "need 11 clip_ids; there are 12"),
        ({"values": np.zeros((23, 12), dtype=np.float32)}, "need 23 query_ids; there are 24"),
        ({"values": np.zeros((24, 0), dtype=np.float32)}, "no query or no clip"),
        ({"values": np.full((24, 12), np.inf, dtype=np.float32)}, "row 0, column 0 .* is inf"),
        ({"query_texts": ["x"]}, "need 24 query_texts; there are 1"),
        ({"relevant": []}, "need 24 relevant; there are 0"),
        ({"file_names": NAMES[1:]}, "need 12 file_names; there are 11"),
        ({"query_ids": ["q"] * 24}, "query id 'q' occurs twice"),
        ({"clip_ids": ["c"] * 12}, "clip id 'c' occurs twice"),
        ({"relevant": [["clip0"]] * 23 + [["clip77"]]}, "query 'q23': its relevant clip 'clip77' is not among the 12"),
        ({"relevant": [["clip0"]] * 23 + [[]]}, "query 'q23' has an empty list"),
        ({"relevant": [["clip0"]] * 23 + [["clip1", "clip1"]]}, "query 'q23': relevant clip 'clip1' occurs twice"),
    ],
)
def test_a_matrix_that_does_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        small_matrix(**changes)


def edit_json(path: Path, edit: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "s.json").unlink(), r"s\.json is missing; a score matrix is the pair s\.npy and"),
        (lambda folder: (folder / "s.npy").unlink(), r"s\.npy is missing"),
        (lambda folder: (folder / "s.npy").write_bytes(b""), r"s\.npy is not a whole \.npy file"),
        (lambda folder: (folder / "s.npy").write_bytes(b"caption,file_name_1\n"), "not a whole"),
        (lambda folder: os.truncate(folder / "s.npy", 400), "not a whole"),
        (lambda folder: np.save(folder / "s.npy", np.array([{}], dtype=object)), "not a whole"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 12))), r"s\.npy: scores must be a float32"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 12), dtype=">f4")), "must be a float32"),
        (lambda folder: np.save(folder / "s.npy", np.full((24, 12), np.nan, dtype=np.float32)), "is nan"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 9), dtype=np.float32)), "need 9 clip_ids"),
        (lambda folder: (folder / "s.json").write_text("{"), r"s\.json as a whole: Invalid JSON"),
        (lambda folder: (folder / "s.json").write_bytes(b'{"facts": "\xff"}'), r"s\.json as a whole: Invalid JSON"),
        (lambda folder: edit_json(folder / "s.json", lambda d: d.pop("clips")), r"at clips: Field required"),
        (lambda folder: edit_json(folder / "s.json", lambda d: d["clips"][3].update(id=3)), r"at clips\.3\.id"),
        (lambda folder: edit_json(folder / "s.json", lambda d: d["queries"][0].update(x=1)), r"at queries\.0\.x"),
    ],
)
def test_damaged_pairs_are_refused_by_name(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    damage(tmp_path)
    with pytest.raises(SubmissionError, match=words):
        read_scores(tmp_path / "s.npy")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"facts": {"x": object()}}, "JSON"), ({"facts": {"x": math.nan}}, "JSON"),
     ({"query_texts": ["\ud800"] * 24}, "Unicode")],
)  # fmt: skip
def test_what_json_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_scores(tmp_path / "s.npy", small_matrix(**changes))
    assert list(tmp_path.iterdir()) == []


def test_scores_need_the_npy_suffix(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match=r"give the name ending in \.npy"):
        write_scores(tmp_path / "s.bin", small_matrix())


@pytest.mark.parametrize("fails_at", [".npy", ".json"])
def test_an_interrupted_rewrite_never_pairs_new_scores_with_old_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    old = small_matrix(seed=1)
    write_scores(tmp_path / "s.npy", old)
    real = os.replace

    def fail(source: Path, target: Path) -> None:
        if target.suffix == fails_at:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=rf"No space left on device: '.*s\{fails_at}'"):
        write_scores(tmp_path / "s.npy", small_matrix(seed=2))
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    with pytest.raises(SubmissionError, match=r"s\.json is missing"):
        read_scores(tmp_path / "s.npy")


# --- writing a ranked CSV ----------------------------------------------------------------------------------------


def test_written_rows_by_hand(tmp_path: Path) -> None:
    matrix = ScoreMatrix(
        values=np.array([[0.5, 2, 0.5, -1], [0, 0, 0, 0]], dtype=np.float32),
        query_ids=["1", "2"],
        query_texts=[' Rain, "hard"', "A&#39;s"],
        clip_ids=list("wxyz"),
        file_names=["c.wav", " b.wav", "a,1.wav", "d .wav"],
        relevant=[None, None],
    )
    edition = Edition(2030, "9", ("caption", "n_1", "n_2", "n_3"), (1,), 3, {})
    write_ranked_csv(matrix, tmp_path / "out.csv", edition)
    assert (tmp_path / "out.csv").read_bytes() == (
        b'caption,n_1,n_2,n_3\n" Rain, ""hard""", b.wav,"a,1.wav",c.wav\nA&#39;s, b.wav,"a,1.wav",c.wav\n'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_the_csv_scores_as_the_matrix_does(tmp_path: Path, truth_path: Path) -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).integers(0, 5, size=(24, 12)).astype(np.float32)
        matrix = small_matrix(values=values)
        write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
        assert score_ranked_csv(tmp_path / "out.csv", truth_path, E2022) == score_matrix(matrix, E2022)


def test_several_relevant_clips_count_in_the_matrix() -> None:
    values = np.tile(np.arange(12, 0, -1, dtype=np.float32), (24, 1))
    summary = score_matrix(small_matrix(values=values, relevant=[["clip1", "clip3"]] * 24), E2022)
    assert summary.values == {"R@1": 0.0, "R@5": 1.0, "R@10": 1.0, "mAP@10": 0.5}
    assert (summary.n_relevant, summary.n_clips) == (2.0, 12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_names": ["x.wav", *NAMES[1:11], "x.wav"]}, "'clip0' and 'clip11' have the same file name 'x.wav'"),
        ({"query_texts": ["same", *map(str, range(22)), "same"]}, "'q0' and 'q23' have the same text 'same'.*keep one"),
        ({"query_texts": [" ", *map(str, range(23))]}, r"out\.csv would not pass its check: line 2: caption is empty"),
        ({"query_texts": ["a\0b", *map(str, range(23))]}, "line 2: holds a NUL byte"),
        ({"query_texts": ["a\ud800b", *map(str, range(23))]}, "line 2: not UTF-8"),
        ({"file_names": ["", *NAMES[1:]]}, r"line \d+: file_name_\d+ is empty"),
    ],
)  # fmt: skip
def test_what_a_ranked_csv_cannot_say_is_not_written(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_ranked_csv(small_matrix(**changes), tmp_path / "out.csv", E2022)
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_are_those_pandas_writes() -> None:
    rows = [[name, *captions] for name, captions in zip(NAMES, CAPTIONS, strict=True)]
    frame = pandas.DataFrame(rows, columns=["a", "b, c", "d"])
    assert format_table([["a", "b, c", "d"], *rows]) == frame.to_csv(index=False, lineterminator="\n").encode()


def test_a_pool_smaller_than_the_ranking_is_refused(tmp_path: Path) -> None:
    ids = list("abcdefghi")
    matrix = ScoreMatrix(np.zeros((1, 9), dtype=np.float32), ["q"], ["q"], ids, ids, [None])
    with pytest.raises(SubmissionError, match="the pool has 9 clips and a row of edition 2022 lists 10"):
        write_ranked_csv(matrix, tmp_path / "out.csv", E2022)


def test_line_breaks_inside_cells_survive(tmp_path: Path) -> None:
    texts = ["one\ntwo", "three\rfour", "five\r\nsix", *map(str, range(21))]
    matrix = small_matrix(query_texts=texts)
    write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
    ranked = read_ranked_csv(tmp_path / "out.csv", E2022, matrix_truth(matrix))
    assert [answer.query for answer in ranked] == texts
    # Editors count line feeds: the rows after a cell that holds one start a line later each time.
    assert [answer.line for answer in ranked[:5]] == [2, 4, 5, 7, 8]


# --- checking a ranked CSV ---------------------------------------------------------------------------------------


def change_cell(number: int, cell: int, edit: Callable[[str], str]) -> Callable[[list[bytes]], bytes]:
    def change(lines: list[bytes]) -> bytes:
        [row] = csv.reader([lines[number - 1].decode()])
        row[cell] = edit(row[cell])
        return b"".join([*lines[: number - 1], format_table([row]), *lines[number:]])

    return change


def change_line(number: int, edit: Callable[[bytes], bytes]) -> Callable[[list[bytes]], bytes]:
    return lambda lines: b"".join([*lines[: number - 1], edit(lines[number - 1]), *lines[number:]])


def rename(number: int, old: str, new: str) -> Callable[[list[bytes]], bytes]:
    """Put `new` where line `number` lists `old` (the good file lists 10 of 12 names, and old among them)."""

    def change(lines: list[bytes]) -> bytes:
        [row] = csv.reader([lines[number - 1].decode()])
        return change_cell(number, row.index(old), lambda _: new)(lines)

    return change


FORM_FAULTS: list[tuple[str, Callable[[list[bytes]], bytes], list[str]]] = [
    ("empty file", lambda lines: b"", [r"line 1: the file is empty"]),
    ("only a header", lambda lines: lines[0], [r"line 1: no row follows the header"]),
    ("only an empty line", lambda lines: b"\n", [r"line 1: found 0 of 11 columns; the header of edition 2022 is capt"]),
    ("header of another year", change_line(1, lambda line: line.replace(b"file_name_", b"fname_")),
     [r"line 1: column 2 is 'fname_1' instead of file_name_1"]),
    ("header missing", lambda lines: b"".join(lines[1:]), [r"line 1: column 1 is 'Sound 0, near' instead of caption"]),
    ("header short", change_line(1, lambda line: line.replace(b",file_name_10", b"")),
     [r"line 1: found 10 of 11 columns"]),
    ("header with blanks", change_line(1, lambda line: line.replace(b",", b", ")),
     [r"line 1: column 2 is ' file_name_1' instead"]),
    ("byte order mark", lambda lines: b"\xef\xbb\xbf" + b"".join(lines), [r"line 1: .* byte order mark"]),
    ("UTF-16", lambda lines: b"".join(lines).decode().encode("utf-16"), [r"line 1: not UTF-8"]),
    ("Latin-1 row", change_line(13, lambda line: b"Soun\xe9" + line), [r"line 13: not UTF-8"]),
    ("Latin-1 header", change_line(1, lambda line: b"\xe9" + line), [r"line 1: not UTF-8"]),
    ("NUL bytes", change_line(6, lambda line: line.replace(b"Sound", b"So\0und")), [r"line 6: holds a NUL byte"]),
    ("short row", change_line(5, lambda line: line.rsplit(b",", 1)[0] + b"\n"), [r"line 5: found 10 of 11 columns"]),
    ("long row", change_line(4, lambda line: line.rstrip() + b",x.wav\n"), [r"line 4: found 12 of 11 columns"]),
    ("trailing comma", change_line(4, lambda line: line.rstrip() + b",\n"), [r"line 4: found 12 of 11 columns"]),
    ("empty line", change_line(4, lambda line: b"\n" + line), [r"line 4: an empty line"]),
    ("empty last line", lambda lines: b"".join(lines) + b"\n", [r"line 26: an empty line"]),
    ("empty name", change_cell(9, 4, lambda cell: ""), [r"line 9: file_name_4 is empty"]),
    ("blank name", change_cell(9, 10, lambda cell: "  "), [r"line 9: file_name_10 is empty"]),
    ("two empty names", lambda lines: change_line(9, lambda line: b"q,,a,,b,c,d,e,f,g,h\n")(lines),
     [r"line 9: file_name_1 and file_name_3 are empty"]),
    ("empty caption", change_cell(3, 0, lambda cell: ""), [r"line 3: caption is empty"]),
    ("file listed twice", change_line(7, lambda line: b"q,a,b,c,a,d,e,f,g,a,h\n"),
     [r"line 7: the file 'a' is listed more than once, as file_name_1 and file_name_4 and file_name_9"]),
    ("query repeated", lambda lines: b"".join([*lines, lines[3]]),
     [r"line 26: the query 'Sound 1, near' is repeated; it stands on line 4 already"]),
    ("quote inside a bare cell", change_line(9, lambda line: b'a"b"' + line), [r"line 9: broken quoting"]),
    ("one quote inside a bare cell", change_line(9, lambda line: b'a"b' + line),
     [r"line 9: a quote on this line has no partner"]),
    ("text after a quoted cell", change_line(8, lambda line: b'"a"b' + line), [r"line 8: broken quoting"]),
    ("quote never closed", change_line(8, lambda line: b'"' + line.replace(b'"', b"")),
     [r"line 8: a quote on this line has no partner"]),
    ("two rows with an open quote", lambda lines: change_line(20, lambda line: b'"' + line.replace(b'"', b""))(
        change_line(8, lambda line: b'"' + line.replace(b'"', b""))(lines).splitlines(keepends=True)),
     [r"line 8: broken quoting", r"line 20: a quote on this line has no"]),
    ("carriage return alone", change_line(8, lambda line: b"a\rb" + line), [r"line 8: broken quoting"]),
    ("carriage return at the very end", lambda lines: b"".join(lines).rstrip() + b"\r", [r"line 25: broken quoting"]),
    ("cell beyond what csv reads", change_cell(8, 0, lambda cell: "x" * 200_000), [r"line 8: field larger than field"]),
    ("semicolons", lambda lines: b"caption;file_name_1\nq;a\n",
     [r"line 1: found 1 of 11 columns", r"line 2: found 1 of 11 columns"]),
    ("line after a quoted line break", lambda lines: b"".join([lines[0], b'"a\nb",1,2,3,4,5,6,7,8,9,0\n', b"q,a\n"]),
     [r"line 4: found 2 of 11 columns"]),
    ("several faults", lambda lines: b"".join([*lines[:2], b"q,a,a,,1,2,3,4,5,6,7\n", b"\xff\n", b"q,1\n", lines[1]]),
     [r"line 3: the file 'a' is listed", r"line 3: file_name_3 is empty", r"line 4: not UTF-8",
      r"line 5: found 2 of 11", r"line 5: the query 'q' is repeated; it stands on line 3",
      r"line 6: the query 'Sound 0, near' is repeated; it stands on line 2"]),
]  # fmt: skip

TRUTH_FAULTS: list[tuple[str, Callable[[list[bytes]], bytes], list[str]]] = [
    ("unknown name", rename(2, "g.wav", "nobody.wav"), [r"line 2: unknown file name 'nobody\.wav' in file_name_\d+$"]),
    ("name stripped", rename(2, " Ambience Birds.wav", "Ambience Birds.wav"),
     [r"line 2: unknown file name 'Ambience Birds.wav' in file_name_\d+; there is ' Ambience Birds.wav', and blanks"]),
    ("name unescaped", rename(3, "Chris&#39; Elevator.wav", "Chris' Elevator.wav"),
     [r"line 3: unknown file name .* there is 'Chris&#39; Elevator\.wav'"]),
    ("name decomposed", rename(2, "Fàbrica.wav", "Fa\u0300brica.wav"),
     [r"line 2: unknown file name .* there is 'Fàbrica\.wav'"]),
    ("missing query", lambda lines: b"".join([*lines[:4], *lines[5:]]),
     [r"whole file: no row for the query 'Sound 1 far' \(line 3 of captions\.csv\)"]),
    ("unknown query", lambda lines: b"".join([*lines, b"new," + lines[1].split(b",", 2)[2]]),
     [r"line 26: unknown query 'new'$"]),
    ("query stripped", change_cell(13, 0, lambda cell: cell.strip()),
     [r"line 13: unknown query 'Sound 5 \"far\"'; there is 'Sound 5 \"far\" '", r"whole file: no row for the query"]),
    ("short row of a known query", change_line(5, lambda line: line.rsplit(b",", 1)[0] + b"\n"),
     [r"line 5: found 10 of 11"]),
]  # fmt: skip


def check_problems(problems: list, expected: list[str]) -> None:
    shown = [str(problem) for problem in problems]
    assert len(shown) == len(expected), shown
    for line, pattern in zip(shown, expected, strict=True):
        assert re.match(pattern, line), (line, pattern)


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(*case[1:], id=case[0]) for case in FORM_FAULTS])
def test_each_fault_of_form_is_reported_once_with_its_line(
    tmp_path: Path, fault: Callable[[list[bytes]], bytes], expected: list[str]
) -> None:
    lines = good_lines(tmp_path)
    assert check_ranked_csv(b"".join(lines), E2022)[1] == []
    check_problems(check_ranked_csv(fault(lines), E2022)[1], expected)


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(*case[1:], id=case[0]) for case in TRUTH_FAULTS])
def test_each_disagreement_with_the_truth_is_reported_once_with_its_line(
    tmp_path: Path, truth_path: Path, fault: Callable[[list[bytes]], bytes], expected: list[str]
) -> None:
    lines, truth = good_lines(tmp_path), read_clotho_truth(truth_path)
    assert check_ranked_csv(b"".join(lines), E2022, truth)[1] == []
    check_problems(check_ranked_csv(fault(lines), E2022, truth)[1], expected)


def test_windows_line_ends_and_a_missing_last_one_are_fine(tmp_path: Path, truth_path: Path) -> None:
    data = b"".join(good_lines(tmp_path))
    truth = read_clotho_truth(truth_path)
    for same in (data.replace(b"\n", b"\r\n"), data.removesuffix(b"\n")):
        ranked, problems = check_ranked_csv(same, E2022, truth)
        assert problems == []
        assert [dataclasses.astuple(answer) for answer in ranked] == [
            dataclasses.astuple(answer) for answer in check_ranked_csv(data, E2022, truth)[0]
        ]


def test_quoted_where_it_need_not_be_is_fine(tmp_path: Path) -> None:
    data = b'"caption",file_name_1,file_name_2,file_name_3,file_name_4,file_name_5,file_name_6,file_name_7,' \
        b'file_name_8,file_name_9,"file_name_10"\n"a ""b"" c",1,2,3,4,5,6,7,8,9,"10"\n'  # fmt: skip
    ranked, problems = check_ranked_csv(data, E2022)
    assert problems == []
    assert (ranked[0].query, ranked[0].file_names[-1]) == ('a "b" c', "10")


# --- truth -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b"file_name,caption_1\n", "line 1: no clip follows the header"),
        (b"caption,file_name_1\nx,y\n", "line 1: the header must be file_name,caption_1.*found 'caption,file_name_1'"),
        (b"file_name\nx\n", "line 1: the header must be"),
        (b"file_name,caption_1,caption_3\nx,y,z\n", "line 1: the header must be"),
        (b"\xef\xbb\xbffile_name,caption_1\nx,y\n", "line 1: .*byte order mark"),
        (b"file_name,caption_1\nx,y\nz\n", "line 3: found 1 of 2 columns"),
        (b"file_name,caption_1\nx,y\n\nz,w\n", "line 3: found 0 of 2 columns"),
        (b"file_name,caption_1\nx,y\nz, \n", "line 3: caption_1 is empty"),
        (b"file_name,caption_1\nx,y\n,w\n", "line 3: file_name is empty"),
        (b"file_name,caption_1\nx,y\n\xe9,w\n", "line 3: not UTF-8"),
        (b"file_name,caption_1\nx,y\nx,w\n", "line 3: file name 'x' stands on line 2 already"),
        (b"file_name,caption_1\nx,y\nz,w\nv,y\n", r"1 queries .* ambiguous \(lines 2 and 4; the first is 'y'\)"),
    ],
)
def test_a_truth_that_is_none_is_refused_with_its_line(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "truth.csv").write_bytes(data)
    with pytest.raises(SubmissionError, match=rf"truth\.csv: .*{words}"):
        read_clotho_truth(tmp_path / "truth.csv")


def test_a_caption_twice_in_one_row_is_one_query(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_bytes(b"file_name,caption_1,caption_2\nx,y,y\n z ,w,v\n")
    truth = read_clotho_truth(tmp_path / "truth.csv")
    assert {text: query.relevant for text, query in truth.queries.items()} == {"y": {"x"}, "w": {" z "}, "v": {" z "}}
    assert truth.file_names == {"x", " z "}


# --- real files --------------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(shared: Path) -> Path:
    return shared / "data/dcase2022_baseline/test.output.csv"


@pytest.fixture
def clotho(shared: Path) -> Callable[[str], Path]:
    return lambda split: shared / f"data/clotho/clotho_captions_{split}.csv"


def test_the_real_submission_scores_as_published(baseline: Path, clotho: Callable[[str], Path]) -> None:
    summary = score_ranked_csv(baseline, clotho("evaluation"), E2022)
    assert {name: round(value, 4) for name, value in summary.values.items()} == {
        "R@1": 0.0316, "R@5": 0.1095, "R@10": 0.1883, "mAP@10": 0.0679,
    }  # fmt: skip
    assert (summary.n_queries, summary.n_clips, summary.n_relevant) == (5225, 1045, 1.0)
    # The official loop over dictionaries keyed by caption, on the same files.
    with open(clotho("evaluation"), encoding="utf-8", newline="") as file:
        truth = {caption: row[0] for row in list(csv.reader(file))[1:] for caption in row[1:]}
    with open(baseline, encoding="utf-8", newline="") as file:
        rows = {row[0]: row[1:] for row in list(csv.reader(file))[1:]}
    precisions = [1 / (rows[text].index(name) + 1) if name in rows[text] else 0.0 for text, name in truth.items()]
    assert summary.values["mAP@10"] == pytest.approx(sum(precisions) / 5225, abs=1e-12)
    half_width = 1.959963985 * np.std(precisions, ddof=1) / math.sqrt(5225)
    assert summary.interval == pytest.approx((np.mean(precisions) - half_width, np.mean(precisions) + half_width))


def test_the_real_submission_is_rewritten_byte_for_byte(baseline: Path) -> None:
    data = baseline.read_bytes()
    rows, problems = parse_table(data)
    assert problems == []
    assert format_table(row.cells for row in rows) == data


def test_all_real_names_and_captions_pass_through_a_ranked_csv(tmp_path: Path, clotho: Callable[[str], Path]) -> None:
    with open(clotho("evaluation"), encoding="utf-8", newline="") as file:
        clips = list(csv.reader(file))[1:]
    names = [row[0] for row in clips]
    texts = [caption for row in clips for caption in row[1:]]
    # Query n ranks clips n, n + 1, ... first, so that every name stands in every column somewhere.
    distance = (np.arange(1045) - np.arange(5225)[:, None]) % 1045
    relevant: list[list[str] | None] = [[str(row // 5)] for row in range(5225)]
    ids = [str(column) for column in range(1045)]
    matrix = ScoreMatrix(-distance.astype(np.float32), list(texts), texts, ids, names, relevant)
    write_ranked_csv(matrix, tmp_path / "out.csv", E2022)
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert header == list(E2022.columns)
    assert rows == [
        [text, *(names[(row + rank) % 1045] for rank in range(10))] for row, text in enumerate(texts)
    ]  # fmt: skip
    data = (tmp_path / "out.csv").read_bytes()
    assert b"\r" not in data
    assert all(name.encode() in data for name in names)
    assert score_ranked_csv(tmp_path / "out.csv", clotho("evaluation"), E2022) == score_matrix(matrix, E2022)


@pytest.mark.parametrize("split", ["validation", "evaluation"])
def test_real_captions_are_a_truth(clotho: Callable[[str], Path], split: str) -> None:
    truth = read_clotho_truth(clotho(split))
    assert (len(truth.queries), len(truth.file_names)) == (5225, 1045)


def test_the_shared_captions_of_development_are_refused(clotho: Callable[[str], Path]) -> None:
    words = "make 16 queries of a ranked CSV ambiguous.*13 and 2890; 36 and 1284 and 1766; .*score the score matrix"
    with pytest.raises(SubmissionError, match=words):
        read_clotho_truth(clotho("development"))


# --- the door ----------------------------------------------------------------------------------------------------


def test_door_writes_checks_and_scores(tmp_path: Path, truth_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    scores, out, truth = str(tmp_path / "s.npy"), str(tmp_path / "out.csv"), str(truth_path)
    assert main(["write", scores, "--out", out]) == 0
    assert capsys.readouterr().out == f"wrote {out}: 24 queries x 10 names\n"
    for against in ([], ["--truth", truth], ["--scores", scores], ["--edition", "2022"]):
        assert main(["check", out, *against]) == 0
        assert capsys.readouterr().out == "ok: 24 queries x 10 names\n"
    assert main(["score", out, "--truth", truth]) == 0
    from_csv = capsys.readouterr().out
    assert main(["score", scores]) == 0
    assert capsys.readouterr().out == from_csv
    names = [line.split()[0] for line in from_csv.splitlines()]
    assert names == ["queries", "clips", "R@1", "R@5", "R@10", "mAP@10", "95", "chance"]
    assert "queries 24\n" in from_csv
    assert "clips   12\n" in from_csv
    assert f"chance  {metrics.chance(12):.4f} " in from_csv


def test_door_check_lists_every_problem_and_score_refuses_the_same_file(
    tmp_path: Path, truth_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = good_lines(tmp_path)
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"".join([*lines[:3], b"new\n", *lines[5:]]))
    assert main(["check", str(bad), "--truth", str(truth_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "line 4: unknown query 'new'",
        "line 4: found 1 of 11 columns: one query and 10 file names",
        "whole file: no row for the query 'Sound 1, near' (line 3 of captions.csv)",
        "whole file: no row for the query 'Sound 1 far' (line 3 of captions.csv)",
    ]
    assert shown.err == f"error: {bad} has 4 problems, listed above with the line each row starts on\n"
    assert main(["score", str(bad), "--truth", str(truth_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"error: {bad}: line 4: unknown query 'new' (and 3 more; `check` lists them all)\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", "none.csv", "--truth", "captions.csv"], "none.csv: No such file or directory"),
        (["score", "good.csv", "--truth", "none.csv"], "none.csv: No such file or directory"),
        (["score", "good.csv"], "good.csv is scored against captions; add --truth"),
        (["score", "s.npy", "--truth", "captions.csv"], "leave out --truth"),
        (["score", "none.npy"], "none.npy is missing; a score matrix is the pair none.npy and none.json"),
        (["score", "blind.npy"], "no relevant clip is known for 24 of 24 queries (first 'q0')"),
        (["score", "half.npy"], "no relevant clip is known for 1 of 24 queries (first 'q23')"),
        (["score", "good.csv", "--truth", "captions.csv", "--edition", "1999"], "no edition 1999 is known"),
        (["check", "."], ".: Is a directory"),
        (["check", "good.csv", "--scores", "good.csv"], "give the name ending in .npy"),
        (["check", "good.csv", "--scores", "twins.npy"], "have the same text"),
        (["write", "s.npy", "--out", "nowhere/out.csv"], "nowhere/out.csv: No such file or directory"),
        (["write", "s.npy", "--out", "."], "error: .: "),
        (["write", "twins.npy", "--out", "out.csv"], "queries 'q0' and 'q1' have the same text"),
    ],
)
def test_door_turns_what_is_expected_into_one_sentence(
    tmp_path: Path,
    truth_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    good_lines(tmp_path)
    write_scores(tmp_path / "s.npy", small_matrix())
    write_scores(tmp_path / "blind.npy", small_matrix(relevant=[None] * 24))
    write_scores(tmp_path / "half.npy", small_matrix(relevant=[["clip0"]] * 23 + [None]))
    write_scores(tmp_path / "twins.npy", small_matrix(query_texts=["same", "same", *map(str, range(22))]))
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [[], ["rank"], ["check"], ["write", "s.npy"], ["check", "a", "--truth", "b", "--scores", "c"],
     ["check", "a", "--edition", "last"]],
)  # fmt: skip
def test_door_leaves_wrong_usage_to_argparse(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m submission" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["write", "check", "score"])
def test_every_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"example:\n  python -m submission {verb} " in capsys.readouterr().out


def test_door_says_when_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "read_bytes", interrupt)
    assert main(["check", str(tmp_path / "any.csv")]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def run(root: Path, code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=root, env={**os.environ, **environment}, capture_output=True, timeout=60)


def test_scoring_a_csv_loads_numpy_and_nothing_heavy(root: Path, baseline: Path, clotho: Callable[[str], Path]) -> None:
    code = (
        "import sys; from submission.__main__ import main; code = main(sys.argv[1:])\n"
        "print({'torch', 'pandas', 'scipy', 'pydantic', 'system', 'data_tools'} & set(sys.modules), code)"
    )
    done = run(root, code, "score", baseline, "--truth", clotho("evaluation"))
    shown = done.stdout.decode()
    for line in ("R@1     0.0316", "R@5     0.1095", "R@10    0.1883", "mAP@10  0.0679", "95 %    0.0626 to 0.0732"):
        assert line in shown
    assert shown.endswith("set() 0\n")
    assert done.stderr == b""


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(root: Path, tmp_path: Path) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    (tmp_path / "out.csv").write_text("old")
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))\n"
    door = "from submission.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(root, limit + door, "write", tmp_path / "s.npy", "--out", tmp_path / "out.csv")
    assert (done.returncode, done.stderr.decode()) == (1, f"error: {tmp_path / 'out.csv'}: File too large\n")
    assert (tmp_path / "out.csv").read_text() == "old"
    copy = (
        "from pathlib import Path; from submission.scores import read_scores, write_scores\n"
        "matrix = read_scores(Path(sys.argv[1]))\n"
        "try: write_scores(Path(sys.argv[2]), matrix)\n"
        "except OSError as error: print(error.filename)"
    )
    done = run(root, limit + copy, tmp_path / "s.npy", tmp_path / "copy.npy")
    assert done.stdout.decode() == f"{tmp_path / 'copy.npy'}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "s.json", "s.npy"]


def test_a_reader_that_goes_away_is_no_error_message(root: Path, tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_bytes(b"x\n" * 20_000)
    command = [sys.executable, "-m", "submission", "check", str(tmp_path / "long.csv")]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith(b"line 1: found 1 of 11")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1


def test_names_outside_the_terminals_letters_are_shown_escaped(root: Path, tmp_path: Path, truth_path: Path) -> None:
    lines = good_lines(tmp_path)
    (tmp_path / "bad.csv").write_bytes(rename(2, "雨.wav", "雨雨.wav")(lines))
    door = "import sys; from submission.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(root, door, "check", tmp_path / "bad.csv", "--truth", truth_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert rb"unknown file name '\u96e8\u96e8.wav'" in done.stdout
    assert b"Traceback" not in done.stderr
