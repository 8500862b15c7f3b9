"""Metrics of ranked clips: hand-computed values, slow references, degenerate input, and official figures."""

import ast
import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from ranked import E2022, small_matrix

from data_tools.errors import KitError
from submission.editions import EDITIONS
from submission.formats.csv_files import read_csv
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import read_annotations, read_captions
from submission.metrics.intervals import bootstrap_interval, jackknife_interval
from submission.metrics.retrieval import average_precision, chance, hit_rate, median_rank, pooled_recall, recall
from submission.metrics.summary import (
    RelevantRanks,
    compare,
    ranks_from_audio,
    ranks_in_matrix,
    summarise,
    summarise_audio_to_text,
    summarise_matrix,
    with_truth,
)
from submission.ordering import NEVER, ClipOrder, ranked_columns, relevant_ranks


def pad_ranks(lists: list[list[int]]) -> np.ndarray:
    """Ranks as an array, whose shorter rows end with NEVER."""
    width = max(map(len, lists))
    return np.array([[*ranks, *[NEVER] * (width - len(ranks))] for ranks in lists]).reshape(len(lists), width)


def queries_of(lists: list[list[int]], n_relevant: list[int], depth: int | None = None) -> RelevantRanks:
    texts = [f"query {n}" for n in range(len(lists))]
    return RelevantRanks(pad_ranks(lists), np.array(n_relevant), np.arange(len(lists)), texts, 20, depth)


@pytest.mark.parametrize(
    ("ranks", "n_relevant", "k", "expected"),
    [
        ([1], 1, 10, 1.0),
        ([2], 1, 10, 0.5),
        ([10], 1, 10, 0.1),
        ([11], 1, 10, 0.0),
        ([], 1, 10, 0.0),
        ([1, 3], 2, 10, (1 + 2 / 3) / 2),
        ([1, 3], 4, 10, (1 + 2 / 3) / 4),
        ([4, 20], 2, 10, (1 / 4) / 2),
        ([4, 16], 2, 16, (1 / 4 + 2 / 16) / 2),
        ([4, 20], 2, None, (1 / 4 + 2 / 20) / 2),
        (list(range(1, 13)), 12, 10, 10 / 12),
        ([1, NEVER], 2, None, 0.5),
    ],
)
def test_average_precision_by_hand(ranks, n_relevant, k, expected):
    both = average_precision(pad_ranks([ranks, [1]]), np.array([n_relevant, 1]), k)
    assert both.tolist() == pytest.approx([expected, 1.0])


def test_recalls_median_rank_and_summary_by_hand():
    ranks, totals = pad_ranks([[1, 7], [6], [2, 3, 7, 9, 30]]), np.array([4, 1, 5])
    assert recall(ranks, totals, 5).tolist() == [0.25, 0, 0.4]
    assert hit_rate(ranks, 5).tolist() == [1, 0, 1]
    assert pooled_recall(ranks, totals, 5) == 3 / 10
    assert median_rank(ranks) == 2
    assert median_rank(pad_ranks([[3], [1], [8], [6]])) == 4.5
    assert median_rank(pad_ranks([[3], [], []])) == math.inf
    summary = summarise(queries_of([[1], [4], [7, 8], []], [1, 1, 2, 1]))
    precisions = [1, 1 / 4, (1 / 7 + 2 / 8) / 2, 0]
    assert summary.values == {"R@1": 0.25, "R@5": 0.5, "R@10": 0.75, "mAP@10": pytest.approx(sum(precisions) / 4)}
    assert summary.per_query["mAP@10"].tolist() == pytest.approx(precisions)
    assert summary.interval == pytest.approx(jackknife_interval(np.array(precisions)))
    assert summary.bootstrap == pytest.approx(bootstrap_interval(np.array(precisions), np.arange(4)))
    assert summary.chance == chance(20, 10, 1.25)
    lists = summarise(queries_of([[1], []], [1, 2], depth=10), ["mAP@16", "mAP@10"], "mAP@16")
    assert "bound" in lists.notes[0]
    assert "mAP@10" not in lists.notes[0]
    assert not any("nan" in line for line in summarise(queries_of([[1]], [1])).lines())


@pytest.mark.parametrize(("n_clips", "n_relevant", "k"), [(15, 1, 10), (7, 1, 10), (9, 3, 4), (5, 5, 10)])
def test_chance_equals_the_mean_over_random_orders(n_clips, n_relevant, k):
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.permuted(np.tile(np.arange(n_clips), (20_000, 1)), axis=1)[:, :n_relevant]) + 1
    average = average_precision(drawn, np.full(20_000, n_relevant), k).mean()
    assert average == pytest.approx(chance(n_clips, k, n_relevant), abs=0.006)
    assert chance(2) == 0.75


