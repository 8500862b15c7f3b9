"""Matrix CSVs: scores and names survive a round trip; every fault is reported with its line."""

import csv
import dataclasses
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from ranked import NAMES, change_cell, change_line, check_problems, score_matrix, small_matrix

from submission.editions import EDITIONS
from submission.errors import SubmissionError
from submission.formats.csv_table import format_table, parse_table
from submission.formats.matrix_csv import check_matrix_csv, read_matrix_csv, write_matrix_csv
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import matrix_truth

E2025 = EDITIONS["2025"]


def matrix_of(values: object, names: list[str] | None = None) -> ScoreMatrix:
    scores = np.array(values, dtype=np.float32)
    texts = [f"text {row}" for row in range(len(scores))]
    names = names or [f"{column}.wav" for column in range(scores.shape[1])]
    return ScoreMatrix(scores, texts, texts, names, names, [None] * len(texts))


def good_lines(folder: Path) -> list[bytes]:
    """Return the lines of a valid matrix CSV: the header and 24 rows of 12 scores."""
    write_matrix_csv(small_matrix(), folder / "good.csv", E2025)
    return (folder / "good.csv").read_bytes().splitlines(keepends=True)


def test_written_matrix_csv_matches_expected_bytes(tmp_path: Path) -> None:
    matrix = ScoreMatrix(
        values=np.array([[0.5, -0.1, 1e-5], [16777216, -0.0, 3.4028235e38]], dtype=np.float32),
        query_ids=["1", "2"],
        query_texts=[' Rain, "hard" ', "A&#39;s"],
        clip_ids=list("xyz"),
        file_names=["c.wav", " b.wav", "a,1.wav"],
        relevant=[None, None],
    )
    write_matrix_csv(matrix, tmp_path / "out.csv", E2025)
    assert (tmp_path / "out.csv").read_bytes() == (
        b'index,c.wav, b.wav,"a,1.wav"\n" Rain, ""hard"" ",0.5,-0.1,1e-05\nA&#39;s,1.6777216e+07,-0.0,3.4028235e+38\n'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_scores_and_texts_survive_a_round_trip_through_a_matrix_csv(tmp_path: Path) -> None:
    # Any 32 bits that are a finite number: large, small, subnormal, both zeros.
    bits = np.random.default_rng(0).integers(0, 2**32, size=(200, 12), dtype=np.uint64).astype(np.uint32)
    bits[(bits & 0x7F800000) == 0x7F800000] = 0x80000000
    bits[:3, 0] = [1, 0x007FFFFF, 0x00800000]
    matrix = matrix_of(bits.view(np.float32), NAMES)
    write_matrix_csv(matrix, tmp_path / "one.csv", E2025)
    again = read_matrix_csv(tmp_path / "one.csv", E2025)
    assert again.values.tobytes() == matrix.values.tobytes()
    assert (again.query_texts, again.query_ids) == (matrix.query_texts, matrix.query_texts)
    assert (again.file_names, again.clip_ids, again.relevant) == (NAMES, NAMES, [None] * 200)
    write_matrix_csv(again, tmp_path / "two.csv", E2025)
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_matrix_csv_adds_digits_if_reading_through_float64_would_change_a_float32_score(tmp_path: Path) -> None:
    # The shortest text of this float32 lies so near the middle to the next that a float64 on the way is the middle.
    scores = np.array([[0x15AE43FD]], dtype=np.uint32).view(np.float32)
    shortest = str(scores.astype("U")[0, 0])
    assert np.float32(float(shortest)) != scores[0, 0]
    write_matrix_csv(matrix_of(scores), tmp_path / "out.csv", E2025)
    cell = (tmp_path / "out.csv").read_text().split(",")[-1].strip()
    assert (len(cell) > len(shortest), struct.pack("f", float(cell))) == (True, scores.tobytes())
    assert read_matrix_csv(tmp_path / "out.csv", E2025).values.tobytes() == scores.tobytes()


def test_largest_float32_scores_survive_a_round_trip_through_a_matrix_csv(tmp_path: Path) -> None:
    largest = np.finfo(np.float32).max
    write_matrix_csv(matrix_of([[largest, -largest, 0.5]]), tmp_path / "out.csv", E2025)
    assert read_matrix_csv(tmp_path / "out.csv", E2025).values.tolist() == [[largest, -largest, 0.5]]
    below = math.nextafter(2.0**128 - 2.0**103, 0)
    (tmp_path / "near.csv").write_text(f"index,0.wav,1.wav\ntext 0,{below!r},{-below!r}\n")
    assert read_matrix_csv(tmp_path / "near.csv", E2025).values.tolist() == [[largest, -largest]]


def test_digits_of_written_scores_do_not_depend_on_the_numpy_release(tmp_path: Path) -> None:
    """Some releases write exponents from 1e6 on, others from 1e16 on."""
    scores = [999_999.0, 1e6, -1234567.0, 16_777_216.0, 123_456_790.0, 1e15, 1.5e20, 1e-4, 0.0]
    write_matrix_csv(matrix_of([scores]), tmp_path / "out.csv", E2025)
    cells = (tmp_path / "out.csv").read_text().splitlines()[1].split(",")[1:]
    assert cells == (
        ["999999.0", "1e+06", "-1.234567e+06", "1.6777216e+07", "1.2345679e+08", "1e+15", "1.5e+20", "1e-04", "0.0"]
    )


def test_pandas_reads_our_matrix_csvs_and_we_read_those_of_pandas(tmp_path: Path) -> None:
    matrix = small_matrix()
    write_matrix_csv(matrix, tmp_path / "out.csv", E2025)
    frame = pandas.read_csv(tmp_path / "out.csv", index_col="index")
    assert frame.to_numpy().astype(np.float32).tobytes() == matrix.values.tobytes()
    assert (list(frame.columns), list(frame.index)) == (NAMES, matrix.query_texts)
    # 17 digits of a float64 that is no float32 are rounded to the nearest one.
    frame += 1e-12
    frame.to_csv(tmp_path / "pandas.csv")
    read = read_matrix_csv(tmp_path / "pandas.csv", E2025, matrix_truth(matrix))
    assert read.values.tobytes() == frame.to_numpy().astype(np.float32).tobytes()


def test_matrix_csv_rows_and_columns_may_have_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(5).integers(0, 4, size=(24, 12)).astype(np.float32)  # ties everywhere
    matrix = small_matrix(values=values)
    truth = matrix_truth(matrix)
    write_matrix_csv(matrix, tmp_path / "x.csv", E2025)
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    order = [0, *(np.random.default_rng(6).permutation(12) + 1)]
    with (tmp_path / "y.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([cells[column] for column in order] for cells in [header, *rows[::-1]])
    one, other = (read_matrix_csv(tmp_path / name, E2025, truth) for name in ("x.csv", "y.csv"))
    assert other.file_names == [header[column] for column in order[1:]]
    assert other.query_ids == matrix.query_ids[::-1]
    assert other.values.tobytes() == values[::-1, [column - 1 for column in order[1:]]].tobytes()
    for found in (one, other):
        assert score_matrix(found).values == pytest.approx(score_matrix(matrix).values)


def test_matrix_csv_takes_ids_and_relevant_clips_from_the_truth(tmp_path: Path) -> None:
    matrix = small_matrix(relevant=[None] + [["clip3", "clip1"]] * 23)
    write_matrix_csv(matrix, tmp_path / "out.csv", E2025)
    again = read_matrix_csv(tmp_path / "out.csv", E2025, matrix_truth(matrix))
    for field in ("query_ids", "query_texts", "clip_ids", "file_names"):
        assert getattr(again, field) == getattr(matrix, field)
    assert again.relevant == [None] + [["clip1", "clip3"]] * 23


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_matrix_csv_with_one_query_or_one_clip_is_valid(tmp_path: Path, shape: tuple[int, int]) -> None:
    matrix = matrix_of(np.zeros(shape))
    write_matrix_csv(matrix, tmp_path / "out.csv", E2025)
    assert read_matrix_csv(tmp_path / "out.csv", E2025).values.shape == shape


def test_matrix_csv_keeps_numeric_file_names_and_separators_in_names(tmp_path: Path) -> None:
    matrix = matrix_of(np.eye(3), ["1", "2.5", "a;b|c\td.wav"])
    write_matrix_csv(matrix, tmp_path / "out.csv", E2025)
    assert read_matrix_csv(tmp_path / "out.csv", E2025, matrix_truth(matrix)).file_names == matrix.file_names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_names": ["x.wav", *NAMES[1:11], "x.wav"]}, "'clip0' and 'clip11' have the same file name 'x.wav'"),
        ({"query_texts": ["same", *map(str, range(22)), "same"]}, "'q0' and 'q23' have the same text 'same'"),
        (
            {"query_texts": [" ", *map(str, range(23))]},
            r"out\.csv is not written, because it would not pass `check`: line 2: index is empty",
        ),
        ({"query_texts": ["a\0b", *map(str, range(23))]}, "line 2: the row contains a NUL byte"),
        ({"query_texts": ["a\ud800b", *map(str, range(23))]}, "line 2: the row is not UTF-8"),
        ({"file_names": [*NAMES[1:], " "]}, "line 1: column 13 of the header is empty"),
        ({"file_names": [*NAMES[1:], ""]}, "line 1: a comma at the end"),
    ],
)
def test_ambiguous_or_invalid_matrix_csv_is_not_written(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_matrix_csv(small_matrix(**changes), tmp_path / "out.csv", E2025)
    assert list(tmp_path.iterdir()) == []


# --- faults ------------------------------------------------------------------------------------------------------

Fault = Callable[[list[bytes]], bytes]
ROWS_2022 = b"caption," + b",".join(b"file_name_%d" % rank for rank in range(1, 11)) + b"\n"
FAULTS: dict[str, tuple[Fault, list[str]]] = {
    "empty file": (lambda lines: b"", ["line 1: the file is empty"]),
    "an empty line for a header": (lambda lines: b"\n" + lines[1],
                                   ["line 1: column 1 of the header is missing", "line 1: no file name follows",
                                    "line 2: found 13 of 1 columns", *["whole file: no row for the query"] * 23]),
    "only a header": (lambda lines: lines[0], ["line 1: no row follows the header"]),
    "UTF-16": (lambda lines: b"".join(lines).decode().encode("utf-16"), ["line 1: the file is not UTF-8 but UTF-16"]),
    "tabs": (lambda lines: b"".join(lines).replace(b",", b"\t"), ["line 1: columns are separated by tabs"]),
    "old line ends": (lambda lines: b"".join(lines).replace(b"\n", b"\r"), ["line 1: lines end with a carriage ret"]),
    "byte order mark": (lambda lines: b"\xef\xbb\xbf" + b"".join(lines), ["line 1: .*byte order mark"]),
    "another query column": (change_line(1, lambda line: b"caption" + line[5:]),
                             ["line 1: column 1 of the header is 'caption'; it must be index"]),
    "index name lost": (change_line(1, lambda line: line[5:]), ["line 1: column 1 of the header is ''; it must be"]),
    "row numbers": (lambda lines: b"".join(b"%s,%s" % (b"" if n == 0 else b"%d" % n, line) for n, line in
                                           enumerate(lines)), ["line 1: the first column has row numbers"]),
    "ranked": (lambda lines: ROWS_2022 + b"q" + b",x.wav" * 10 + b"\n",
               [r"line 1: this is a ranked CSV \(with the header of edition 2022\); edition 2025 needs every score"]),
    "header missing": (lambda lines: b"".join(lines[1:]),
                       ["line 1: the header is missing; it must be index, followed by every file name"]),
    "unknown name": (change_cell(1, 3, lambda _: "x.wav"),
                     ["line 1: unknown file name 'x.wav' in column 4", "line 1: no column for the file 'b, c, and d"]),
    "name stripped": (change_cell(1, 1, str.strip), ["line 1: unknown file name .* which differs in blanks",
                                                    "line 1: no column for the file ' Ambience Birds.wav'"]),
    "name twice": (change_cell(1, 8, lambda _: "i.wav"),
                   ["line 1: the file 'i.wav' has more than one column: 9 and 11", "line 1: no column .* 'g.wav'"]),
    "empty name": (change_cell(1, 8, lambda _: ""), ["line 1: column 9 of the header is empty", "line 1: no column"]),
    "not a number": (change_cell(4, 2, lambda _: "high"),
                     ["line 4: scores must be finite float32 numbers; found 'high' for 'Breaking Glass .wav'"]),
    "nan, inf and nothing": (lambda lines: change_cell(4, 2, lambda _: "nan")(
        change_cell(4, 1, lambda _: "-inf")(change_cell(4, 9, lambda _: "")(change_cell(4, 5, lambda _: "1e39")(
            lines).splitlines(True)).splitlines(True)).splitlines(True)),
        ["line 4: scores must .*'-inf' for ' Ambience Birds.wav', 'nan' for 'Breaking Glass .wav', '1e39' for 'the "
         "\"bus\".wav' and 1 more$"]),
    "half way beyond the largest float32": (change_cell(4, 2, lambda _: repr(2.0**128 - 2.0**103)),
                                            [r"line 4: scores must be .* found '3\.4028235677973366e\+38'"]),
    "nothing": (change_cell(5, 1, lambda _: ""), ["line 5: scores must be .* found nothing for ' Ambience"]),
    "an underscore between digits": (change_cell(5, 1, lambda _: "1_0"), ["line 5: scores must be finite .*'1_0'"]),
    "a leading blank": (change_cell(5, 1, lambda cell: " " + cell), ["line 5: scores must be finite .* ' -?[0-9]"]),
    "digits of another script": (change_cell(5, 1, lambda _: "١"), ["line 5: scores must be finite float32 .*'١'"]),
    "short row": (change_line(6, lambda line: line.rsplit(b",", 1)[0] + b"\n"),
                  ["line 6: found 12 of 13 columns: a row needs one query and a score for each of 12 files"]),
    "trailing comma": (change_line(6, lambda line: line.strip() + b",\n"), ["line 6: a comma at the end"]),
    "trailing commas": (lambda lines: b"".join(line.strip() + b",\n" for line in lines),
                        [f"line {line}: a comma at the end" for line in range(1, 26)]),
    "empty line": (change_line(6, lambda line: b"\n" + line), ["line 6: the line is empty"]),
    "query twice": (lambda lines: b"".join([*lines, lines[3]]), ["line 26: the query 'Sound 1, near' is repeated"]),
    "missing query": (lambda lines: b"".join([*lines[:3], *lines[4:]]),
                      [r"whole file: no row for the query 'Sound 1, near' \(query 'q2'\)"]),
    "several": (lambda lines: b"".join([*lines[:3], b"\xff\n", b"q,x\n", *lines[5:]]),
                ["line 4: the row is not UTF-8", "line 5: unknown query 'q'", "line 5: found 2 of 13",
                 "whole file: no row for the query 'Sound 1, near'", "whole file: no row for the query 'Sound 1 far'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_in_matrix_csv_are_reported_with_their_lines(tmp_path: Path, name: str) -> None:
    lines, truth = good_lines(tmp_path), matrix_truth(small_matrix())
    fault, expected = FAULTS[name]
    matrix, problems = check_matrix_csv(b"".join(lines), E2025, truth)
    assert (problems, matrix is None) == ([], False)
    matrix, problems = check_matrix_csv(fault(lines), E2025, truth)
    assert matrix is None
    check_problems(problems, expected)


def test_matrix_csv_with_quoted_header_and_windows_line_ends_is_accepted(tmp_path: Path) -> None:
    lines = good_lines(tmp_path)
    same = b"".join(line.rstrip(b"\n") + b"\r\n" for line in lines).replace(b"index", b'"index"')
    matrix, problems = check_matrix_csv(same, E2025, matrix_truth(small_matrix()))
    assert problems == []
    assert matrix
    assert matrix.values.tobytes() == small_matrix().values.tobytes()


# --- the door and real data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [pytest.param("development", marks=pytest.mark.slow), "validation", "evaluation"])
def test_clotho_names_and_captions_survive_ranked_and_matrix_csvs(shared: Path, tmp_path: Path, split: str) -> None:
    with (shared / f"data/clotho/clotho_captions_{split}.csv").open(encoding="utf-8", newline="") as file:
        names, *columns = zip(*list(csv.reader(file))[1:], strict=True)
    texts = sorted({text for column in columns for text in column})
    # All captions against all names would be files of gigabytes: all names of few rows, all captions of few columns.
    few = matrix_of(np.random.default_rng(0).normal(size=(3, len(names))), list(names))
    few = dataclasses.replace(few, query_texts=[max(texts, key=len), min(texts, key=len), 'a "b", c '])
    write_matrix_csv(few, tmp_path / "names.csv", E2025)
    again = read_matrix_csv(tmp_path / "names.csv", E2025, matrix_truth(few))
    assert (again.file_names, again.query_texts) == (list(names), few.query_texts)
    assert again.values.tobytes() == few.values.tobytes()
    some = dataclasses.replace(matrix_of(np.random.default_rng(1).normal(size=(len(texts), 2))), query_texts=texts)
    write_matrix_csv(some, tmp_path / "texts.csv", E2025)
    again = read_matrix_csv(tmp_path / "texts.csv", E2025, matrix_truth(some))
    assert again.query_texts == texts
    listing = matrix_of(np.random.default_rng(2).normal(size=(len(texts), 12)), list(names[:12]))
    write_ranked_csv(dataclasses.replace(listing, query_texts=texts), tmp_path / "listing.csv", EDITIONS["2022"])
    with (tmp_path / "listing.csv").open(encoding="utf-8", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["caption", *texts]
    data = (tmp_path / "listing.csv").read_bytes()
    rows, problems = parse_table(data)
    assert (format_table(row.cells for row in rows), problems) == (data, [])
    distance = (np.arange(len(names)) - 10 * np.arange(math.ceil(len(names) / 10))[:, None]) % len(names)
    write_ranked_csv(matrix_of(-distance, list(names)), tmp_path / "ranked.csv", EDITIONS["2022"])
    with (tmp_path / "ranked.csv").open(encoding="utf-8", newline="") as file:
        listed = {name for row in list(csv.reader(file))[1:] for name in row[1:]}
    assert listed == set(names)
