"""Re-ranking by a judge: the mixture, the choice of its weight, the file of pairs, and the command that judges."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matrices import matrix_of

from submission.__main__ import main
from submission.editions import get_edition
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores
from submission.formats.top_pairs import Pair, read_pairs, write_pairs
from submission.metrics.rerank import average_precisions, judged_rows, reranked, search_weight
from submission.metrics.scoring import summarise_matrix
from submission.ordering import ranked_columns

E2022 = get_edition(2022)


def drawn(seed: int, prefix: str = "c", size: int = 60) -> ScoreMatrix:
    values = np.random.default_rng(seed).normal(size=(size, size)) + 1.5 * np.eye(size)
    return matrix_of(values, {"edition": "2022", "from": "model"}, prefix)


def pairs_of(matrix: ScoreMatrix, top: int, judge: Callable[[int, int], float | None]) -> list[Pair]:
    """The best clips of each query, with judge(row, column)."""
    best = ranked_columns(matrix.values, matrix.file_names, top)
    return [
        Pair(matrix.query_ids[row], matrix.query_texts[row], matrix.clip_ids[column], f"/{column}.wav",
             float(matrix.values[row, column]), rank, judge(row, column))
        for row, columns in enumerate(best.tolist())
        for rank, column in enumerate(columns, 1)
    ]  # fmt: skip


def write_judged(path: Path, pairs: Sequence[Pair]) -> Path:
    path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in pairs))
    return path


def test_reranking_by_a_mixture_of_scores_and_judgements_matches_hand_values() -> None:
    """Clips 0 to 2 are judged: of scores 4, 2, 0 and judgements 1, 3, 2, standardised to +-1.2247 and 0."""
    matrix = matrix_of([[4, 2, 0, 3, 1]], relevant=[0])
    judged = {0: (np.array([0, 1, 2]), np.array([1.0, 3.0, 2.0]))}
    for weight, order in (
        (0.0, [0, 1, 2]),
        (0.3, [0, 1, 2]),
        (0.35, [1, 0, 2]),
        (0.6, [1, 0, 2]),
        (0.8, [1, 2, 0]),
        (1.0, [1, 2, 0]),
    ):
        expected = np.array([0, 0, 0, 3, 1], np.float32)
        expected[order] = [4, 2, 0]
        assert reranked(matrix, judged, weight).values[0].tolist() == expected.tolist(), weight


def test_clips_without_judgement_keep_their_ranks_in_rerank() -> None:
    matrix = drawn(1)
    draw = np.random.default_rng(2)
    pairs = pairs_of(matrix, 20, lambda row, column: float(draw.normal()) if draw.random() < 0.5 else None)
    found = reranked(matrix, judged_rows(matrix, pairs), 0.7)
    before = ranked_columns(matrix.values, matrix.file_names, 60)
    after = ranked_columns(found.values, found.file_names, 60)
    judged = {(pair.query, pair.clip) for pair in pairs if pair.judge is not None}
    changed = 0
    for row in range(60):
        for place in range(60):
            is_judged = (matrix.query_ids[row], matrix.clip_ids[before[row, place]]) in judged
            assert is_judged or after[row, place] == before[row, place]
            changed += after[row, place] != before[row, place]
    assert changed > 100


@pytest.mark.parametrize("top", [1, 5, 10])
def test_reranking_the_top_k_by_a_perfect_judge_turns_recall_at_k_into_recall_at_1(top: int) -> None:
    matrix = drawn(3)
    pairs = pairs_of(matrix, top, lambda row, column: float(row == column))
    found = reranked(matrix, judged_rows(matrix, pairs), 1.0)
    assert summarise_matrix(found, E2022).values["R@1"] == summarise_matrix(matrix, E2022).values[f"R@{top}"] > 0


def test_reranking_sorts_clips_with_equal_scores_by_the_judge() -> None:
    matrix = matrix_of([[1, 1, 1, 0.5]], relevant=[2])
    found = reranked(matrix, {0: (np.array([0, 1, 2]), np.array([0.0, 1.0, 2.0]))}, 1.0)
    assert ranked_columns(found.values, found.file_names, 4).tolist() == [[2, 1, 0, 3]]
    assert found.values[0] == pytest.approx([1, 1, 1, 0.5], abs=1e-6)


def test_reranking_by_random_judgements_never_lowers_the_validation_score() -> None:
    for seed in range(5):
        matrix, draw = drawn(seed), np.random.default_rng(seed + 100)
        judged = judged_rows(matrix, pairs_of(matrix, 20, lambda row, column: float(draw.normal())))  # noqa: B023
        weight, (before, after) = search_weight(matrix, judged, E2022)
        assert after.mean() >= before.mean()
        assert np.array_equal(before, average_precisions(matrix, E2022))
        assert weight < 0.5


def test_reranking_equal_scores_keeps_the_ranks_of_unjudged_clips() -> None:
    """Few different scores, half of the best clips judged; ranks of all others stay."""
    for seed in range(20):
        draw = np.random.default_rng(seed)
        matrix = matrix_of(draw.integers(0, 4, (6, 12)))
        pairs = pairs_of(matrix, 8, lambda row, column: float(draw.integers(5)) if draw.random() < 0.5 else None)  # noqa: B023
        judged = judged_rows(matrix, pairs)
        found = reranked(matrix, judged, 0.8)
        before, after = (ranked_columns(one.values, one.file_names, 12) for one in (matrix, found))
        for row in range(6):
            is_judged = np.isin(before[row], judged.get(row, ([], []))[0])
            assert np.array_equal(before[row][~is_judged], after[row][~is_judged])
            if row in judged:
                columns, scores = judged[row]
                values = matrix.values[row][columns].astype(float)
                z = [(one - one.mean()) / (one.std() or 1) for one in (values, scores)]
                wanted = columns[np.argsort(-(0.2 * z[0] + 0.8 * z[1]), kind="stable")]
                assert after[row][is_judged].tolist() == wanted.tolist()


def test_rerank_gives_weight_zero_to_a_judge_opposite_to_the_truth() -> None:
    matrix = drawn(1)
    judged = judged_rows(matrix, pairs_of(matrix, 20, lambda row, column: -float(row == column)))
    weight, (before, after) = search_weight(matrix, judged, E2022)
    assert weight == 0
    assert np.array_equal(before, after)


def test_rerank_chooses_its_settings_on_validation_scores_and_records_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = lambda row, column: 3.0 * (row == column) + np.sin(7.0 * row + column)  # noqa: E731
    named = {}
    for name, matrix in (("test", drawn(1)), ("val", drawn(2, "v"))):
        write_scores(tmp_path / f"{name}.npy", matrix)
        named[name] = tmp_path / f"{name}.npy", write_judged(tmp_path / f"{name}.jsonl", pairs_of(matrix, 20, judge))
    validation = ["--validation", *map(str, named["val"])]
    out = tmp_path / "out.npy"
    command = ["rerank", str(named["test"][0]), "--judged", str(named["test"][1])]
    assert main([*command, *validation, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    found = read_scores(out)
    weight = found.facts["reranked"]["weight"]
    assert f"chosen on the validation split: weight {weight:g}; with the judge, mAP@10 of this split is " in said
    assert 0 < weight <= 1
    assert found.facts["reranked"]["judged pairs"] == 1200
    matrix = read_scores(named["test"][0])
    expected = reranked(matrix, judged_rows(matrix, read_pairs(named["test"][1])), weight)
    assert np.array_equal(found.values, expected.values)
    before, after = (summarise_matrix(one, E2022).values["mAP@10"] for one in (matrix, found))
    assert after > before + 0.1
    assert main([*command, "--weight", f"{weight}", "--out", str(tmp_path / "same.npy")]) == 0
    assert (tmp_path / "same.npy").read_bytes() == out.read_bytes()


def test_rerank_without_judgements_writes_an_identical_matrix(tmp_path: Path) -> None:
    matrix = drawn(1)
    write_scores(tmp_path / "a.npy", matrix)
    write_pairs(tmp_path / "top.jsonl", pairs_of(matrix, 10, lambda row, column: None))
    for judged in ("top.jsonl", "empty.jsonl"):
        (tmp_path / "empty.jsonl").write_text("")
        if judged == "empty.jsonl":
            write_judged(tmp_path / judged, pairs_of(matrix, 10, lambda row, column: None))
        command = ["rerank", str(tmp_path / "a.npy"), "--judged", str(tmp_path / judged), "--weight", "0.5"]
        assert main([*command, "--out", str(tmp_path / "b.npy")]) == 0
        for suffix in (".npy", ".json"):
            assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()


@pytest.mark.slow
def test_thousands_of_queries_are_reranked_within_a_minute(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5225, 1045)).astype(np.float32)
    matrix = matrix_of(values, relevant=[n % 1045 for n in range(5225)])
    write_scores(tmp_path / "a.npy", matrix)
    judged = write_judged(tmp_path / "top.jsonl", pairs_of(matrix, 100, lambda row, column: float(column % 7)))
    begin = time.monotonic()
    command = ["rerank", str(tmp_path / "a.npy"), "--judged", str(judged), "--weight", "0.5"]
    assert main([*command, "--out", str(tmp_path / "b.npy")]) == 0
    assert time.monotonic() - begin < 60
    changed = (read_scores(tmp_path / "b.npy").values != values).sum(1)
    assert (changed > 50).all()
