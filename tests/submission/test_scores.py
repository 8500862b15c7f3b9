"""Score matrices: consistent pairs of files, or refused by name."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import without_checksums
from ranked import NAMES, small_matrix

from submission.errors import SubmissionError
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores


def test_score_matrix_survives_a_round_trip(tmp_path: Path) -> None:
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
        ({"values": np.zeros((24, 11), dtype=np.float32)}, "need 11 clip_ids; got 12"),
        ({"values": np.zeros((23, 12), dtype=np.float32)}, "need 23 query_ids; got 24"),
        ({"values": np.zeros((24, 0), dtype=np.float32)}, "no query or no clip"),
        ({"values": np.full((24, 12), np.inf, dtype=np.float32)}, "row 0, column 0 .* is inf"),
        ({"query_texts": ["x"]}, "need 24 query_texts; got 1"),
        ({"relevant": []}, "need 24 relevant; got 0"),
        ({"file_names": NAMES[1:]}, "need 12 file_names; got 11"),
        ({"query_ids": ["q"] * 24}, "query id 'q' occurs twice"),
        ({"clip_ids": ["c"] * 12}, "clip id 'c' occurs twice"),
        (
            {"relevant": [["clip0"]] * 23 + [["clip77"]]},
            "query 'q23': its relevant clip 'clip77' is not among the pool's 12",
        ),
        ({"relevant": [["clip0"]] * 23 + [[]]}, "query 'q23' has an empty list"),
        ({"relevant": [["clip0"]] * 23 + [["clip1", "clip1"]]}, "query 'q23': relevant clip 'clip1' occurs twice"),
    ],
)
def test_score_matrix_with_inconsistent_labels_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        small_matrix(**changes)


def edit_json(path: Path, edit: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "s.json").unlink(), r"s\.json is missing; a score matrix needs both s\.npy and"),
        (lambda folder: (folder / "s.npy").unlink(), r"s\.npy is missing"),
        (lambda folder: (folder / "s.npy").write_bytes(b""), r"s\.npy is not a complete \.npy file"),
        (lambda folder: (folder / "s.npy").write_bytes(b"caption,file_name_1\n"), "not a complete"),
        (lambda folder: os.truncate(folder / "s.npy", 400), "not a complete"),
        (lambda folder: np.save(folder / "s.npy", np.array([{}], dtype=object)), "not a complete"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 12))), r"s\.npy: scores must be a float32"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 12), dtype=">f4")), "must be a float32"),
        (lambda folder: np.save(folder / "s.npy", np.full((24, 12), np.nan, dtype=np.float32)), "is nan"),
        (lambda folder: np.save(folder / "s.npy", np.zeros((24, 9), dtype=np.float32)), "need 9 clip_ids"),
        (lambda folder: (folder / "s.json").write_text("{"), r"s\.json: not JSON"),
        (lambda folder: (folder / "s.json").write_bytes(b'{"facts": "\xff"}'), r"s\.json"),
        (lambda folder: os.truncate(folder / "s.npy", 1281), "has 1281 bytes, but its header states 1280"),
        (
            lambda folder: edit_json(folder / "s.json", lambda d: d.pop("clips")),
            r"json is damaged \(clips: is missing",
        ),
        *(
            (lambda folder, wrong=wrong, at=at: edit_json(folder / "s.json", lambda d: d.update(wrong)), at)
            for wrong, at in (
                ({"queries": {}}, r"json is damaged \(queries: must be a list"),
                ({"facts": [["a", 1]]}, r"json is damaged \(facts: must be a mapping"),
                ({"clips": [["a", "b"]]}, r"json is damaged \(clips\.0: must be a mapping"),
                ({"sha256": 3}, r"json is damaged \(sha256: must be text"),
            )
        ),
        (
            lambda folder: edit_json(folder / "s.json", lambda d: d["clips"][3].update(id=3)),
            r"damaged \(clips\.3\.id",
        ),
        (
            lambda folder: edit_json(folder / "s.json", lambda d: d["queries"][0].update(x=1)),
            r"damaged \(queries\.0\.x",
        ),
    ],
)
def test_damaged_score_matrix_files_are_refused_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    without_checksums(tmp_path)
    damage(tmp_path)
    with pytest.raises(SubmissionError, match=words):
        read_scores(tmp_path / "s.npy")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"facts": {"x": object()}}, "JSON"), ({"facts": {"x": math.nan}}, "JSON"),
     ({"query_texts": ["\ud800"] * 24}, "Unicode")],
)  # fmt: skip
def test_labels_that_json_cannot_represent_are_refused_before_writing(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_scores(tmp_path / "s.npy", small_matrix(**changes))
    assert list(tmp_path.iterdir()) == []


def test_score_matrix_without_the_npy_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match=r"give the name NAME\.npy"):
        write_scores(tmp_path / "s.bin", small_matrix())


@pytest.mark.parametrize("fails_at", [".npy", ".json"])
def test_interrupted_rewrite_never_pairs_new_scores_with_old_labels(
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
    with pytest.raises(SubmissionError, match="missing"):
        read_scores(tmp_path / "s.npy")
