"""A small pool with the traps of real names, its files, and ways to break them."""

import csv
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from submission.editions import EDITIONS, Edition
from submission.formats.csv_table import Problem, format_table
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import read_clotho_truth
from submission.metrics.scoring import ranks_in_csv, ranks_in_matrix
from submission.metrics.summary import Summary, summarise

E2022 = EDITIONS["2022"]
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


def write_truth(folder: Path) -> Path:
    """A captions file in Clotho's format: two captions each of the twelve clips."""
    path = folder / "captions.csv"
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


def score_csv(path: Path, truth: Path, edition: Edition = E2022) -> Summary:
    return summarise(ranks_in_csv(path, read_clotho_truth(truth), edition), edition.recall_ks, edition.map_ks)


def score_matrix(matrix: ScoreMatrix, edition: Edition = E2022) -> Summary:
    return summarise(ranks_in_matrix(matrix), edition.recall_ks, edition.map_ks)


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


def check_problems(problems: Sequence[Problem | str], expected: list[str]) -> None:
    shown = [str(problem) for problem in problems]
    assert len(shown) == len(expected), shown
    for line, pattern in zip(shown, expected, strict=True):
        assert re.match(pattern, line), (line, pattern)
