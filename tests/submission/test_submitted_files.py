"""Files of the challenge: bytes and round trips of each format, and every fault with its line."""

import csv
import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas
import pytest
from ranked import CAPTIONS, E2022, NAMES, TEXTS, small_matrix, table, truth_bytes
from recorded_run import FOUND, QUERIES, json_lines, named, write_found, write_true

from data_tools.errors import KitError
from submission.editions import EDITIONS, MOMENTS, format_metric, get_edition
from submission.formats.csv_files import check_csv, csv_of, editions_of, read_csv, write_csv
from submission.formats.moments import (
    check_answers,
    read_answers,
    read_moment_truth,
    windows_by_query,
    write_answers,
    write_scored_answers,
)
from submission.formats.pairs import Pair, read_pairs, write_pairs
from submission.formats.problems import Problem, format_problems
from submission.formats.score_matrix import (
    Labels,
    ScoreMatrix,
    matrix_from_blocks,
    read_scores,
    write_blocks,
    write_scores,
)
from submission.formats.truth import labels_of, read_annotations, read_blind_set, read_captions, relevant_names
from submission.metrics.summary import summarise_matrix
from submission.runs.record import FrameScores, read_clips, read_frame_scores, write_frame_scores

E2025, CUSTOM = EDITIONS["2025"], EDITIONS["custom"]


def test_editions_have_their_columns_and_metrics():
    assert get_edition(2022).columns == ["caption", *(f"file_name_{rank}" for rank in range(1, 11))]
    assert EDITIONS["2024"].columns[:2] == ["caption", "fname_1"]
    assert (E2025.metric, MOMENTS["2026"].metric, E2022.metric) == ("mAP@16", "R1@0.7", "mAP@10")
    assert CUSTOM.for_pool(2).columns == ["query", "file_name_1", "file_name_2"]
    assert E2022.for_pool(2).ranking_length == 10
    assert (format_metric("mAP@10", 0.5, "+"), format_metric("R1@0.7", 0.5)) == ("+0.5000", "50.00 %")
    with pytest.raises(KitError, match="unknown"):
        get_edition(2026)


# --- CSV ---------------------------------------------------------------------------------------------------------


def test_ranked_csv_has_expected_bytes(tmp_path):
    matrix = ScoreMatrix(
        values=np.array([[0.5, 2, 0.5, -1], [0, 0, 0, 0]], dtype=np.float32),
        query_ids=["1", "2"],
        query_texts=[' Rain, "hard"', "A&#39;s"],
        clip_ids=list("wxyz"),
        file_names=["c.wav", " b.wav", "a,1.wav", "d .wav"],
        relevant=[None, None],
    )
    write_csv(matrix, tmp_path / "out.csv", replace(E2022, rank_prefix="n_", ranking_length=3))
    assert (tmp_path / "out.csv").read_bytes() == (
        b'caption,n_1,n_2,n_3\n" Rain, ""hard""", b.wav,"a,1.wav",c.wav\nA&#39;s, b.wav,"a,1.wav",c.wav\n'
    )


def test_csvs_equal_those_of_pandas_byte_for_byte(tmp_path, clotho):
    matrix = small_matrix()
    for edition in (E2022, E2025):
        write_csv(matrix, tmp_path / "out.csv", edition)
        data = (tmp_path / "out.csv").read_bytes()
        kind = {"dtype": str} if edition is E2022 else {"dtype": dict.fromkeys(NAMES, np.float32)}
        frame = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False, **kind)
        assert frame.to_csv(index=False, lineterminator="\n").encode() == data
    with clotho("evaluation").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    frame = pandas.DataFrame(rows[1:], columns=rows[0])
    assert frame.to_csv(index=False, lineterminator="\n").encode() == table(rows)


