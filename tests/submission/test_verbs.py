"""The verbs of `lbar submit`, one after the other in a participant's folder."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ranked import small_matrix, write_truth
from recorded_run import about, json_lines, write_found, write_moments_run, write_run, write_true

from data_tools.tables import write_table
from submission.__main__ import main
from submission.editions import get_edition
from submission.formats.pairs import Pair, write_pairs
from submission.formats.score_matrix import read_scores, write_scores
from submission.metrics.blend import blend
from submission.metrics.summary import compare, summarise_matrix

E2022 = get_edition(2022)
Said = Callable[[str], str]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    write_run(folder / "run")
    write_moments_run(folder / "moments")
    write_truth(folder)
    for name, seed in (("a", 1), ("b", 2), ("val_a", 3), ("val_b", 4)):
        facts = {"from": name[-1], "checkpoint": "best", "edition": "2022"}
        matrix = small_matrix(seed, facts=facts)
        if name.startswith("val"):
            ids = [f"v{n}" for n in range(12)]
            matrix = small_matrix(seed, facts=facts, clip_ids=ids, relevant=[[ids[n // 2]] for n in range(24)])
        write_scores(folder / f"{name}.npy", matrix)
    return folder


@pytest.fixture
def said(made, monkeypatch, capsys):
    """Run a verb that succeeds, and return what it prints."""
    monkeypatch.chdir(made)

    def run(command: str) -> str:
        assert main(command.split()) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def test_write_check_and_score_agree(said):
    values = summarise_matrix(read_scores(Path("a.npy")), E2022).values
    for year in ("2022", "2024", "2025", "custom"):
        said(f"write a.npy --out {year}.csv --edition {year}")
        assert "ok: 24 queries" in said(f"check {year}.csv --edition {year} --truth captions.csv")
        found = json.loads(said(f"score {year}.csv --edition {year} --truth captions.csv --json"))
        assert {name: found["values"][name] for name in values} == pytest.approx(values)
    assert "note" in said("check 2022.csv")
    assert "ok" in said("check 2025.csv --truth a.npy")
    assert f"mAP@10     {values['mAP@10']:.4f}  95 % " in said("score a.npy")
    rows = json.loads(said("score a.npy --json"))["per_query"]
    assert list(rows) == ["query", "R@1", "R@5", "R@10", "mAP@10"]
    assert (len(rows["query"]), np.mean(rows["mAP@10"])) == (24, pytest.approx(values["mAP@10"]))
    assert "pooled R@1" in said("score a.npy --direction audio-to-text")
    assert json.loads(said("score run:mean --json"))["queries"] == 24


def test_blind_set_is_checked_by_its_names_on_disk(said):
    said("write run/scores/blind.npy --out blind.csv")
    Path("queries.csv").write_text("caption\n" + "".join(f"blind {n}\n" for n in range(24)))
    Path("sounds").mkdir()
    for name in read_scores(Path("a.npy")).file_names:
        (Path("sounds") / name).touch()
    assert "ok" in said("check blind.csv --queries queries.csv --audio sounds")


def test_matrix_of_queries_from_a_file_is_scored_with_captions(said):
    matrix = read_scores(Path("run/scores/blind.npy"))
    names, texts = matrix.file_names, matrix.query_texts
    assert len(texts) == 2 * len(names)
    rows = [[name, *texts[2 * n : 2 * n + 2]] for n, name in enumerate(names)]
    write_table(Path("truth.csv"), ["file_name", "caption_1", "caption_2"], rows)
    hits = [row.argmax() == query // 2 for query, row in enumerate(matrix.values)]
    text = said("score run/scores/blind.npy --truth truth.csv --edition 2022")
    assert f"R@1        {np.mean(hits):.4f}" in text
    assert said("score a.npy --truth captions.csv") == said("score a.npy")


def test_compare_prints_the_paired_test(said):
    systems = [summarise_matrix(read_scores(Path(f"{name}.npy")), E2022) for name in "ab"]
    expected = compare(systems[0], [systems[1]])
    text = said("compare a.npy b.npy")
    assert f"{expected.mean:+.4f}" in text
    assert f"p {expected.p:.4f}" in text
    found = json.loads(said("compare a.npy b.npy run:best --json"))
    assert (found["n_groups"], len(found["systems"])) == (12, 3)
    assert json.loads(said("compare a.npy a.npy --json"))["p"] == 1


def test_blend_by_equal_and_by_searched_weights(said):
    said("blend a.npy run:best --out ab.npy")
    parts = {"a.npy": read_scores(Path("a.npy")), "run:best": read_scores(Path("run/scores/best.npy"))}
    assert np.array_equal(read_scores(Path("ab.npy")).values, blend(parts).values)
    text = said("blend a.npy b.npy --how rank --validation val_a.npy --validation val_b.npy --out best.npy")
    assert "searched" in text
    assert "mAP@10" in said("score best.npy")


def test_rerank_by_a_judge_whose_weight_is_chosen_on_validation(said):
    for name in ("a", "val_a"):
        matrix, lines = read_scores(Path(f"{name}.npy")), []
        for row in range(24):
            for column, clip in enumerate(matrix.clip_ids):
                pair = Pair(f"q{row}", "", clip, "", float(matrix.values[row, column]), 1)
                write_pairs(Path("one.jsonl"), [pair])
                lines.append(json.loads(Path("one.jsonl").read_text()) | {"judge": float(column == row // 2)})
        json_lines(Path(f"{name}.jsonl"), lines)
    said("rerank a.npy --judged a.jsonl --validation val_a.npy val_a.jsonl --out new.npy")
    found = read_scores(Path("new.npy"))
    assert found.facts["reranked"]["judged pairs"] == 288
    assert found.facts["reranked"]["validation"]["mAP@10"] == 1
    assert summarise_matrix(found, E2022).values["R@1"] > 0.9


def test_moments_are_checked_scored_and_written(said):
    write_true(Path("true.jsonl"))
    write_true(Path("list.jsonl"), blind=True)
    write_found(Path("dev.jsonl"))
    assert "R1@0.7 66.67 %" in " ".join(said("score dev.jsonl --truth true.jsonl").split())
    assert said("score moments") == said("score dev.jsonl --truth moments/scores/found.truth.jsonl")
    assert "66.67 %" in said("compare moments dev.jsonl --truth true.jsonl")
    said("write dev.jsonl --out mine.jsonl")
    assert "ok: 4 queries" in said("check mine.jsonl --queries list.jsonl")
    assert "note" in said("check dev.jsonl")


def test_package_and_report_are_written(said):
    Path("about.yaml").write_text(json.dumps(about()))
    assert "not ready" in said("pack run --about about.yaml --out mine.zip")
    assert "wrote" in said("report run:mean --out page.html")


def test_help_names_the_verbs_and_imports_no_torch(root, capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in ["check", "score", "compare", "write", "blend", "rerank", "pack", "report"])
    code = "import sys, submission.__main__ as m; m.main(['score', '--help']); "
    code += "assert not {'torch', 'pandas'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
