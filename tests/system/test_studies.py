"""Studies: resumed runs, and tables against hand values."""

import csv
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import COUNTED, kill_after, refused, rewrite

from submission.formats.score_matrix import ScoreMatrix, write_scores
from submission.runs.record import EpochLine
from system.__main__ import main
from system.experiments.studies import (
    as_latex,
    as_texts,
    describe_progress,
    load_study,
    run_study,
    summarise_study,
    validation_of,
)
from system.recipe.load import load_recipe


def write_study(tmp_path: Path, recipe: Path, **changes: Any) -> Path:
    content = {
        "name": "margins",
        "recipe": str(recipe),
        "seeds": [1, 2],
        "cells": {"plain": {}, "wide": {"stages.only.losses.0.margin": 0.5}},
    } | changes
    return tiny.write_recipe(tmp_path / "margins.study.yaml", content)


def test_study_runs_every_cell_once_and_writes_mean_and_deviation_over_seeds(world, tmp_path, capsys):
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=2))
    study = write_study(tmp_path, tiny.write_recipe(tmp_path / "r.yaml", content))
    command = ["run", str(study), "--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    table, folder = capsys.readouterr().out, tmp_path / "runs/margins"
    results = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/result.json")}
    assert set(results) == {"plain_s1", "plain_s2", "wide_s1", "wide_s2"}
    entries = [results[f"wide_s{seed}"]["rank"]["evaluation"] for seed in (1, 2)]
    values = [entry["mAP@10"] for entry in entries]
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in table.splitlines()[3]
    assert (folder / "table.md").read_text() == table
    chosen = [float(entry["checkpoint"].rpartition(" ")[2]) for entry in entries]  # only epoch 2, best mAP@10 0.4321
    row = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))[1]
    assert (row["cell"], row["data"], row["seeds"], float(row["clips"])) == ("wide", "evaluation", "2", 24)
    assert float(row["validation mAP@10"]) == pytest.approx(np.mean(chosen), abs=2e-4)
    assert float(row["T2A mAP@10 std"]) == pytest.approx(np.std(values, ddof=1))
    assert float(row["chance mAP@10"]) == pytest.approx(entries[0]["chance"])
    first = {path: path.read_bytes() for path in folder.glob("table.*")}
    assert len(first) == 3
    shutil.rmtree(folder / "wide_s2")
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.parent != folder}
    assert main(command) == 0
    assert {path: path.read_bytes() for path in folder.glob("table.*")} == first
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items())


def write_matrix(path: Path, order: list[list[float]]) -> None:
    """Scores of clips a and b for four captions: the first two are of a, the others of b."""
    relevant: list[list[str] | None] = [["a"], ["a"], ["b"], ["b"]]
    values = np.array(order, np.float32)
    write_scores(path, ScoreMatrix(list("0123"), list("wxyz"), ["a", "b"], ["a.wav", "b.wav"], relevant, values=values))


HIT, MISS = [[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]  # of captions of a, and of b
MIXED = [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.5]]


def test_study_table_matches_hand_values(recipe, unbroken, tmp_path):
    columns = ["T2A R@1", "T2A mAP@10", "T2A mAP", "A2T HR@1", "A2T R@1", "A2T pooled R@1", "A2T mAP"]
    published = {"source": "a paper", "cells": {"right": [70.5, None, 3, *[None] * 4]}}
    cells: dict[str, Any] = {"mixed_up": {}, "right": {}}
    path = write_study(tmp_path, recipe, cells=cells, columns=columns, published=published, unit="percent")
    study, loaded = load_study(path, [], tmp_path)
    right = [HIT[0], HIT[0], HIT[1], HIT[1]]
    half = [HIT[0], HIT[0], MISS[1], MISS[1]]
    for name, values in {"mixed_up_s1": MIXED, "mixed_up_s2": MIXED, "right_s1": right, "right_s2": half}.items():
        shutil.copytree(unbroken, tmp_path / "margins" / name)
        write_matrix(tmp_path / "margins" / name / "scores/evaluation.npy", values)
    numbers = summarise_study(study, loaded, tmp_path)
    mixed, other = (numbers.loc[(cell, "evaluation")] for cell in cells)
    # Ranks of captions 0 to 3: 1, 2, 1, 2. Clip a ranks captions 0, 3, 2, 1; clip b 1, 2, 3, 0.
    assert mixed[columns].tolist() == pytest.approx([50, 75, 75, 50, 25, 25, 100 * (3 / 4 + (1 / 2 + 2 / 3) / 2) / 2])
    assert mixed[[f"{column} std" for column in columns]].tolist() == [0] * 7
    assert (mixed["seeds"], mixed["clips"]) == (2, 2)
    assert (other["T2A R@1"], other["T2A R@1 std"]) == pytest.approx((75, 100 * 0.5 / 2**0.5))
    assert other["T2A mAP@10 std"] == pytest.approx(100 * 0.25 / 2**0.5)
    # mAP@10 of captions, as mean over seeds: 1, .5, 1, .5 against 1, 1, .75, .75. Sums of the clips: .5 and 0.
    assert np.isnan(mixed["p"])
    flips = [abs(sum(np.multiply(signs, [0.5, 0]))) >= 0.5 for signs in itertools.product([-1, 1], repeat=2)]
    assert other["p"] == pytest.approx(np.mean(flips), abs=0.03)
    texts = as_texts(study, numbers)
    assert texts["cell"].tolist() == ["mixed_up", "right", "right, paper"]
    assert texts["T2A R@1"].tolist() == ["50.0 ± 0.0", "**75.0 ± 35.4**", "70.5"]
    assert texts["T2A mAP@10"].tolist()[2:] == [""]
    lines = as_latex(texts).splitlines()
    assert lines[1] == r"\toprule"
    assert r"mixed\_up & evaluation & 2 & 2 &" in lines[4]
    assert r"\textbf{75.0 $\pm$ 35.4}" in lines[5]