def test_scores_and_texts_survive_a_round_trip_through_a_matrix_csv(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, size=(24, 12), dtype=np.uint64).astype(np.uint32)
    bits[(bits & 0x7F800000) == 0x7F800000] = 0x80000000  # any 32 bits that are a finite number
    bits[:4, 0] = [1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF]
    matrix = small_matrix(values=bits.view(np.float32))
    write_csv(matrix, tmp_path / "out.csv", E2025)
    again = read_csv(tmp_path / "out.csv", E2025, matrix)
    assert again.values.tobytes() == matrix.values.tobytes()
    assert (again.query_texts, again.file_names) == (TEXTS, NAMES)
    assert summarise_matrix(again, E2025).values == summarise_matrix(matrix, E2025).values


def test_scores_that_only_float64_tells_apart_keep_their_order(tmp_path):
    steps = np.random.default_rng(5).permutation(np.arange(288.0)).reshape(24, 12)
    for scores in (1 - steps * 1e-12, 10 ** (-steps - 10)):
        rows = [[text, *map(repr, row)] for text, row in zip(TEXTS, scores.tolist(), strict=True)]
        (tmp_path / "x.csv").write_bytes(table([["index", *NAMES], *rows]))
        again = read_csv(tmp_path / "x.csv", E2025, small_matrix()).values
        assert (again.argsort(axis=None) == scores.argsort(axis=None)).all()


def test_rows_and_columns_of_a_csv_may_have_any_order(tmp_path):
    matrix = small_matrix(values=np.random.default_rng(5).integers(0, 4, size=(24, 12)).astype(np.float32))
    write_csv(matrix, tmp_path / "x.csv", E2025)
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    order = [0, *(np.random.default_rng(6).permutation(12) + 1)]
    (tmp_path / "y.csv").write_bytes(table([cells[column] for column in order] for cells in [header, *rows[::-1]]))
    again = read_csv(tmp_path / "y.csv", E2025, matrix)
    assert again.query_texts == TEXTS[::-1]
    assert summarise_matrix(again, E2025).values == pytest.approx(summarise_matrix(matrix, E2025).values)


def test_ranked_csv_scores_as_its_matrix(tmp_path, truth_path):
    truth = read_captions(truth_path)
    for seed in range(5):
        matrix = small_matrix(values=np.random.default_rng(seed).integers(0, 5, size=(24, 12)).astype(np.float32))
        write_csv(matrix, tmp_path / "out.csv", E2022)
        again = read_csv(tmp_path / "out.csv", E2022, truth)
        assert (again.query_texts, again.depth) == (TEXTS, 10)
        assert summarise_matrix(again, E2022).values == summarise_matrix(matrix, E2022).values


def cell(line: int, column: int, new: str) -> Callable[[list[list[str]]], bytes]:
    def edit(rows: list[list[str]]) -> bytes:
        rows[line - 1][column] = new
        return table(rows)

    return edit


def raw(old: bytes, new: bytes) -> Callable[[list[list[str]]], bytes]:
    return lambda rows: table(rows).replace(old, new, 1)


def twice(rows: list[list[str]]) -> bytes:
    rows[4] = rows[3]
    return table(rows)


