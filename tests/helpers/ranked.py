"""A small pool with the traps of real names, and its files."""

import csv
import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from submission.editions import EDITIONS
from submission.formats.score_matrix import ScoreMatrix

E2022 = EDITIONS["2022"]
# The traps of the real file names, in one small pool: blanks, commas, quotes, entities, letters outside ASCII.
NAMES = [
    " Ambience Birds.wav", "Breaking Glass .wav", "b, c, and d.wav", "Chris&#39; Elevator.wav", 'the "bus".wav',
    "Fàbrica.wav", "雨.wav", "g.wav", "h.wav", "i.wav", "j.wav", "k.wav",
]  # fmt: skip
CAPTIONS = [[f"Sound {number}, near", f'Sound {number} "far" ' if number == 5 else f"Sound {number} far"]
            for number in range(len(NAMES))]  # fmt: skip
TEXTS = [caption for captions in CAPTIONS for caption in captions]


def table(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def truth_bytes() -> bytes:
    rows = [[name, *captions] for name, captions in zip(NAMES, CAPTIONS, strict=True)]
    return table([["file_name", "caption_1", "caption_2"], *rows])


def write_truth(folder: Path) -> Path:
    """A captions file in Clotho's format: two captions each of the twelve clips."""
    path = folder / "captions.csv"
    path.write_bytes(truth_bytes())
    return path


def small_matrix(seed: int = 0, **changes: Any) -> ScoreMatrix:
    """24 queries against 12 clips; two captions a clip, in the order of truth_bytes."""
    matrix = ScoreMatrix(
        values=np.random.default_rng(seed).normal(size=(24, 12)).astype(np.float32),
        query_ids=[f"q{row}" for row in range(24)],
        query_texts=list(TEXTS),
        clip_ids=[f"clip{column}" for column in range(12)],
        file_names=list(NAMES),
        relevant=[[f"clip{row // 2}"] for row in range(24)],
        facts={"model": "none"},
    )
    return dataclasses.replace(matrix, **changes)
