"""Figures from files: several relevant clips, both directions, a table per query, and the baseline's submission."""

import ast
import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from submission.__main__ import main
from submission.formats.score_matrix import ScoreMatrix, write_scores
from submission.formats.truth import matrix_truth, read_annotations
from submission.metrics.scoring import ranks_from_audio, ranks_in_matrix, with_annotations
from submission.metrics.summary import summarise, summarise_audio_to_text


def read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def matrix() -> ScoreMatrix:
    """Two clips with two captions each, a third with none."""
    return ScoreMatrix(
        values=np.array([[9, 1, 5], [2, 3, 4], [8, 7, 6], [0, 2, 1]], dtype=np.float32),
        query_ids=["a1", "a2", "b1", "b2"],
        query_texts=["A dog.", "Barking, loud", "Rain", 'A "drip"'],
        clip_ids=["a", "b", "c"],
        file_names=["a.wav", " b.wav", "c, d.wav"],
        relevant=[["a"], ["a"], ["b"], ["b"]],
    )


def test_audio_to_text_metrics_match_hand_computed_values(matrix: ScoreMatrix) -> None:
    """Clip a scores its captions 9 and 2, the others 8 and 0: ranks 1, 3. Clip b scores its captions 7 and 2, the
    others 1 and 3: ranks 1, 3.
    """
    found = ranks_from_audio(matrix)
    assert found.ranks.tolist() == [[1, 3], [1, 3]]
    assert (found.texts, found.n_pool) == (["a.wav", " b.wav"], 4)
    summary = summarise_audio_to_text(found, (1, 2))
    assert summary.values["HR@1"] == 1
    assert summary.values["R@1"] == summary.values["pooled R@2"] == 0.5
    assert summary.values["mAP@10"] == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("seed", range(20))
def test_audio_to_text_metrics_equal_slow_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_clips, n_texts = int(rng.integers(2, 9)), int(rng.integers(9, 40))
    owner = [*range(n_clips), *rng.integers(n_clips, size=n_texts - n_clips).tolist()]  # one to many captions a clip
    values = rng.normal(size=(n_texts, n_clips)).astype(np.float32)
    clips, texts = [f"c{i}" for i in range(n_clips)], [f"t{i}" for i in range(n_texts)]
    whole = ScoreMatrix(values, texts, texts, clips, clips, [[clips[i]] for i in owner])
    found = summarise_audio_to_text(ranks_from_audio(whole)).values
    for k in (1, 5, 10):
        hit = recalled = all_hits = 0.0
        for clip in range(n_clips):
            listed = sorted(range(n_texts), key=lambda t: -values[t, clip])[:k]
            hits = sum(owner[t] == clip for t in listed)
            hit += (hits > 0) / n_clips
            recalled += hits / owner.count(clip) / n_clips
            all_hits += hits / n_texts
        assert (found[f"HR@{k}"], found[f"R@{k}"], found[f"pooled R@{k}"]) == pytest.approx((hit, recalled, all_hits))
    for name, depth in (("mAP@10", 10), ("mAP", n_texts)):
        total = 0.0
        for clip in range(n_clips):
            listed = sorted(range(n_texts), key=lambda t: -values[t, clip])
            positions = [rank for rank, t in enumerate(listed, 1) if owner[t] == clip]
            total += sum(i / rank for i, rank in enumerate(positions, 1) if rank <= depth) / len(positions) / n_clips
        assert found[name] == pytest.approx(total)


def test_captions_with_equal_scores_are_ranked_alphabetically_in_audio_to_text_retrieval(matrix: ScoreMatrix) -> None:
    """All scores are equal. In text order, `Barking, loud`, `Dogs`, `Rain`, `a dog` are b1, b2, a2, a1."""
    alike = replace(matrix, values=np.zeros((4, 3), np.float32), query_texts=["a dog", "Rain", "Barking, loud", "Dogs"])
    expected = [[3, 4], [1, 2]]
    assert ranks_from_audio(alike).ranks.tolist() == expected
    assert ranks_from_audio(replace(alike, query_ids=["4", "3", "2", "1"])).ranks.tolist() == expected


def test_annotations_of_2025_replace_the_relevant_clips_of_a_matrix(tmp_path: Path, matrix: ScoreMatrix) -> None:
    path = tmp_path / "annotations.csv"
    path.write_text("query,audio_filenames\nRain,\"['a.wav', 'c, d.wav']\"\n\"Barking, loud\",[' b.wav']\n")
    chosen = with_annotations(matrix, read_annotations(path, matrix_truth(matrix)))
    assert chosen.query_ids == ["a2", "b1"]
    assert chosen.relevant == [["b"], ["a", "c"]]
    found = ranks_in_matrix(chosen)
    assert found.ranks[0, 0] == 2
    assert found.ranks[1].tolist() == [1, 3]
    assert summarise(found).values["mAP@10"] == pytest.approx((1 / 2 + (1 + 2 / 3) / 2) / 2)
    assert found.groups.tolist() == [0, 1]