FAULTS: list[tuple[str, Callable[[list[list[str]]], bytes], int | None, str]] = [  # edition, edit, line, word
    ("2022", lambda rows: b"", 1, "header"),
    ("2022", lambda rows: table(rows[:1]), 1, "follows"),
    ("2022", raw(b"file_name_", b"fname_"), 1, "header"),
    ("2022", raw(b"caption", b"\xef\xbb\xbfcaption"), 1, "mark"),
    ("2022", raw(b"caption", b",caption"), 1, "pandas"),
    ("2022", raw(b"Sound 1", b"\xff"), None, "UTF-8"),
    ("2022", raw(b'"Sound 0, near"', b'"Sound 0, near'), None, "quotes"),
    ("2022", cell(3, 0, ""), 3, "empty"),
    ("2022", cell(3, 0, "Sound 99"), 3, "unknown query"),
    ("2022", twice, 5, "repeated"),
    ("2022", lambda rows: table(rows[:-1]), None, "no row"),
    ("2022", lambda rows: table([*rows[:5], rows[5][:-1], *rows[6:]]), 6, "cells"),
    ("2022", lambda rows: table([*rows[:5], [], *rows[5:]]), 6, "cells"),
    ("2022", cell(7, 4, "rain.wav"), 7, "unknown file"),
    ("2022", cell(7, 1, "rain.wav"), 7, "unknown file"),
    ("2022", cell(7, 4, ""), 7, "empty"),
    ("2022", lambda rows: cell(7, 4, rows[6][3])(rows), 7, "twice"),
    ("2025", raw(b"index", b"caption"), 1, "header"),
    ("2025", cell(1, 3, "x.wav"), 1, "unknown file"),
    ("2025", cell(1, 1, "x.wav"), 1, "unknown file"),
    ("2025", lambda rows: cell(1, 3, rows[0][4])(rows), 1, "twice"),
    ("2025", lambda rows: table(row[:-1] for row in rows), 1, "no column"),
    ("2025", cell(9, 5, "high"), 9, "finite"),
    ("2025", cell(9, 5, ""), 9, "finite"),
    ("2025", cell(9, 5, "nan"), 9, "finite"),
    ("2025", cell(9, 5, "1e39"), 9, "finite"),
    ("2025", cell(9, 5, f"{2**128 - 2**103}"), 9, "finite"),
    ("2025", lambda rows: table([*rows[:5], [*rows[5], "1"], *rows[6:]]), 6, "cells"),
]


@pytest.mark.parametrize(("year", "edit", "line", "word"), FAULTS)
def test_each_fault_of_a_csv_is_found_with_its_line(tmp_path, year, edit, line, word):
    edition, matrix = EDITIONS[year], small_matrix()
    write_csv(matrix, tmp_path / "out.csv", edition)
    assert check_csv((tmp_path / "out.csv").read_bytes(), edition, matrix).problems == []
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        data = edit(list(csv.reader(file)))
    problems = check_csv(data, edition, matrix).problems
    assert any(problem.line == line and word in problem.kind for problem in problems), problems


@pytest.mark.parametrize("wrong", ["high", "nan", "1e39"])
def test_score_that_is_no_number_is_shown(wrong):
    matrix = small_matrix()
    header, *rows = csv.reader(csv_of(matrix, E2025).decode().splitlines())
    rows[4][7] = wrong
    (problem,) = check_csv(table([header, *rows]), E2025, matrix).problems
    assert (problem.line, problem.detail) == (6, wrong)


def test_unknown_names_are_shown_with_the_nearest_and_many_problems_are_counted():
    assert "'rain.wav'" in str(Problem(3, "unknown file name", "rain .wav", ["rain.wav", "wind.wav"]))
    shown = list(format_problems([Problem(line, "odd", str(line)) for line in range(1, 31)]))
    assert len(shown) == 21
    assert shown[-1].startswith("10 more")


def test_header_tells_the_editions_of_a_csv(tmp_path):
    for year, expected in (("2022", ["2022"]), ("2024", ["2023", "2024"]), ("2025", ["2025"]), ("custom", ["custom"])):
        write_csv(small_matrix(), tmp_path / "out.csv", EDITIONS[year])
        assert [edition.name for edition in editions_of(tmp_path / "out.csv")] == expected
    alone: dict[str, Any] = {"clip_ids": ["a"], "file_names": ["a.wav"], "relevant": [None] * 24}
    for edition, header in ((CUSTOM, "query,file_name_1\n"), (E2025, "index,a.wav\n")):
        write_csv(small_matrix(values=np.eye(24, 1, dtype=np.float32), **alone), tmp_path / "one.csv", edition)
        assert (tmp_path / "one.csv").read_text().startswith(header)
        assert edition in editions_of(tmp_path / "one.csv")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"file_names": ["x.wav", *NAMES[1:11], "x.wav"]}, "same"),
        ({"query_texts": ["same", *map(str, range(22)), "same"]}, "same"),
        ({"query_texts": [" ", *map(str, range(23))]}, "empty"),
    ],
)
def test_matrix_that_a_csv_cannot_represent_is_not_written(tmp_path, changes, word):
    with pytest.raises(KitError, match=word):
        write_csv(small_matrix(**changes), tmp_path / "out.csv", E2022)
    assert list(tmp_path.iterdir()) == []


