"""Probabilities of frames: written and read again; damaged files are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from submission.errors import SubmissionError
from submission.formats.frame_scores import ARRAYS, FrameScores, read_frame_scores, write_frame_scores

SCORES = {
    "a_1": FrameScores(np.array([0.0, 1.0, 2.0]), np.array([0.25, 0.75], np.float32)),
    "a_2": FrameScores(np.array([0.0, 0.5]), np.array([1.0], np.float32)),
}
SENTENCE = r"^\S+frames\.npz: the probabilities of frames cannot be read \(.*\); rank the run again to write this file$"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_frame_scores(tmp_path / "frames.npz", SCORES)
    return tmp_path / "frames.npz"


def test_frame_scores_are_read_as_written(path: Path) -> None:
    found = read_frame_scores(path)
    assert list(found) == list(SCORES)
    for qid, scores in SCORES.items():
        assert found[qid].edges.tolist() == scores.edges.tolist()
        assert found[qid].frames.tolist() == scores.frames.tolist()


def test_truncated_frame_scores_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(SubmissionError, match=SENTENCE):
            read_frame_scores(path)


def test_frame_scores_with_flipped_bytes_are_refused_or_unchanged(path: Path) -> None:
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = read_frame_scores(path)
        except SubmissionError:
            refused += 1
        else:
            assert found["a_1"].frames.tolist() == [0.25, 0.75]
    assert refused > len(whole) // 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda arrays: arrays | {"lengths": np.array(3)},
            "the arrays qids, lengths, edges, frames have other types or shapes than `rank --frames` writes",
        ),
        (
            lambda arrays: arrays | dict.fromkeys(ARRAYS, np.array(1)),
            "the arrays qids, lengths, edges, frames have other types or shapes than `rank --frames` writes",
        ),
        (
            lambda arrays: arrays | {"lengths": np.array([2.0, 1.0])},
            "the arrays qids, lengths, edges, frames have other types or shapes than `rank --frames` writes",
        ),
        (
            lambda arrays: arrays | {"qids": np.array([1, 2])},
            "the arrays qids, lengths, edges, frames have other types or shapes than `rank --frames` writes",
        ),
        (
            lambda arrays: arrays | {"frames": np.zeros((3, 1))},
            "the arrays qids, lengths, edges, frames have other types or shapes than `rank --frames` writes",
        ),
        (
            lambda arrays: arrays | {"lengths": np.array([4, -1])},
            "the array `lengths` contains -1, a negative number of frames",
        ),
        (
            lambda arrays: arrays | {"lengths": np.array([2, 2])},
            "the sizes of the arrays qids, lengths, edges, frames contradict each other",
        ),
        (lambda arrays: {key: arrays[key] for key in ARRAYS[:3]}, "frames"),
    ],
)
def test_frame_scores_with_inconsistent_arrays_are_refused(
    path: Path, change: Callable[[Any], Any], words: str
) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    with pytest.raises(SubmissionError, match=SENTENCE) as caught:
        read_frame_scores(path)
    assert words in str(caught.value)


def test_frame_scores_from_a_file_of_another_format_are_refused(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(SubmissionError, match=SENTENCE):
        read_frame_scores(path)
    for data in (b"", b"text", b"PK"):
        path.write_bytes(data)
        with pytest.raises(SubmissionError, match=SENTENCE):
            read_frame_scores(path)
