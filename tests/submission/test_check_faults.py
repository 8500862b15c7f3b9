"""The submission of the 2022 baseline, damaged in forty ways: each fault is reported with its line."""

import csv
import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ranked import E2022, change_cell, change_line, check_problems

from submission.__main__ import main
from submission.formats.columns import DIFFERING
from submission.formats.csv_table import Problem, format_problems, format_table
from submission.formats.ranked_csv import check_ranked_csv
from submission.formats.truth import Truth, read_clotho_truth

Fault = Callable[[list[bytes]], bytes]
SHOWN = 20
E2022_HEADER = ",".join(E2022.columns).encode() + b"\n"


@pytest.fixture(scope="module")
def lines(shared: Path) -> list[bytes]:
    return (shared / "data/dcase2022_baseline/test.output.csv").read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def truth(shared: Path) -> Truth:
    return read_clotho_truth(shared / "data/clotho/clotho_captions_evaluation.csv")


def by_row(edit: Callable[[list[str]], list[str]], first: int = 1) -> Fault:
    """Edit the cells of every row from line `first` on."""
    return lambda lines: (
        b"".join(lines[: first - 1])
        + format_table(edit(row) for row in csv.reader(line.decode() for line in lines[first - 1 :]))
    )


def rename_first(edit: Callable[[str], str], among: Callable[[str], bool] = lambda name: True) -> Fault:
    """Rename the first file name that matches; its line is 2 to 5226."""

    def change(lines: list[bytes]) -> bytes:
        for number, row in enumerate(csv.reader(line.decode() for line in lines), start=1):
            for column, name in enumerate(row):
                if number > 1 and column and among(name):
                    return change_cell(number, column, edit)(lines)
        raise AssertionError("the real file has no such name")

    return change


def folded(patterns: Callable[[int], str], first: int, kind: str, more: int = 5225) -> list[str]:
    """Expected messages for the same fault on every line from `first` on."""
    shown = [patterns(line) for line in range(first, first + SHOWN)]
    return [
        *shown,
        rf"lines {first + SHOWN}-5226: {more + 2 - first - SHOWN} more problems of the kind: {kind} "
        r"\(`check --all` prints each\)",
    ]