# --- truth -------------------------------------------------------------------------------------------------------


def test_captions_from_excel_or_an_editor_are_read(tmp_path):
    for data in (truth_bytes(), b"\xef\xbb\xbf" + truth_bytes().replace(b"\n", b"\r\n")):
        (tmp_path / "captions.csv").write_bytes(data)
        truth = read_captions(tmp_path / "captions.csv")
        assert truth.file_names == sorted(NAMES)
        assert relevant_names(truth) == {text: [NAMES[n]] for n, texts in enumerate(CAPTIONS) for text in texts}


def test_truths_of_clotho_and_of_a_blind_set(clotho, tmp_path):
    truth = read_captions(clotho("evaluation"))
    assert truth.shape == (5225, 1045)
    with pytest.raises(KitError, match="same caption"):
        read_captions(clotho("development"))
    (tmp_path / "queries.csv").write_text("caption,more\nRain,x\nWind,y\n")
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio/a.wav").touch()
    blind = read_blind_set(tmp_path / "queries.csv", tmp_path / "audio")
    assert vars(blind) == vars(labels_of({"Rain": None, "Wind": None}, ["a.wav"]))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "empty"),
        ("file_name,caption_1\n", "row"),
        ("name,caption_1\na.wav,Rain\n", "file_name"),
        ("file_name,caption_1\na.wav,\n", "line 2"),
        ("file_name,caption_1\na.wav,Rain\na.wav,Wind\n", "line 3"),
        ("file_name,caption_1\na.wav,Rain\nb.wav,Rain\n", "line 3"),
        ('file_name,caption_1\na.wav,"Rain\nb.wav,Wind"\n', "line 3"),
        ('file_name,caption_1\na.wav,"Rain\n', "CSV"),
    ],
)
def test_wrong_captions_file_is_refused(tmp_path, content, word):
    (tmp_path / "captions.csv").write_text(content)
    with pytest.raises(KitError, match=word):
        read_captions(tmp_path / "captions.csv")


@pytest.mark.parametrize("row", ["Wind,['a.wav']", "Rain,[]", "Rain,a.wav", "Rain,['x.wav']", "Rain,[1"])
def test_wrong_annotations_are_refused_by_line(tmp_path, row):
    (tmp_path / "a.csv").write_text(f"query,audio_filenames\n{row}\n")
    with pytest.raises(KitError, match="line 2"):
        read_annotations(tmp_path / "a.csv", labels_of({"Rain": None}, ["a.wav"]))


# --- score matrices and pairs ------------------------------------------------------------------------------------


