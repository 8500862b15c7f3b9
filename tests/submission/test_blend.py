"""Blends of several systems, the search of their weights, and the paired test of two systems."""

import dataclasses
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrices import matrix_of

from submission.__main__ import main
from submission.editions import get_edition
from submission.errors import SubmissionError
from submission.formats.csv_table import format_table
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores
from submission.metrics.blend import blend, contributing_models, search_weights
from submission.metrics.compare import compare
from submission.metrics.intervals import bootstrap_interval
from submission.metrics.scoring import ranks_in_matrix
from submission.metrics.summary import summarise

E2022 = get_edition(2022)


def drawn(seed: int, signal: float, **options: Any) -> ScoreMatrix:
    """Return a random system of 40 queries and 40 clips; the relevant clip's score is `signal` higher."""
    rng = np.random.default_rng(seed)
    return matrix_of(rng.normal(size=(40, 40)) + signal * np.eye(40), **options)


def map_of(matrix: ScoreMatrix) -> float:
    return summarise(ranks_in_matrix(matrix), E2022.recall_ks, E2022.map_ks).values["mAP@10"]


def test_raw_standardised_and_rank_blends_match_hand_computed_scores() -> None:
    first = matrix_of([[1, 2, 6], [5, 5, 5], [0, 1, 0]], {"from": "a"})
    second = matrix_of([[0, 10, 20], [3, 1, 2], [0, 0, 9]], {"from": "b"})
    parts = {"one": first, "two": second}
    raw = blend(parts, "raw", [3, 1])
    assert raw.values.tolist() == [[0.75, 4, 9.5], [4.5, 4, 4.25], [0, 0.75, 2.25]]
    assert raw.facts == {
        "blend": "raw",
        "weights": {"one": 0.75, "two": 0.25},
        "of": {"one": {"from": "a"}, "two": {"from": "b"}},
    }
    # Row 1: (1, 2, 6) has mean 3, deviation sqrt(14 / 3); (0, 10, 20) has 10 and sqrt(200 / 3). Row 2: no spread.
    standardised = blend(parts, "standardised").values
    assert standardised[0].tolist() == pytest.approx(
        [(-0.9258201 - 1.2247449) / 2, -0.4629100 / 2, (1.3887301 + 1.2247449) / 2]
    )
    assert standardised[1].tolist() == pytest.approx([1.2247449 / 2, -1.2247449 / 2, 0], abs=1e-6)
    # Ranks of row 2: c0 c1 c2 by name where all are equal; then c0 c2 c1.
    assert blend(parts, "rank").values.tolist() == [[0, 0.5, 1], [1, 0.25, 0.25], [0.5, 0.5, 0.5]]