NO_ROW = r"whole file: no row for the query '"
UNKNOWN = r"line \d+: unknown file name .* in file_name_\d+; the most similar known one is '.*', which differs in "
FAULTS: dict[str, tuple[Fault, list[str]]] = {
    "empty": (lambda lines: b"", ["line 1: the file is empty"]),
    "header only": (lambda lines: lines[0], ["line 1: no row follows the header"]),
    "header of 2023": (change_line(1, lambda line: line.replace(b"file_name_", b"fname_")),
                       [r"line 1: this is the header of edition 2023 and 2024: add --edition 2023 or"]),
    "header missing": (lambda lines: b"".join(lines[1:]), ["line 1: the header is missing; the header of edition"]),
    "a header column renamed": (change_cell(1, 4, lambda _: "file_4"),
                                ["line 1: column 5 is 'file_4' instead of file_name_4; the header"]),
    "header in capitals": (change_line(1, bytes.upper),
                           [r"line 1: column 1 is 'CAPTION' instead of caption \(and 10 more columns\)"]),
    "header column lost": (change_line(1, lambda line: line.replace(b"file_name_9,", b"")),
                           ["line 1: found 10 of 11 columns", "line 1: column 10 is 'file_name_10' instead of file_"]),
    "header twice": (change_line(2, lambda line: E2022_HEADER + line),
                     ["line 2: unknown query 'caption'", *["line 2: unknown file name 'file_name_"] * 10]),
    "semicolons": (lambda lines: b"".join(lines).replace(b",", b";"), ["line 1: columns are separated by semicolons"]),
    "tabs": (lambda lines: b"".join(lines).replace(b",", b"\t"), ["line 1: columns are separated by tabs"]),
    "UTF-16": (lambda lines: b"".join(lines).decode().encode("utf-16"), ["line 1: the file is not UTF-8 but UTF-16"]),
    "UTF-16 without a mark": (lambda lines: b"".join(lines).decode().encode("utf-16-le"),
                              ["line 1: the file is not UTF-8 but UTF-16"]),
    "Latin-1 letter": (change_line(700, lambda line: line.replace(b".wav", b"\xe9.wav", 1)),
                       [r"line 700: the row is not UTF-8 \(character \d+ is the byte 0xE9, 'é' in Latin-1\)", NO_ROW]),
    "byte order mark": (lambda lines: b"\xef\xbb\xbf" + b"".join(lines), ["line 1: the file starts with a byte order"]),
    "old Macintosh line ends": (lambda lines: b"".join(lines).replace(b"\n", b"\r"),
                                ["line 1: lines end with a carriage return only"]),
    "one carriage return inside": (change_line(9, lambda line: b"A\r" + line),
                                   ["line 9: a carriage return is outside quotes", NO_ROW]),
    "NUL": (change_line(44, lambda line: line.replace(b"e", b"\0", 1)), ["line 44: the row contains a NUL", NO_ROW]),
    "quote never closed": (change_line(5226, lambda line: b'"' + line.replace(b'"', b"")),
                           ["line 5226: a quote on this line is never closed", NO_ROW]),
    "quotes not doubled": (change_line(60, lambda line: b'"a "b" c"' + line[3:]),
                           ["line 60: the row's quoting is broken", NO_ROW]),
    "an empty line": (change_line(100, lambda line: b"\n" + line), ["line 100: the line is empty; remove it"]),
    "an empty last line": (lambda lines: b"".join(lines) + b"\n", ["line 5227: the line is empty; remove it"]),
    "a row lost": (lambda lines: b"".join([*lines[:199], *lines[200:]]),
                   [r"whole file: no row for the query '.*' \(line \d+ of clotho_captions_evaluation\.csv\)"]),
    "a row twice": (lambda lines: b"".join([*lines, lines[41]]),
                    ["line 5227: the query '.*' is repeated; it is already on line 42"]),
    "half of the file": (lambda lines: b"".join(lines[:2613]),
                         [*[NO_ROW] * SHOWN, r"whole file: 2593 more problems of the kind: a query has no row \("]),
    "a short row": (change_line(10, lambda line: line.rsplit(b",", 1)[0] + b"\n"),
                    ["line 10: found 10 of 11 columns: a row needs one query and 10 file names"]),
    "ten names more": (by_row(lambda row: row + row[1:], 2),
                       folded(lambda line: f"line {line}: found 21 of 11 columns", 2,
                              "a row has missing or extra columns")),
    "trailing comma": (change_line(8, lambda line: line.strip() + b",\n"), ["line 8: a comma at the end of the line"]),
    "trailing commas everywhere": (lambda lines: b"".join(line.strip() + b",\n" for line in lines),
                                   folded(lambda line: f"line {line}: a comma at the end", 1,
                                          "a line ends with a comma")),
    "row numbers of pandas": (lambda lines: b"".join(b"%s,%s" % (b"%d" % (n - 1) if n else b"", line)
                                                     for n, line in enumerate(lines)),
                              ["line 1: the first column has row numbers, as pandas writes"]),
    "scores for names": (by_row(lambda row: [row[0], *(f"{0.9 / n:.6f}" for n in range(1, 11))], 2),
                         folded(lambda line: f"line {line}: the row has scores in place of file names: file_name_1",
                                2, "a row has scores instead of file names")),
    "a score matrix": (lambda lines: b"index,a.wav,b.wav\nq,0.1,0.2\n",
                       ["line 1: this is a CSV of all scores, but edition 2022 needs ranked lists of file names"]),
    "a name twice": (lambda lines: change_cell(77, 3, lambda _: next(csv.reader([lines[76].decode()]))[9])(lines),
        ["line 77: the file '.*' is listed more than once, as file_name_3 and file_name_9"]),
    "a name empty": (change_cell(78, 10, lambda _: ""), ["line 78: file_name_10 is empty"]),
    "a query empty": (change_cell(79, 0, lambda _: ""), ["line 79: caption is empty", NO_ROW]),
    "a query without its full stop": (change_cell(80, 0, lambda text: text.rstrip(".")),
                                      ["line 80: unknown query .* which differs in punctuation", NO_ROW]),
    "a query misspelt": (change_cell(81, 0, lambda text: text[:9] + "x" + text[9:]),
                         ["line 81: unknown query '.*'; the most similar known .* which differs in a letter", NO_ROW]),
    "queries in capitals": (lambda lines: change_cell(90, 0, str.upper)(
        change_cell(91, 0, str.upper)(lines).splitlines(keepends=True)),
        [rf"line {line}: unknown query .* differs in letter case" for line in (90, 91)] + [NO_ROW] * 2),
    "two blanks made one": (rename_first(lambda name: name.replace("  ", " "), lambda name: "  " in name),
                            [UNKNOWN + "blanks"]),
    "blanks before the ending lost": (rename_first(lambda name: name.replace(" .wav", ".wav"),
                                                   lambda name: " .wav" in name), [UNKNOWN + "blanks"]),
    "an entity made a letter": (rename_first(html.unescape, lambda name: "&#39;" in name), [UNKNOWN + "HTML entities"]),
    "a letter of another form": (rename_first(lambda name: chr(ord(name[0]) + 0xFEE0) + name[1:]),
                                 [UNKNOWN + "its Unicode form"]),
    "a name in capitals": (rename_first(str.upper), [UNKNOWN + "letter case"]),
    "another ending": (rename_first(lambda name: name.replace(".wav", ".WAV")), [UNKNOWN + "letter case"]),
    "ending lost": (rename_first(lambda name: name.removesuffix(".wav")), [UNKNOWN + "its ending"]),
    "a folder in front": (rename_first(lambda name: f"evaluation/{name}"), [UNKNOWN + "a folder in front"]),
    "a letter lost": (rename_first(lambda name: name[1:], lambda name: len(name) > 15), [UNKNOWN + "a letter"]),
    "a name nobody has": (rename_first(lambda _: "no such clip anywhere.wav"), [r"line 2: unknown .* file_name_1$"]),
}  # fmt: skip