def test_score_matrix_survives_a_round_trip_and_refuses_damage(tmp_path):
    relevant = [None, ["clip3", "clip1"], *small_matrix().relevant[2:]]
    matrix = small_matrix(relevant=relevant, facts={"é": [1]})
    write_scores(tmp_path / "a.npy", matrix)
    write_blocks(tmp_path / "b.npy", matrix, [matrix.values[:5], matrix.values[5:]])
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    labels = Labels(*(getattr(matrix, one.name) for one in fields(Labels)))
    for again in (read_scores(tmp_path / "a.npy"), matrix_from_blocks(labels, [matrix.values])):
        assert vars(again) | {"values": again.values.tobytes()} == vars(matrix) | {"values": matrix.values.tobytes()}
        assert again.relevant_columns()[:2] == [[], [1, 3]]
    assert np.load(tmp_path / "a.npy").dtype == np.float32
    path = tmp_path / "a.npy"
    for damage in (
        lambda: path.write_bytes(path.read_bytes()[:-4]),
        lambda: path.with_suffix(".json").write_text("{}"),
    ):
        write_scores(path, small_matrix())
        damage()
        with pytest.raises(KitError, match=r"a\.npy"):
            read_scores(path)
    labels = {"query_texts": ["a", "b"], "clip_ids": ["x"], "file_names": ["x.wav"], "relevant": [None, None]}
    Labels(query_ids=["1", "2"], **labels)  # type: ignore[arg-type]
    with pytest.raises(KitError, match="quotes"):
        Labels(query_ids=[1, 2], **labels)  # type: ignore[arg-type,list-item]
    with pytest.raises(KitError, match="quotes"):
        Labels(query_ids=["1", "2"], **labels | {"file_names": [0]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"values": np.zeros((24, 12))},
        {"values": np.zeros((24, 11), np.float32)},
        {"query_ids": ["q"] * 24},
        {"clip_ids": ["c"] * 12},
        {"file_names": NAMES[1:]},
        {"query_texts": TEXTS[1:]},
        {"relevant": [["other"]] * 24},
        {"relevant": [[]] * 24},
        {"relevant": [["clip0", "clip0"]] * 24},
    ],
)
def test_inconsistent_score_matrix_is_refused(changes):
    with pytest.raises(KitError):
        small_matrix(**changes)


def test_pairs_survive_a_round_trip_and_wrong_ones_are_refused_by_line(tmp_path):
    pairs = [Pair("q1", "é", "clip0", "a b.wav", 0.25, 1), Pair("q1", "é", "clip1", "b.wav", 0.125, 2)]
    write_pairs(tmp_path / "p.jsonl", pairs)
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["query", "text", "clip", "path", "score", "rank"]
    assert read_pairs(tmp_path / "p.jsonl") == pairs
    for change in ({"judge": "good"}, {"clip": "clip0"}, {"query": 7}, {"rank": None}):
        json_lines(tmp_path / "p.jsonl", [lines[0], lines[1] | change])
        with pytest.raises(KitError, match="line 2"):
            read_pairs(tmp_path / "p.jsonl")


# --- moments -----------------------------------------------------------------------------------------------------


def test_found_windows_are_written_with_and_without_scores(tmp_path):
    truth = read_moment_truth(write_true(tmp_path / "true.jsonl"))
    answers = read_answers(write_found(tmp_path / "found.jsonl"), truth)
    assert windows_by_query(answers) == FOUND
    write_scored_answers(tmp_path / "again.jsonl", answers)
    assert read_answers(tmp_path / "again.jsonl") == answers
    many = replace(answers[0], windows=[[float(n), n + 1.0, n / 20] for n in range(12)])
    write_answers(tmp_path / "out.jsonl", [many])
    (line,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert line["pred_relevant_windows"] == [[n, n + 1] for n in range(11, 1, -1)], "the best ten, best first"
    assert list(line) == ["qid", "query", "vid", "pred_relevant_windows"]
    assert not read_answers(tmp_path / "out.jsonl")[0].is_scored
    assert truth.windows() == QUERIES
    assert read_moment_truth(write_true(tmp_path / "blind.jsonl", blind=True)).is_blind
    line = {"qid": 0, "query": "x", "vid": "v", WINDOWS: [[0, 1]], "relevant_windows": [[0, 1]]}
    path = json_lines(tmp_path / "numbers.jsonl", [line])
    truth = read_moment_truth(path)
    assert windows_by_query(read_answers(path, truth)) == truth.windows() == {"0": [[0, 1]]}


LINE = named("a_1") | {"pred_relevant_windows": [[0, 9, 0.9]]}
WINDOWS = "pred_relevant_windows"


@pytest.mark.parametrize(
    ("lines", "line", "word"),
    [
        ([], None, "empty"),
        (["x"], 1, "JSON"),
        (["\ufeff" + json.dumps(LINE)], 1, "JSON"),
        ([[]], 1, "JSON"),
        ([{**LINE, "qid": None}], 1, "qid"),
        ([{WINDOWS: [[0, 1]]}], 1, "qid"),
        ([{"qid": "a_1"}], 1, WINDOWS),
        ([{**LINE, WINDOWS: []}], 1, WINDOWS),
        ([{**LINE, WINDOWS: [[1]]}], 1, WINDOWS),
        ([{**LINE, WINDOWS: [[1, 2, 3, 4]]}], 1, WINDOWS),
        ([{**LINE, WINDOWS: [["0", "1"]]}], 1, WINDOWS),
        ([{**LINE, WINDOWS: [[0, float("inf")]]}], 1, WINDOWS),
        ([{**LINE, WINDOWS: [[5, 2, 1]]}], 1, "window"),
        ([{**LINE, WINDOWS: [[0, 1], [0, 1, 0.5]]}], None, "scores"),
        ([{**LINE, WINDOWS: [[0, 1, 0.5], [0, 1]]}], None, "scores"),
        ([LINE, LINE], 2, "repeated"),
        ([{**LINE, "qid": "z_1"}], 1, "unknown"),
        ([LINE], None, "no line"),
    ],
)
def test_each_fault_of_found_windows_is_reported_with_its_line(tmp_path, lines, line, word):
    truth = read_moment_truth(write_true(tmp_path / "true.jsonl"))
    data = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines).encode()
    problems = check_answers(data, truth).problems
    assert any(problem.line == line and word in problem.kind for problem in problems), problems