def test_cells_are_only_compared_on_the_same_queries(recipe, unbroken, tmp_path, monkeypatch):
    path = write_study(tmp_path, recipe, seeds=[1], cells={"a": {}, "b": {}})
    study, loaded = load_study(path, [], tmp_path)
    folders = [shutil.copytree(unbroken, tmp_path / "margins" / cell) for cell in ("a_s1", "b_s1")]
    write_matrix(folders[1] / "scores/evaluation.npy", MIXED)
    assert summarise_study(study, loaded, tmp_path)["p"].isna().all()
    monkeypatch.setattr("system.experiments.studies.run_steps", lambda *_: None)
    for folder in folders:
        rewrite(folder / "result.json", rank={})
    assert run_study(study, loaded, tmp_path, None, None, "results") == "", "nothing is ranked"


def test_study_table_shows_the_validation_of_the_ranked_checkpoint(world, tmp_path):
    metrics = [("a", 0.0, 0.9), ("b", 3.0, 0.2), ("b", 1.0, 0.4), ("b", 2.0, 0.1)]
    lines = [
        EpochLine(stage=stage, epoch=1, seconds=1.0, validation={"loss": loss, "m1": value})
        for stage, loss, value in metrics
    ]
    content = tiny.recipe(world, tmp_path, b=tiny.stage())

    def of(checkpoint: str) -> dict[str, float]:
        content["rank"]["evaluation"] |= {"checkpoint": checkpoint}
        return validation_of(load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe, "evaluation", lines)

    assert of("loss") == {"validation loss": 1.0}
    assert of("m1") == {"validation m1": 0.4}
    assert of("last") == {"validation loss": 2.0}
    content["stages"]["b"]["monitor"] |= {"data": ["evaluation"], "test_split": "acknowledged"}
    assert of("m1") == {"validation m1 (test split)": 0.4}


def test_remaining_time_is_estimated_from_finished_runs(tmp_path, unbroken):
    folders = [tmp_path / name for name in ("a", "b", "c", "d", "e")]
    assert describe_progress(folders) == "0 of 5 runs done"
    for folder, seconds, training in ((folders[0], 3600.0, 60.0), (folders[3], 60.0, 7200.0)):
        folder.mkdir()
        shutil.copy(unbroken / "result.json", folder)
        rewrite(folder / "result.json", seconds=seconds, training_seconds=training)
    assert describe_progress(folders) == "2 of 5 runs done, about 4.5 h left"


@pytest.mark.slow
def test_killed_study_resumes_and_gives_the_same_tables(world, tmp_path, root):
    study = write_study(tmp_path, tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path)))
    assert main(["run", str(study), "--runs", str(tmp_path / "unbroken")]) == 0
    folder = tmp_path / "killed/margins"
    command = [sys.executable, "-c", COUNTED, "run", str(study), "--runs", str(folder.parent)]
    for cell, steps in (("plain_s2", 3), ("wide_s1", 2), ("wide_s1", 5)):
        process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        kill_after(process, folder / cell, steps)
    finished = {path: path.stat().st_mtime_ns for path in (folder / "plain_s1").rglob("*") if path.is_file()}
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "plain_s1").rglob("*") if path.is_file()} == finished
    assert len((folder / "plain_s1/steps.txt").read_text().splitlines()) == 6  # two epochs of three, once
    for table in ("table.md", "table.tex", "table.csv"):
        assert (folder / table).read_bytes() == (tmp_path / "unbroken/margins" / table).read_bytes()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"columns": ["T2A R@l"]}, "T2A R@1"),
        ({"cells": {"a": {"stages.only.start_from": {"kind": "model", "folder": "{b}"}}}}, "no cell b"),
        ({"published": {"source": "x", "cells": {"a": [0.5]}}}, "published.cells.a"),
        ({"published": {"source": "x", "cells": {"b": [0.5] * 8}}}, "no cell b"),
        ({"cells": {"a": {}, "b": {"model.audio.experts.b": {"kind": "yamnet", "weights": "gone.npz"}}}}, "gone.npz"),
    ],
)
def test_mistakes_of_a_study_are_refused_before_it_runs(changes, word, world, tmp_path, capsys):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    path = write_study(tmp_path, recipe, **({"cells": {"a": {}}} | changes))
    assert word in refused(capsys, "run", path, "--runs", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