def test_check_finds_no_problem_in_the_baseline_submission(lines: list[bytes], truth: Truth) -> None:
    ranked, problems = check_ranked_csv(b"".join(lines), E2022, truth)
    assert (len(ranked), problems) == (5225, [])


@pytest.mark.parametrize("name", FAULTS)
def test_check_reports_faults_planted_in_a_real_file_with_their_lines(
    lines: list[bytes], truth: Truth, name: str
) -> None:
    fault, expected = FAULTS[name]
    data = fault(lines)
    assert data != b"".join(lines)
    _, problems = check_ranked_csv(data, E2022, truth)
    check_problems(list(format_problems(problems, SHOWN)), expected)


@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        (str.lower, "letter case"),
        (lambda text: text.replace(" ", "\u00a0"), "blanks"),
        (lambda text: f"“{text}”", "quotes"),
        (lambda text: f"{text} –".encode().decode("cp1252"), "more than one way"),
        (lambda text: text.rstrip(".") + ";", "punctuation"),
    ],
)
def test_check_reports_slightly_different_queries_as_one_problem_with_the_difference(
    lines: list[bytes], truth: Truth, edit: Callable[[str], str], difference: str
) -> None:
    changed = by_row(lambda row: [edit(row[0]), *row[1:]], first=2)(lines)
    _, problems = check_ranked_csv(changed, E2022, truth)
    assert {problem.kind for problem in problems} <= {DIFFERING, "a query is repeated"}
    problem = str(problems[-1])
    assert re.fullmatch(
        rf"whole file: (4924|52[0-9]{{2}}) queries of this file differ from known queries, most in {difference}: .*",
        problem,
    )
    assert problem.endswith("submit the queries as published, byte for byte")


@pytest.mark.slow
def test_check_counts_thousands_of_unknown_names_on_one_line_quickly(lines: list[bytes], truth: Truth) -> None:
    data = by_row(lambda row: [row[0], *(f"nobody {row[0][:9]} {n}.wav" for n in range(10))], 2)(lines)
    _, problems = check_ranked_csv(data, E2022, truth)
    assert len(problems) == 52_250
    shown = list(format_problems(problems, SHOWN))
    assert len(shown) == SHOWN + 1
    assert (
        shown[-1] == "lines 4-5226: 52230 more problems of the kind: a file name is unknown (`check --all` prints each)"
    )


def test_check_counts_further_problems_of_the_same_kind_on_one_line() -> None:
    problems = [Problem(line, f"a{line}", "a") for line in (1, 2, 3, 4, 6, 7, 9)]
    problems[3:3] = [Problem(3, "b3", "b")]
    problems += [Problem(9, "a9 again", "a"), Problem(None, "c", "c"), Problem(None, "d", "c"), Problem(None, "e", "c")]
    assert list(format_problems(problems, 2)) == [
        "line 1: a1", "line 2: a2", "line 3: b3", "whole file: c", "whole file: d",
        "lines 3-4, 6-7, 9: 6 more problems of the kind: a (`check --all` prints each)",
        "whole file: 1 more problem of the kind: c (`check --all` prints each)",
    ]  # fmt: skip
    assert list(format_problems(problems, len(problems))) == [str(problem) for problem in problems]


def test_check_with_option_all_prints_every_problem(
    lines: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"".join(line.strip() + b",\n" for line in lines[:60]))
    for option, n_lines in (([], SHOWN + 1), (["--all"], 60)):
        assert main(["check", str(bad), "--edition", "2022", *option]) == 1
        shown = capsys.readouterr()
        assert len(shown.out.splitlines()) == n_lines
        assert (
            shown.err
            == f"error: {bad}: the file has 60 problems, listed above; a row has the number of its first line\n"
        )