@pytest.mark.parametrize(
    ("window", "is_odd"), [([0, 1], False), ([-1, 1], True), ([59, 60], False), ([59, 61], True), ([5, 5], True)]
)
def test_windows_outside_the_recording_or_without_length_are_noted(tmp_path, window, is_odd):
    line = named("a_1") | {"duration": 60, "relevant_windows": [window], WINDOWS: [window]}
    truth = read_moment_truth(json_lines(tmp_path / "one.jsonl", [line]))
    assert bool(check_answers((tmp_path / "one.jsonl").read_bytes(), truth).notes) == is_odd


def test_unusual_windows_are_noted_but_scored(tmp_path):
    truth = read_moment_truth(write_true(tmp_path / "true.jsonl"))
    odd = [[5, 5, 0.1], [70, 80, 0.9], *([n, n + 1, 0.0] for n in range(10))]
    lines = [LINE | {WINDOWS: odd, "query": "other"}, *(named(q) | {WINDOWS: FOUND[q]} for q in list(FOUND)[1:])]
    json_lines(tmp_path / "odd.jsonl", lines)
    found = check_answers((tmp_path / "odd.jsonl").read_bytes(), truth)
    assert found.problems == []
    kinds = " ".join(note.kind for note in found.notes if note.line == 1)
    for word in ("length", "more than", "sorted", "differs"):
        assert word in kinds
    ten = json.dumps(LINE | {WINDOWS: [[n, n + 1] for n in range(10)]}).encode()
    assert check_answers(ten).notes == []


# --- files of a run ----------------------------------------------------------------------------------------------


def test_frames_and_tables_of_clips_survive_a_round_trip(tmp_path):
    frames = {
        "a": FrameScores(np.array([0.0, 1, 3]), np.array([0.5, 0.25])),
        "b": FrameScores(np.array([2.0]), np.array([])),
    }
    write_frame_scores(tmp_path / "f.npz", frames)
    for qid, again in read_frame_scores(tmp_path / "f.npz").items():
        assert again.edges.tolist() == frames[qid].edges.tolist()
        assert again.frames.tolist() == frames[qid].frames.tolist()
    (tmp_path / "c.csv").write_text('clip,path,seconds,norm x\nb,"/x, y.wav",1.5,2\na,/NA,,3\n')
    found = read_clips(tmp_path / "c.csv", ["a", "b"])
    assert [(row["path"], row["seconds"]) for row in found] == [("/NA", ""), ("/x, y.wav", "1.5")]
    with pytest.raises(KitError, match="'z'"):
        read_clips(tmp_path / "c.csv", ["z"])
