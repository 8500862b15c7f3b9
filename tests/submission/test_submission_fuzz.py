"""Thousands of damaged files at the command line: no traceback, and no invalid file passes."""

import csv
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from submission.__main__ import main
from submission.editions import EDITIONS
from submission.errors import SubmissionError
from submission.formats.csv_table import format_table
from submission.formats.matrix_csv import check_matrix_csv, write_matrix_csv
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores
from submission.formats.truth import matrix_truth, read_annotations, read_clotho_truth

pytestmark = pytest.mark.slow

COLUMNS = [
    "caption", "file_name_1", "file_name_2", "file_name_3", "file_name_4", "file_name_5",
    "file_name_6", "file_name_7", "file_name_8", "file_name_9", "file_name_10",
]  # fmt: skip


def rfc_4180_rows(data: bytes) -> list[list[str]] | None:
    """Return the rows by the grammar of the RFC, one character at a time; None for bytes that are not such a file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text or "\0" in text:
        return None
    rows: list[list[str]] = [[""]]
    state = "start"
    index = 0
    while index < len(text):
        character = text[index]
        line_end = 2 if text[index : index + 2] == "\r\n" else 1 if character == "\n" else 0
        if state == "quoted":
            if character == '"':
                state = "after"
            else:
                rows[-1][-1] += character
        elif state == "after" and character == '"':
            rows[-1][-1] += '"'
            state = "quoted"
        elif line_end:
            rows.append([""])
            state = "start"
            index += line_end - 1
        elif character == ",":
            rows[-1].append("")
            state = "start"
        elif state == "start" and character == '"':
            state = "quoted"
        elif state == "after" or character in '"\r':
            return None
        else:
            rows[-1][-1] += character
            state = "bare"
        index += 1
    if state == "quoted":
        return None
    if text.endswith("\n") and state == "start" and rows[-1] == [""]:
        rows.pop()
    return rows


def mean_average_precision(data: bytes, truth: dict[str, str]) -> float | None:
    """Return mAP@10 by the definition; None for bytes that the format forbids."""
    rows = rfc_4180_rows(data)
    if rows is None or rows[0] != COLUMNS or sorted(row[0] for row in rows[1:]) != sorted(truth):
        return None
    pool = set(truth.values())
    if any(len(row) != 11 or len(set(row[1:])) != 10 or not set(row[1:]) <= pool for row in rows[1:]):
        return None
    positions = [row[1:].index(truth[row[0]]) + 1 if truth[row[0]] in row[1:] else 0 for row in rows[1:]]
    return sum(1 / position for position in positions if position) / len(positions)


@pytest.fixture(scope="module")
def real_clips(shared: Path) -> list[list[str]]:
    """File name and first caption of forty real clips, those with the most unusual names."""
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(encoding="utf-8", newline="") as file:
        clips = [row[:2] for row in list(csv.reader(file))[1:]]
    clips.sort(key=lambda clip: (clip[0].isascii(), not set(clip[0]) & set(",&;'"), " ." not in clip[0], clip[0]))
    return clips[:40]


def matrix_of(clips: list[list[str]]) -> ScoreMatrix:
    ids = [str(number) for number in range(len(clips))]
    names, texts = ([clip[column] for clip in clips] for column in (0, 1))
    values = np.random.default_rng(0).normal(size=(len(clips), len(clips))).astype(np.float32)
    values[np.diag_indices(len(clips))] += 1
    return ScoreMatrix(values, ids, texts, ids, names, [[id_] for id_ in ids])


def flip(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]


def insert(data: bytes, dice: random.Random) -> bytes:
    pieces = [
        b'"',
        b",",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b" ",
        b'""',
        b'","',
        b"\xef\xbb\xbf",
        b"\xc3\xa9",
        b"\xff",
        b"a",
    ]
    at = dice.choice([0, dice.randrange(len(data)), len(data)])
    return data[:at] + dice.choice(pieces) + data[at:]


def remove(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + data[at + dice.choice([1, 1, 2, 40]) :]


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def lines(data: bytes, dice: random.Random) -> bytes:
    rows = data.splitlines(keepends=True)
    one, other = dice.randrange(len(rows)), dice.randrange(len(rows))
    change = dice.choice(["swap", "swap", "drop", "repeat"])
    if change == "swap":
        rows[one], rows[other] = rows[other], rows[one]
    elif change == "drop":
        del rows[one]
    else:
        rows.insert(other, rows[one])
    return b"".join(rows)


def readable_rows(data: bytes) -> list[list[str]]:
    """Return the rows that can be changed cell by cell after other damage."""
    text = data.decode("utf-8", "replace").replace("\0", "").replace("\r", "")
    return list(csv.reader(text.removesuffix("\n").split("\n")))


def cells(data: bytes, dice: random.Random) -> bytes:
    rows = readable_rows(data)
    row = dice.choice([row for row in rows if len(row) > 1] or [["a", "b"]])
    one, other = dice.randrange(1, len(row)), dice.randrange(1, len(row))
    change = dice.choice(["swap", "swap", "copy", "strip", "empty"])
    if change == "swap":
        row[one], row[other] = row[other], row[one]
    else:
        row[one] = {"copy": row[other], "strip": row[one].strip() + dice.choice(["", " "]), "empty": ""}[change]
    return format_table(rows)


def harmless(data: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.5:
        return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    rows = readable_rows(data)
    text = "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    return text.encode() + b"\n"


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [flip, insert, remove, cut, lines, cells, harmless]


def mutated(data: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        if data:
            data = dice.choice(MUTATIONS)(data, dice)
    return data


def test_damaged_ranked_csv_passes_only_if_still_valid(
    tmp_path: Path, real_clips: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    truth_path, good, bad = tmp_path / "truth.csv", tmp_path / "good.csv", tmp_path / "bad.csv"
    truth_path.write_bytes(format_table([["file_name", "caption_1"], *real_clips]))
    write_ranked_csv(matrix_of(real_clips), good, EDITIONS["2022"])
    truth = {caption: name for name, caption in real_clips}
    original = good.read_bytes()
    assert mean_average_precision(original, truth) is not None
    dice = random.Random(2022)
    outcomes = {True: 0, False: 0}
    for number in range(4000):
        data = mutated(original, dice)
        bad.write_bytes(data)
        expected = mean_average_precision(data, truth)
        outcomes[expected is not None] += 1
        checked = main(["check", str(bad), "--edition", "2022", "--truth", str(truth_path)])
        shown = capsys.readouterr()
        assert checked == (expected is None), (number, expected, shown)
        if expected is None:
            assert all(line.startswith(("line ", "lines ", "whole file: ")) for line in shown.out.splitlines())
            assert shown.out.count("\n") >= 1
        if number % 5:  # scoring draws thousands of bootstrap samples
            continue
        assert main(["score", str(bad), "--truth", str(truth_path)]) == checked
        shown = capsys.readouterr()
        if expected is not None:
            assert f"mAP@10  {expected:.4f}\n" in shown.out, number
        else:
            assert shown.err.startswith("error: ")
            assert shown.err.count("\n") == 1
    assert min(outcomes.values()) > 300, outcomes


def test_damaged_truth_is_read_or_refused(tmp_path: Path, real_clips: list[list[str]]) -> None:
    path = tmp_path / "truth.csv"
    original = format_table([["file_name", "caption_1"], *real_clips])
    dice = random.Random(1)
    refused = 0
    for _ in range(4000):
        path.write_bytes(mutated(original, dice))
        try:
            truth = read_clotho_truth(path)
        except SubmissionError:
            refused += 1
            continue
        rows = rfc_4180_rows(path.read_bytes())
        assert rows is not None, path.read_bytes()
        assert {name for name, *_ in rows[1:]} == truth.file_names
        relevant = {text: query.relevant for text, query in truth.queries.items()}
        assert relevant == {caption: {name} for name, *captions in rows[1:] for caption in captions}
    assert 1000 < refused < 3900


NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def scores_by_name(data: bytes, pool: set[str], texts: set[str]) -> dict[tuple[str, str], float] | None:
    """Return (query, file name) -> score by the definition; None for bytes that the format forbids."""
    rows = rfc_4180_rows(data)
    if rows is None or rows[0][0] != "index" or sorted(rows[0][1:]) != sorted(pool):
        return None
    if sorted(row[0] for row in rows[1:]) != sorted(texts) or any(len(row) != len(rows[0]) for row in rows):
        return None
    scores = {}
    for row in rows[1:]:
        for name, cell in zip(rows[0][1:], row[1:], strict=True):
            if not NUMBER.fullmatch(cell) or abs(float(cell)) >= (2 - 2**-24) * 2.0**127:  # halfway beyond the last
                return None
            scores[row[0], name] = float(cell)
    return scores


def odd_number(data: bytes, dice: random.Random) -> bytes:
    rows = readable_rows(data)
    row = dice.choice([row for row in rows if len(row) > 1] or [["a", "b"]])
    row[dice.randrange(1, len(row))] = dice.choice([
        "nan", "NaN", "inf", "-Infinity", "1_0", " 1", "1 ", "1e400", "1e39", "3.4028236e38", "0x1", "١", "", "-",
        "1,5", "e5", "--1", "1e", ".", "+1.", ".5", "-0", "1e-400", "1E5", "007", "0.1000000000000000055511151231",
    ])  # fmt: skip
    return format_table(rows)


def test_damaged_matrix_csv_passes_only_if_still_valid(real_clips: list[list[str]], tmp_path: Path) -> None:
    matrix = matrix_of(real_clips[:12])
    truth, edition = matrix_truth(matrix), EDITIONS["2025"]
    write_matrix_csv(matrix, tmp_path / "good.csv", edition)
    original = (tmp_path / "good.csv").read_bytes()
    dice = random.Random(2025)
    outcomes = {True: 0, False: 0}
    for number in range(6000):
        data = odd_number(original, dice) if dice.random() < 0.3 else original
        data = mutated(data, dice) if dice.random() < 0.8 else data
        expected = scores_by_name(data, set(matrix.file_names), set(matrix.query_texts))
        outcomes[expected is not None] += 1
        read, problems = check_matrix_csv(data, edition, truth)
        assert (read is None) == bool(problems) == (expected is None), (number, problems, data)
        if read is None or expected is None:
            continue
        for text, row in zip(read.query_texts, read.values, strict=True):
            wanted = [expected[text, name] for name in read.file_names]
            assert row.tobytes() == np.array(wanted).astype(np.float32).tobytes()
        check_matrix_csv(data, EDITIONS["2022"])
    assert min(outcomes.values()) > 500, outcomes


STRING = r"""('[^'\\\n\r]*'|"[^"\\\n\r]*")"""
PLAIN_LIST = re.compile(rf"[ \t]*\[[ \t]*{STRING}([ \t]*,[ \t]*{STRING})*[ \t]*,?[ \t]*\][ \t]*")


