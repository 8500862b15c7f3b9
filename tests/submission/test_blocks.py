"""Score matrices in blocks of queries: the same files and figures, and memory is released after reading."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ranked import small_matrix

from submission import blocks
from submission.blocks import block_slices, release_pages, row_blocks, transposed_blocks
from submission.errors import SubmissionError
from submission.formats import score_matrix
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks, read_scores, write_blocks, write_scores
from submission.metrics.blend import SCALES, blend, blend_in_blocks
from submission.metrics.scoring import ranks_from_audio
from submission.ordering import NEVER, concatenate_ranks


def drawn(queries: int, clips: int, seed: int = 0) -> ScoreMatrix:
    """Return a matrix with some equal scores, a clip without caption, and clips with one or more captions."""
    draws = np.random.default_rng(seed)
    names = [f"{number:03d}.wav" for number in draws.permutation(clips)]
    return ScoreMatrix(
        values=draws.integers(0, 30, (queries, clips)).astype(np.float32),
        query_ids=[f"q{n}" for n in range(queries)],
        query_texts=[f"text {n}" for n in range(queries)],
        clip_ids=names,
        file_names=names,
        relevant=[[names[1 + int(column)]] for column in draws.integers(0, clips - 1, queries)],
    )


def test_rows_of_a_large_matrix_are_divided_into_blocks_of_the_expected_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_ROWS", 3)
    monkeypatch.setattr(blocks, "MAX_NUMBERS", 10)
    assert list(block_slices(7, 2)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(block_slices(3, 5)) == [slice(0, 2), slice(2, 3)]
    assert list(block_slices(2, 11)) == [slice(0, 1), slice(1, 2)]
    assert list(block_slices(0, 4)) == []
    assert list(row_blocks(np.zeros((2, 5)))) == [slice(0, 2)]


def test_transposed_blocks_of_a_score_matrix_equal_its_selected_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_NUMBERS", 20)
    monkeypatch.setattr(blocks, "MAX_COLUMNS", 4)
    values = np.random.default_rng(0).normal(size=(13, 9)).astype(np.float32)
    columns = np.array([8, 0, 3, 3, 5, 1])
    parts = list(transposed_blocks(values, columns))
    assert [len(part) for part in parts] == [4, 2]
    assert np.array_equal(np.concatenate(parts), values.T[columns])


def test_score_matrix_written_in_blocks_gives_the_same_files(tmp_path: Path) -> None:
    matrix = small_matrix()
    write_scores(tmp_path / "a.npy", matrix)
    assert (tmp_path / "a.npy").read_bytes() == saved(matrix, tmp_path / "saved.npy")
    write_blocks(tmp_path / "b.npy", matrix.labels, (row[None] for row in matrix.values))
    for suffix in (".npy", ".json"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert np.array_equal(read_scores(tmp_path / "b.npy").values, matrix.values)
    turned = replace(matrix, values=np.asfortranarray(matrix.values))
    write_scores(tmp_path / "c.npy", turned)
    assert (tmp_path / "c.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def saved(matrix: ScoreMatrix, path: Path) -> bytes:
    np.save(path, matrix.values)
    return path.read_bytes()


def test_refused_blocks_of_scores_leave_existing_files_unchanged(tmp_path: Path) -> None:
    path, matrix = tmp_path / "a.npy", small_matrix()
    write_scores(path, matrix)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    bad = matrix.values.copy()
    bad[-1, 2] = np.nan

    def interrupted() -> Iterator[np.ndarray]:
        yield matrix.values[:1]
        raise KeyboardInterrupt

    cases: list[tuple[Iterator[np.ndarray], type[BaseException], str]] = [
        (iter([bad[:3], bad[3:]]), SubmissionError, f"in row {len(bad) - 1}, column 2 .* is nan"),
        (iter([matrix.values[:-1]]), ValueError, f"the blocks have {len(bad) - 1} rows"),
        (iter([matrix.values[:, 1:]]), ValueError, "a block of scores is float32 of shape"),
        (iter([matrix.values.astype(np.float64)]), ValueError, "a block of scores is float64"),
        (interrupted(), KeyboardInterrupt, "^$"),
    ]
    for parts, error, words in cases:
        with pytest.raises(error, match=words):
            write_blocks(path, matrix.labels, parts)
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    labels = replace(matrix.labels, facts={"half": "\ud800"})
    with pytest.raises(SubmissionError, match="valid Unicode"):
        write_blocks(path, labels, iter([matrix.values]))
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("how", list(SCALES))
def test_blockwise_blend_equals_whole_blend(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"a": drawn(17, 12), "b": replace(drawn(17, 12), values=drawn(17, 12, 1).values)}
    whole = blend(parts, how, [1, 2])  # type: ignore[arg-type]
    monkeypatch.setattr(blocks, "MAX_ROWS", 5)
    labels, rows = blend_in_blocks(parts, how, [1, 2])  # type: ignore[arg-type]
    found = list(rows)
    assert [len(block) for block in found] == [5, 5, 5, 2]
    assert np.array_equal(np.concatenate(found), whole.values)
    assert labels.facts == whole.facts


def test_audio_to_text_ranks_do_not_depend_on_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = drawn(40, 15)
    whole = ranks_from_audio(matrix)
    monkeypatch.setattr(blocks, "MAX_COLUMNS", 2)
    monkeypatch.setattr(blocks, "MAX_ROWS", 7)
    found = ranks_from_audio(matrix)
    assert np.array_equal(found.ranks, whole.ranks)
    assert len({int(count) for count in whole.n_relevant}) > 2


def test_concatenated_rank_tables_of_different_widths_are_padded() -> None:
    found = concatenate_ranks([np.array([[1, 4]]), np.array([[3], [2]])])
    assert found.tolist() == [[1, 4], [3, NEVER], [2, NEVER]]


@pytest.mark.parametrize("numbers", [1, 24 * 12 - 1, 24 * 12])
def test_large_matrices_are_memory_mapped(numbers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(score_matrix, "MAX_IN_MEMORY", numbers)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = small_matrix()
    found = matrix_from_blocks(matrix.labels, (row[None] for row in matrix.values))
    assert isinstance(found.values, np.memmap) == (numbers < 24 * 12)
    assert np.array_equal(found.values, matrix.values)
    assert (found.labels.shape, found.facts, found.relevant) == ((24, 12), matrix.facts, matrix.relevant)
    assert not list(tmp_path.iterdir())
    again = replace(found, facts={"edition": "2024"})
    assert np.array_equal(again.values, matrix.values)


_READ = """
import json, sys
import numpy as np
from submission.blocks import row_blocks
values = np.lib.format.open_memmap(sys.argv[1], mode="r")
def peak():  # KiB; getrusage would include the parent's memory
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
total = sum(float(values[block].sum(dtype=np.float64)) for block in row_blocks(values))
print(json.dumps([total, (peak() - before) / 1024]))
"""


@pytest.mark.slow
def test_reading_a_mapped_matrix_in_blocks_releases_the_memory_of_each_block(root: Path, tmp_path: Path) -> None:
    """No more than two blocks of 16 MiB stay in memory, for a file of 400 MB."""
    values = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.float32, shape=(1000, 100_000))
    values[:] = 1
    values.flush()
    del values
    command = [sys.executable, "-c", _READ, str(tmp_path / "a.npy")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    total, megabytes = json.loads(done.stdout)
    assert total == 1e8
    assert megabytes < 64


def test_releasing_memory_pages_keeps_the_values_of_writable_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 4), np.float32))
    values = np.lib.format.open_memmap(tmp_path / "a.npy", mode="c")
    values[0] = 7
    release_pages(values)
    assert values[0].tolist() == [7] * 4
    release_pages(np.ones((2, 2)))