def test_score_verb_covers_text_to_audio_and_audio_to_text_and_writes_a_table_per_query(
    tmp_path: Path, matrix: ScoreMatrix, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores(tmp_path / "s.npy", matrix)
    table = tmp_path / "queries.csv"
    assert main(["score", str(tmp_path / "s.npy"), "--edition", "2022", "--per-query", str(table)]) == 0
    assert "queries 4\npool    3\n" in capsys.readouterr().out
    rows = read_rows(table)
    assert rows[0] == ["query", "relevant", "ranks", "R@1", "R@5", "R@10", "AP@10"]
    assert rows[2] == ["Barking, loud", "1", "3", "0", "1", "1", "0.333333"]
    assert [row[2] for row in rows[1:]] == ["1", "3", "2", "1"]
    assert main(["score", str(tmp_path / "s.npy"), "--edition", "2022", "--direction", "audio-to-text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"queries     2", "HR@1        1.0000", "mAP         0.8333", "pooled R@1  0.5000"} <= set(lines)
    assert "pooled R@10 1.0000" in lines
    assert (
        main(["score", str(tmp_path / "s.npy"), "--edition", "2022", "--per-query", str(tmp_path / "none" / "q.csv")])
        == 1
    )
    assert "such" in capsys.readouterr().err


def test_ranked_csv_cannot_be_scored_from_audio_to_text(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = [str(shared / "data/dcase2022_baseline/test.output.csv"), "--truth"]
    truth = str(shared / "data/clotho/clotho_captions_evaluation.csv")
    assert main(["score", *real, truth, "--direction", "audio-to-text"]) == 1
    assert "ranks" in capsys.readouterr().err


def test_baseline_submission_has_the_expected_map_with_the_2025_annotations(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = shared / "data/dcase2022_baseline/test.output.csv"
    annotations = shared / "data/dcase2025/metadata_eval.csv"
    truth = shared / "data/clotho/clotho_captions_evaluation.csv"
    table = tmp_path / "queries.csv"
    arguments = ["--truth", str(truth), "--annotations", str(annotations), "--per-query", str(table)]
    assert main(["score", str(lists), *arguments]) == 0
    output = capsys.readouterr().out.splitlines()
    ranked = {row[0]: row[1:] for row in read_rows(lists)}
    own = {caption: row[0] for row in read_rows(truth) for caption in row[1:]}
    precisions, without_own = [], 0
    for query, listed in read_rows(annotations)[1:]:
        relevant = ast.literal_eval(listed)
        without_own += own[query] not in relevant
        hits = [rank for rank, name in enumerate(ranked[query], 1) if name in relevant]
        precisions.append(sum(count / rank for count, rank in enumerate(hits, 1)) / len(relevant))
    assert (len(precisions), without_own) == (1037, 46)
    expected = f"{sum(precisions) / 1037:.4f}"
    assert expected == "0.0834"
    assert {"queries 1037", f"mAP@10  {expected}", f"mAP@16  {expected}"} <= set(output)
    assert "note    mAP@16: a lower bound, because the ranked lists have only 10 file names" in output
    assert sum(float(row[-1]) for row in read_rows(table)[1:]) == pytest.approx(sum(precisions), abs=1e-3)


@pytest.mark.slow
def test_full_size_score_matrix_is_scored_in_little_memory(root: Path, tmp_path: Path) -> None:
    n_queries, n_clips = 5225, 1045
    values = np.random.default_rng(0).normal(size=(n_queries, n_clips)).astype(np.float32)
    clips = [f"clip {n}" for n in range(n_clips)]
    texts = [f"query {n}" for n in range(n_queries)]
    relevant = [[clips[n // 5]] for n in range(n_queries)]
    write_scores(tmp_path / "s.npy", ScoreMatrix(values, texts, texts, clips, clips, relevant))
    code = (
        "import sys, json, time\n"
        "from submission.__main__ import main\n"
        "assert main(['score', sys.argv[1], '--edition', '2022']) == 0\n"
        "assert main(['write', sys.argv[1], '--out', sys.argv[2], '--edition', '2022']) == 0\n"
        # Not getrusage: its peak is at least that of the process that started this one.
        "peak = open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]\n"
        "print(json.dumps([time.process_time(), int(peak)]))\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "s.npy", tmp_path / "out.csv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    seconds, kib = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{seconds:.2f} s of process time, {kib / 1024:.0f} MiB")
    assert kib * 1024 < 300e6