def test_damaged_annotations_are_read_or_refused(real_clips: list[list[str]], tmp_path: Path) -> None:
    pool = matrix_truth(matrix_of(real_clips))
    names, texts = ([clip[column] for clip in real_clips] for column in (0, 1))
    listed = [[text, repr(names[number : number + 3])] for number, text in enumerate(texts)]
    original = format_table([["query", "audio_filenames"], *listed])
    path = tmp_path / "annotations.csv"
    dice = random.Random(6)
    outcomes = {True: 0, False: 0}
    for _ in range(5000):
        data = mutated(original, dice) if dice.random() < 0.9 else cells(original, dice).replace(b"', '", b"' '", 1)
        path.write_bytes(data)
        rows = rfc_4180_rows(data)
        try:
            read = read_annotations(path, pool)
        except SubmissionError:
            read = None
        outcomes[read is not None] += 1
        if rows is None or rows[0] != ["query", "audio_filenames"] or any(len(row) != 2 for row in rows):
            assert read is None
            continue
        plain = [PLAIN_LIST.fullmatch(cell) is not None for _, cell in rows[1:]]
        lists = [[found[0][1:-1] for found in re.finditer(STRING, cell)] for _, cell in rows[1:]]
        asked = [text for text, _ in rows[1:]]
        good = bool(asked) and len(set(asked)) == len(asked) and set(asked) <= set(texts)
        good = good and all(len(set(own)) == len(own) and set(own) <= set(names) for own in lists)
        if all(plain):
            assert (read is not None) == good, data
        if read is not None:
            assert list(read.queries) == asked
            assert all(query.relevant and query.relevant <= set(names) for query in read.queries.values())
            for text, own, is_plain in zip(asked, lists, plain, strict=True):
                assert not is_plain or read.queries[text].relevant == set(own)
    assert min(outcomes.values()) > 300, outcomes


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_damaged_score_matrix_is_read_or_refused(tmp_path: Path, real_clips: list[list[str]], suffix: str) -> None:
    path = tmp_path / "s.npy"
    write_scores(path, matrix_of(real_clips))
    damaged = path.with_suffix(suffix)
    original = damaged.read_bytes()
    dice = random.Random(3)
    refused = 0
    for _ in range(3000):
        # Half of the damage goes where the structure is: the header of the .npy, the start of the .json.
        head = 128 if dice.random() < 0.5 else len(original)
        damaged.write_bytes(mutated(original[:head], dice) + original[head:])
        try:
            matrix = read_scores(path)
        except SubmissionError:
            refused += 1
            continue
        assert matrix.values.shape == (len(matrix.query_ids), len(matrix.clip_ids))
        assert np.isfinite(matrix.values).all()
    assert refused > 500