def slow_ranks(scores: np.ndarray, columns: list[int], names: list[str]) -> list[int]:
    ordered = sorted(range(len(names)), key=lambda column: (-scores[column], names[column]))
    return [rank for rank, column in enumerate(ordered, start=1) if column in columns]


@pytest.mark.parametrize("seed", range(40))
def test_ranks_and_metrics_equal_a_slow_reference(seed):
    rng = np.random.default_rng(seed)
    n_queries, n_clips = (int(size) for size in rng.integers(1, 24, size=2))
    values = rng.integers(-3, 4 if seed % 4 < 3 else -2, size=(n_queries, n_clips)).astype(np.float32)  # ties
    if seed % 4 == 0:
        values = rng.normal(size=(n_queries, n_clips)).astype(np.float32)
    names = [f"{index:02d} é"[:: int(rng.choice([1, -1]))] for index in rng.permutation(n_clips)]
    most = min(n_clips, 12)
    relevant = [rng.choice(n_clips, rng.integers(1, most + 1), replace=False).tolist() for _ in range(n_queries)]
    expected = [slow_ranks(row, columns, names) for row, columns in zip(values, relevant, strict=True)]
    ranks, totals = relevant_ranks(values, relevant, names), np.array([len(each) for each in relevant])
    assert [[rank for rank in own if rank < NEVER] for own in ranks.tolist()] == expected
    for k in {1, (n_clips + 1) // 2, n_clips}:
        ordered = [sorted(range(n_clips), key=lambda column: (-row[column], names[column]))[:k] for row in values]
        assert ranked_columns(values, names, k).tolist() == ordered
        assert ClipOrder(names).best(values, k).tolist() == ordered
        hits = [sum(rank <= k for rank in own) / len(each) for own, each in zip(expected, relevant, strict=True)]
        assert recall(ranks, totals, k).tolist() == pytest.approx(hits)
        precisions = [
            sum(count / rank for count, rank in enumerate(own, 1) if rank <= k) / len(each)
            for own, each in zip(expected, relevant, strict=True)
        ]
        assert average_precision(ranks, totals, k).tolist() == pytest.approx(precisions)


def test_equal_scores_are_ordered_by_name_so_a_constant_matrix_scores_as_chance():
    values = np.array([[3, 1, 2, 2], [0, 0, 0, 0]], dtype=np.float32)
    names = ["d.wav", "a.wav", "c.wav", "B.wav"]  # code points: B < a < c < d
    assert relevant_ranks(values, [[2, 0], [1]], names).tolist() == [[1, 3], [2, NEVER]]
    clips = [f"{n:02d}" for n in range(40)]
    ranks = relevant_ranks(np.zeros((40, 40)), [[column] for column in range(40)], clips)
    assert average_precision(ranks, np.ones(40)).mean() == pytest.approx(chance(40))


MATRIX = ScoreMatrix(  # clip c in the middle has no caption, and one text is there twice
    values=np.array([[9, 5, 1], [2, 4, 3], [8, 6, 7], [0, 1, 2]], dtype=np.float32),
    query_ids=["a1", "a2", "b1", "b2"],
    query_texts=["Rain", "Barking, loud", "Rain", 'A "drip"'],
    clip_ids=["a", "c", "b"],
    file_names=["a.wav", "c, d.wav", " b.wav"],
    relevant=[["a"], ["a"], ["b"], ["b"]],
)


def test_audio_to_text_by_hand():
    """Clip a scores its captions 9 and 2, the others 8 and 0; clip b its captions 7 and 2, the others 1 and 3."""
    found = ranks_from_audio(MATRIX)
    assert found.ranks.tolist() == [[1, 3], [1, 3]]
    assert (found.texts, found.n_pool) == (["a.wav", " b.wav"], 4)
    values = summarise_audio_to_text(found).values
    assert values["HR@1"] == 1
    assert values["R@1"] == values["pooled R@1"] == 0.5
    assert values["R@5"] == 1
    assert values["mAP@10"] == values["mAP"] == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("seed", range(10))
def test_audio_to_text_equals_a_slow_reference(seed):
    rng = np.random.default_rng(seed)
    n_clips, n_texts = int(rng.integers(2, 9)), int(rng.integers(9, 40))
    owner = [*range(n_clips), *rng.integers(n_clips, size=n_texts - n_clips).tolist()]
    values = rng.normal(size=(n_texts, n_clips)).astype(np.float32)
    clips, texts = [f"c{i}" for i in range(n_clips)], [f"t{i}" for i in range(n_texts)]
    matrix = ScoreMatrix(texts, texts, clips, clips, [[clips[i]] for i in owner], values=values)
    found = summarise_audio_to_text(ranks_from_audio(matrix)).values
    listed = [sorted(range(n_texts), key=lambda t: -values[t, clip]) for clip in range(n_clips)]
    for k in (1, 5, 10):
        hits = [sum(owner[t] == clip for t in own[:k]) for clip, own in enumerate(listed)]
        shares = [hit / owner.count(clip) for clip, hit in enumerate(hits)]
        expected = np.mean(np.array(hits) > 0), np.mean(shares), sum(hits) / n_texts
        assert (found[f"HR@{k}"], found[f"R@{k}"], found[f"pooled R@{k}"]) == pytest.approx(expected)


def test_compare_matches_queries_in_another_order_and_refuses_others():
    one = summarise(queries_of([[1], [4], [2]], [1, 1, 1]))
    order = [2, 0, 1]
    moved = replace(one.queries, ranks=one.queries.ranks[order], texts=[one.queries.texts[n] for n in order])
    assert compare(one, [summarise(moved)]).mean == 0
    better = summarise(queries_of([[1], [1], [1]], [1, 1, 1]))
    found = compare(better, [one, one])
    assert found.mean == pytest.approx(1 - (1 + 1 / 4 + 1 / 2) / 3)
    assert (found.better, found.equal, found.worse) == (2, 1, 0)
    twice = replace(one.queries, texts=["x", "x", "y"])
    for other in (replace(one.queries, texts=["a", "b", "c"]), replace(one.queries, n_pool=3), twice):
        with pytest.raises(KitError, match="compare"):
            compare(one, [summarise(other)])
    with pytest.raises(KitError, match="compare"):
        compare(summarise(twice), [summarise(replace(twice, texts=["y", "x", "x"]))])


def test_annotations_replace_the_relevant_clips(tmp_path):
    matrix = replace(MATRIX, query_texts=["A dog", "Barking, loud", "Rain", "A drip"])
    path = tmp_path / "annotations.csv"
    path.write_text("query,audio_filenames\nRain,\"['a.wav', 'c, d.wav']\"\n\"Barking, loud\",[' b.wav']\n")
    chosen = with_truth(matrix, read_annotations(path, matrix))
    assert chosen.query_ids == ["a2", "b1"]
    assert chosen.relevant == [["b"], ["a", "c"]]
    found = ranks_in_matrix(chosen)
    assert found.ranks[:, 0].tolist() == [2, 1]
    assert summarise(found).values["mAP@10"] == pytest.approx((1 / 2 + (1 + 2 / 3) / 2) / 2)


def test_unknown_relevant_clips_and_scores_that_are_not_finite_are_refused():
    with pytest.raises(KitError, match="known"):
        summarise_matrix(small_matrix(relevant=[None] * 24), E2022)
    values = np.zeros((24, 12), np.float32)
    values[11, 3] = np.nan
    with pytest.raises(KitError, match="row 11"):
        small_matrix(values=values)


def test_baseline_of_2022_has_its_published_metrics(shared):
    lists = shared / "data/dcase2022_baseline/test.output.csv"
    truth = read_captions(shared / "data/clotho/clotho_captions_evaluation.csv")
    summary = summarise_matrix(read_csv(lists, E2022, truth), E2022)
    found = [f"{value:.4f}" for value in summary.values.values()]
    assert found == ["0.0316", "0.1095", "0.1883", "0.0679"]
    assert [f"{bound:.4f}" for bound in summary.interval] == ["0.0626", "0.0732"]
    assert [f"{bound:.4f}" for bound in summary.bootstrap] == ["0.0598", "0.0759"]


def test_baseline_of_2022_by_the_annotations_of_2025(shared):
    lists = shared / "data/dcase2022_baseline/test.output.csv"
    annotated = shared / "data/dcase2025/metadata_eval.csv"
    truth = read_captions(shared / "data/clotho/clotho_captions_evaluation.csv")
    edition = EDITIONS["2025"]
    matrix = with_truth(read_csv(lists, E2022, truth), read_annotations(annotated, truth))
    summary = summarise_matrix(matrix, edition)
    with lists.open(encoding="utf-8", newline="") as file:
        ranked = {row[0]: row[1:] for row in csv.reader(file)}
    with annotated.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    precisions = []
    for query, listed in rows:
        relevant = ast.literal_eval(listed)
        hits = [rank for rank, name in enumerate(ranked[query], 1) if name in relevant]
        precisions.append(sum(count / rank for count, rank in enumerate(hits, 1)) / len(relevant))
    assert len(precisions) == len(summary.queries.texts) == 1037
    assert f"{summary.values['mAP@16']:.4f}" == f"{sum(precisions) / 1037:.4f}" == "0.0834"