def test_blend_does_not_depend_on_the_order_of_score_matrices() -> None:
    parts = {str(seed): drawn(seed, 1.0) for seed in range(3)}
    there, back = blend(parts), blend(dict(reversed(parts.items())))
    assert np.array_equal(there.values, back.values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query_texts": ["x", "text 1", "text 2"]}, "two and one have different query texts"),
        ({"clip_ids": ["c1", "c0", "c2"], "relevant": [["c1"], ["c1"], ["c2"]]}, "have different clip ids"),
        ({"file_names": ["a", "b", "c"]}, "have different file names"),
        ({"relevant": [["c0"], ["c0"], ["c2"]]}, "have different relevant"),
    ],
)
def test_blend_refuses_matrices_with_other_queries_or_clips(change: dict[str, Any], words: str) -> None:
    one = matrix_of(np.eye(3))
    other = dataclasses.replace(one, **change)
    with pytest.raises(SubmissionError, match=words):
        blend({"one": one, "two": other})
    with pytest.raises(SubmissionError, match=words):
        search_weights({"one": one, "two": other}, "raw", E2022)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1], "1 weights are given for 2 systems"),
        ([1, -1], "0 or more"),
        ([0, 0], "a finite sum above 0"),
        ([1, np.nan], "0 or more"),
        ([1, np.inf], "finite sum"),
        ([1e308, 1e308], "finite sum"),
    ],
)
def test_blend_refuses_invalid_weights(weights: list[float], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        blend({"one": matrix_of(np.eye(2)), "two": matrix_of(np.eye(2))}, "raw", weights)


def test_blend_with_searched_weights_scores_at_least_as_well_as_each_score_matrix() -> None:
    parts = {"good": drawn(1, 1.5), "fair": drawn(2, 1.0), "noise": drawn(3, 0.0)}
    weights, reached = search_weights(parts, "raw", E2022)
    assert reached == pytest.approx(map_of(blend(parts, "raw", weights)))
    assert reached >= max(map_of(part) for part in parts.values())
    assert sum(weights) == pytest.approx(1)
    assert weights[2] < min(weights[:2])
    grid = [(a, b, 20 - a - b) for a in range(21) for b in range(21 - a)]
    best = max(map_of(blend(parts, "raw", list(shares))) for shares in grid)
    assert reached >= best - 0.03
    alone, reached = search_weights({"only": drawn(1, 1.5)}, "raw", E2022)
    assert (alone, reached) == ([1.0], map_of(drawn(1, 1.5)))


def ensemble_by_hand(parts: list[ScoreMatrix]) -> tuple[list[float], float]:
    """Ensemble selection as in the paper: 20 picks, each the best to add; returns the first best of the 20 means."""
    picked: list[int] = []
    means: list[tuple[float, list[int]]] = []
    for _ in range(20):
        tries = []
        for index in range(len(parts)):
            several = [parts[pick].values.astype(float) for pick in [*picked, index]]
            tries.append(map_of(dataclasses.replace(parts[0], values=np.mean(several, axis=0).astype(np.float32))))
        picked.append(tries.index(max(tries)))
        means.append((max(tries), picked.copy()))
    best, chosen = max(means, key=lambda mean: (mean[0], -len(mean[1])))
    return [chosen.count(index) / len(chosen) for index in range(len(parts))], best


def test_blend_weight_search_equals_a_slow_greedy_search_with_twenty_steps() -> None:
    """Seeds 9 and 11 reach their best at the 20th pick."""
    for seed in (9, 11):
        parts = [drawn(100 * seed + n, 1.2) for n in range(3)]
        expected, best = ensemble_by_hand(parts)
        weights, reached = search_weights({str(n): part for n, part in enumerate(parts)}, "raw", E2022)
        assert (weights, reached) == (expected, pytest.approx(best))


def test_weight_search_chooses_the_blend_of_fewest_score_matrices_if_metrics_are_equal() -> None:
    """The second part is perfect, also with a small share of the first, which argmax adds again."""
    parts = {"noise": drawn(1, 0.0), "perfect": matrix_of(100 * np.eye(40))}
    assert search_weights(parts, "raw", E2022) == ([0.0, 1.0], 1.0)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Test and validation matrices of three models."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        facts = {"from": f"run {name}", "checkpoint": "best", "edition": "2022"}
        write_scores(tmp_path / f"{name}.npy", drawn(number, 1.5 - number, facts=facts))
        write_scores(tmp_path / f"val_{name}.npy", drawn(number + 10, 1.5 - number, facts=facts, prefix="v"))
    return tmp_path


def test_blend_verb_uses_weights_from_validation(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blend", "a.npy", "b.npy", "c.npy", "--out", "mean.npy"]) == 0
    equal = read_scores(files / "mean.npy")
    assert np.array_equal(equal.values, blend({name: read_scores(files / f"{name}.npy") for name in "abc"}).values)
    assert capsys.readouterr().out.splitlines() == [
        *("  0.33  a.npy", "  0.33  b.npy", "  0.33  c.npy", "wrote mean.npy: 40 queries x 40 clips")
    ]
    searched = ["--how", "standardised", "--validation", "val_a.npy", "val_b.npy", "val_c.npy", "--out", "best.npy"]
    assert main(["blend", "a.npy", "b.npy", "c.npy", *searched]) == 0
    validation = {name: read_scores(files / f"val_{name}.npy") for name in "abc"}
    weights, reached = search_weights(validation, "standardised", E2022)
    assert capsys.readouterr().out.startswith(
        f"searched the weights on the validation split, where mAP@10 is {reached:.4f}\n"
    )
    assert list(read_scores(files / "best.npy").facts["weights"].values()) == pytest.approx(weights)


def test_blend_accepts_runs_and_rank_entries_of_runs(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(unbroken, tmp_path / "other")
    (entry,) = [name.stem for name in (unbroken / "scores").glob("*.npy")]
    out, path = tmp_path / "blend.npy", other / f"scores/{entry}.npy"
    matrix = read_scores(path)
    write_scores(path, dataclasses.replace(matrix, values=matrix.values[::-1].copy()))
    checksums = json.loads((other / "result.json").read_text())
    checksums["sha256"] = {}
    (other / "result.json").write_text(json.dumps({k: v for k, v in checksums.items() if k != "checksum"}))
    assert main(["blend", str(unbroken), f"{other}:{entry}", "--weights", "3", "1", "--out", str(out)]) == 0
    found, single = read_scores(out), read_scores(unbroken / f"scores/{entry}.npy")
    assert np.allclose(found.values, 0.75 * single.values + 0.25 * single.values[::-1], atol=1e-6)
    assert found.facts["weights"] == {str(unbroken): 0.75, f"{other}:{entry}": 0.25}
    capsys.readouterr()
    twice = ["blend", str(other), f"{other}:{entry}", "--out", str(out)]
    assert main(twice) == 1
    assert "twice" in capsys.readouterr().err
    assert main(["blend", str(unbroken), str(other), "--out", str(path)]) == 1
    assert "overwrite" in capsys.readouterr().err
    same = [str(unbroken), str(other)]
    assert main(["blend", *same, "--validation", *same, "--out", str(tmp_path / "x.npy")]) == 1
    assert "common" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("caption,file_name_1\n")
    assert main(["blend", str(unbroken), str(tmp_path / "a.csv"), "--out", str(tmp_path / "x.npy")]) == 1
    assert "a.csv: a score matrix is a file NAME.npy with NAME.json" in capsys.readouterr().err


def test_blend_refuses_validation_clips_that_are_also_test_clips(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other captions of the same clips are not a validation split."""
    validation = read_scores(files / "val_a.npy")
    shared = ["c7", *validation.clip_ids[1:]]
    ids = [f"other {n}" for n in range(40)]
    relevant: list[list[str] | None] = [[clip] for clip in shared]
    write_scores(
        files / "val_a.npy", dataclasses.replace(validation, query_ids=ids, clip_ids=shared, relevant=relevant)
    )
    assert main(["blend", "a.npy", "b.npy", "--validation", "val_a.npy", "val_b.npy", "--out", "mean.npy"]) == 1
    assert "a.npy and val_a.npy have 1 clip in common (first 'c7')" in capsys.readouterr().err


def test_blend_refuses_validation_scores_of_another_checkpoint(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validation = read_scores(files / "val_a.npy")
    facts = validation.facts | {"checkpoint": "last"}
    write_scores(files / "val_a.npy", dataclasses.replace(validation, facts=facts))
    assert main(["blend", "a.npy", "b.npy", "--validation", "val_a.npy", "val_b.npy", "--out", "mean.npy"]) == 1
    assert "best" in capsys.readouterr().err


def test_blend_of_blends_accepts_only_validation_scores_of_the_same_models(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("", "val_"):
        assert main(["blend", f"{split}a.npy", f"{split}b.npy", "--out", f"{split}ab.npy"]) == 0
    assert main(["blend", "val_b.npy", "val_a.npy", "--out", "val_ba.npy"]) == 0
    assert main(["blend", "val_a.npy", "val_ab.npy", "--out", "val_aab.npy"]) == 0
    found = read_scores(files / "val_aab.npy").facts
    assert [run for run, _ in contributing_models(found)] == ["run a", "run a", "run b"]
    together = ["blend", "ab.npy", "c.npy", "--out", "abc.npy", "--validation"]
    assert main([*together, "val_ab.npy", "val_c.npy"]) == 0
    capsys.readouterr()
    assert main([*together, "val_ba.npy", "val_c.npy"]) == 1
    assert "ab.npy comes from run a, but val_ba.npy from run b" in capsys.readouterr().err
    assert main([*together, "val_a.npy", "val_c.npy"]) == 1
    assert "unnamed" in capsys.readouterr().err


# --- two systems -------------------------------------------------------------------------------------------------


def test_compare_verb_prints_difference_of_two_systems(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a.npy", "c.npy"]) == 0
    high, low, difference, p, queries = capsys.readouterr().out.splitlines()
    c, a = map_of(read_scores(files / "c.npy")), map_of(read_scores(files / "a.npy"))
    assert (low, high) == (f"{c:.4f}  c.npy", f"{a:.4f}  a.npy")
    assert difference.startswith(f"{a - c:+.4f}  mAP@10, the first minus the second; 95 % +")
    assert p == "p 0.0001  paired randomisation test with 40 groups of queries that share their clips"
    assert sum(int(word) for word in queries.replace(",", "").split() if word.isdigit()) == 40
    assert main(["compare", "a.npy", "val_a.npy"]) == 0, (
        "the same texts and numbers of clips: as good as the same queries"
    )


def test_randomisation_test_swaps_all_captions_of_a_clip_together() -> None:
    """Twelve queries on three clips: eight ways to flip, and the bootstrap draws clips."""
    clips = ["x", "y", "z"]
    rng = np.random.default_rng(4)

    def system(signal: float) -> ScoreMatrix:
        relevant: list[list[str] | None] = [[clips[n % 3]] for n in range(12)]
        values = rng.normal(size=(12, 3)) + signal * np.tile(np.eye(3), (4, 1))
        texts = [f"t{n}" for n in range(12)]
        names = [f"{clip}.wav" for clip in clips]
        return ScoreMatrix(values.astype(np.float32), texts, texts, clips, names, relevant)

    one, other = (summarise(ranks_in_matrix(system(signal))) for signal in (3.0, 0.0))
    found = compare(one, [other])
    differences = one.per_query["mAP@10"] - other.per_query["mAP@10"]
    by_clip = [differences[clip::3].sum() for clip in range(3)]
    ways = [abs(sum(np.array(signs) * by_clip)) >= abs(sum(by_clip)) - 1e-9 for signs in product((1, -1), repeat=3)]
    assert found.n_groups == 3
    assert found.p == pytest.approx(np.mean(ways), abs=0.02)
    groups = np.arange(12) % 3
    assert found.interval == bootstrap_interval(differences, groups, seed=0)
    assert found.interval != bootstrap_interval(differences, seed=0)


def test_compare_verb_compares_the_first_system_with_the_mean_of_the_others(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "a.npy", "b.npy", "c.npy"]) == 0
    a, b, c = (map_of(read_scores(files / f"{name}.npy")) for name in "abc")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"{a:.4f}  a.npy", f"{b:.4f}  b.npy", f"{c:.4f}  c.npy"]
    assert lines[3].startswith(
        f"{a - (b + c) / 2:+.4f}  mAP@10, the first minus the mean of the other 2 systems; 95 % "
    )


def test_compare_matches_queries_in_another_order_by_their_text(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = read_scores(files / "a.npy")
    back = list(range(39, -1, -1))
    turned = dataclasses.replace(
        matrix,
        values=np.ascontiguousarray(matrix.values[back]),
        query_ids=[matrix.query_ids[n] for n in back],
        query_texts=[matrix.query_texts[n] for n in back],
        relevant=[matrix.relevant[n] for n in back],
    )
    write_scores(files / "turned.npy", turned)
    assert main(["compare", "a.npy", "turned.npy"]) == 0
    assert "the first is better for 0 queries, equal for 40, worse for 0" in capsys.readouterr().out


def test_compare_refuses_systems_with_other_queries_or_clips(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scores(files / "few.npy", matrix_of(np.eye(39, 40)))
    assert main(["compare", "a.npy", "few.npy", "--edition", "2022"]) == 1
    assert "the systems have different queries (40 and 39)" in capsys.readouterr().err
    write_scores(files / "wide.npy", matrix_of(np.eye(40, 41)))
    assert main(["compare", "a.npy", "wide.npy", "--edition", "2022"]) == 1
    assert "relevant" in capsys.readouterr().err


def test_compare_accepts_a_ranked_csv_and_a_score_matrix(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions = [[f"c{n}.wav", f"text {n}"] for n in range(40)]
    (files / "captions.csv").write_bytes(format_table([["file_name", "caption_1"], *captions]))
    listed = [[text, repr([name])] for name, text in captions]
    (files / "listed.csv").write_bytes(format_table([["query", "audio_filenames"], *listed]))
    assert main(["write", "a.npy", "--out", "a.csv"]) == 0
    capsys.readouterr()
    assert main(["compare", "a.npy", "a.csv", "--truth", "captions.csv"]) == 0
    assert capsys.readouterr().out.endswith("the first is better for 0 queries, equal for 40, worse for 0\n")
    assert main(["compare", "a.npy", "a.csv", "--truth", "captions.csv", "--annotations", "listed.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "        note: mAP@16: a lower bound, because the ranked lists have only 10 file names"
    assert main(["compare", "a.npy", "a.csv"]) == 1
    assert "scored" in capsys.readouterr().err
    assert main(["compare", "a.npy", "b.npy", "--truth", "captions.csv"]) == 1
    assert "a.npy contains its truth; leave out --truth" in capsys.readouterr().err


def test_difference_of_systems_over_one_query_has_no_interval(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scores(files / "one.npy", matrix_of([[1.0, 0.0]]))
    assert main(["compare", "one.npy", "one.npy", "--edition", "2022"]) == 0
    assert "95 % no interval, because there is only one group of queries" in capsys.readouterr().out
