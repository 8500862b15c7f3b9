"""Studies through the real doors."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import COUNTED, kill_after, refused, rewrite

from data_tools.files import lock_of
from submission.runs.record import EpochLine
from system.__main__ import main
from system.experiments.study import describe_progress, validation_at_checkpoint
from system.ranking import RankByCheckpoint, RankByMean
from system.recipe.load import load_recipe


def write_study(tmp_path: Path, recipe: Path, **changes: Any) -> Path:
    content = {
        "name": "margins",
        "recipe": str(recipe),
        "seeds": [1, 2],
        "cells": {"plain": {}, "wide": {"stages.only.losses.0.margin": 0.5}},
    } | changes
    return tiny.write_recipe(tmp_path / "margins.study.yaml", content)


def test_study_runs_every_cell_and_prints_mean_and_standard_deviation_over_seeds(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    study = write_study(tmp_path, recipe)
    assert main(["run", str(study), "--runs", str(tmp_path / "runs")]) == 0
    table = capsys.readouterr().out
    folder = tmp_path / "runs/margins"
    results = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/result.json")}
    assert set(results) == {"plain_s1", "plain_s2", "wide_s1", "wide_s2"}
    values = [results[f"wide_s{seed}"]["rank"]["evaluation"]["mAP@10"] for seed in (1, 2)]
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in table.splitlines()[3]
    assert (folder / "table.md").read_text() == table
    assert "| clips | validation mAP@10 | T2A mAP@10 |" in table
    assert "Beware" not in table
    checkpoints = [results[f"wide_s{seed}"]["rank"]["evaluation"]["checkpoint"] for seed in (1, 2)]
    chosen = [float(text.rpartition(" ")[2]) for text in checkpoints]  # only epoch 2, best mAP@10 0.4321
    found = [float(part) for part in table.splitlines()[3].split("|")[5].split("±")]
    assert found == pytest.approx([np.mean(chosen), np.std(chosen, ddof=1)], abs=2e-4)
    done = [line for line in caplog.messages if line.startswith("study margins: ") and " done" in line]
    assert [re.sub("about .* left", "some left", line) for line in done] == [
        "study margins: 1 of 4 runs done, some left",
        "study margins: 2 of 4 runs done, some left",
        "study margins: 3 of 4 runs done, some left",
        "study margins: 4 of 4 runs done",
    ]
    assert "wide & evaluation & 2 & 24 &" in (folder / "table.tex").read_text()
    first = {path: path.read_bytes() for path in folder.glob("table.*")}
    shutil.rmtree(folder / "wide_s2")
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.parent != folder}
    assert main(["run", str(study), "--runs", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out == table
    assert {path: path.read_bytes() for path in folder.glob("table.*")} == first
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items())


def test_study_with_test_split_validation_prints_a_warning(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = {"data": ["evaluation"], "metrics": ["mAP@10"], "keep": 1, "test_split": "acknowledged"}
    stage = tiny.stage(epochs=1, steps_per_epoch=1, monitor=monitor)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    study = write_study(tmp_path, recipe, seeds=[1], cells={"plain": {}})
    assert main(["run", str(study), "--runs", str(tmp_path / "runs")]) == 0
    assert "\nBeware: the validation of plain uses a test split.\n" in capsys.readouterr().out


def test_remaining_time_is_estimated_from_finished_runs(tmp_path: Path, unbroken: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c", "d", "e")]
    assert describe_progress(folders) == "0 of 5 runs done"
    for folder, seconds, training in ((folders[0], 3600.0, 60.0), (folders[3], 60.0, 7200.0)):
        folder.mkdir()
        shutil.copy(unbroken / "result.json", folder)
        rewrite(folder / "result.json", seconds=seconds, training_seconds=training)
    assert describe_progress(folders) == "2 of 5 runs done, about 4.5 h left"


def line(stage: str, **validation: float) -> EpochLine:
    return EpochLine(stage=stage, epoch=1, seconds=1.0, validation=dict(validation))


def test_study_table_shows_the_validation_of_the_ranked_checkpoint() -> None:
    lines = [line("a", loss=0.0, m1=0.9), line("b", loss=3.0, m1=0.2), line("b", loss=1.0, m1=0.2), line("b", loss=2.0)]
    base = {"kind": "checkpoint", "data": "evaluation", "edition": 2022, "csv": False}

    def of(stage: str, checkpoint: str) -> Any:
        ranked = RankByCheckpoint.model_validate(base | {"stage": stage, "checkpoint": checkpoint})
        return validation_at_checkpoint(ranked, lines)

    assert of("b", "loss") == {"loss": 1.0, "m1": 0.2}
    assert of("b", "m1") == {"loss": 3.0, "m1": 0.2}, "of equal ones the first"
    assert of("b", "last") == {"loss": 2.0}
    assert of("c", "loss") == of("c", "last") == {}
    mean = RankByMean.model_validate({"kind": "mean", "of": ["x", "y"], "edition": 2022, "csv": False})
    assert validation_at_checkpoint(mean, lines) == {}


@pytest.mark.slow
def test_killed_study_resumes_and_gives_the_same_tables(world: Path, tmp_path: Path, root: Path) -> None:
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


def test_study_tables_are_written_under_a_lock(
    recipe: Path, unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, folder = tmp_path / "one.study.yaml", tmp_path / "runs/one"
    seed = load_recipe(recipe).recipe.seed
    study.write_text(f"name: one\nrecipe: {recipe}\nseeds: [{seed}]\ncells: {{as_is: {{}}}}\n")
    shutil.copytree(unbroken, folder / f"as_is_s{seed}")
    left = folder / ".table.md.9999999.part"
    left.write_text("half")
    command = ["run", str(study), "--runs", str(tmp_path / "runs")]
    with lock_of(folder / ".table"):
        assert "process" in refused(capsys, *command)
        assert left.exists()
    assert main(command) == 0
    assert not left.exists()
    assert (folder / "table.md").exists()


def test_invalid_published_figures_are_refused(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    published = {"source": "a paper, Table 1", "entry": "evaluation", "cells": {"plain": [0.5, 0.1], "other": [1]}}
    output = refused(
        capsys,
        "run",
        write_study(tmp_path, recipe, published=published, columns=["T2A mAP@10", "A2T R@5", "A2T mAP"]),
    )
    assert "published.cells: other: the study has no such cell" in output
    assert "published.cells: plain: lists 2 figures, but the study has 3 columns" in output
    assert "columns" in refused(capsys, "run", write_study(tmp_path, recipe, columns=["mAP"]))
    mistyped = {"source": "a paper", "entry": "evalution", "cells": {}}
    assert "rank" in refused(capsys, "run", write_study(tmp_path, recipe, published=mistyped))


def test_check_names_the_study_cell_in_a_problem_that_only_some_cells_have(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    cells: dict[str, Any] = {"plain": {}, "large": {"stages.only.batch_size": 4000}}
    study = {"name": "sizes", "recipe": str(recipe), "seeds": [1], "cells": cells}
    path = tiny.write_recipe(tmp_path / "s.study.yaml", study)
    assert main(["check", str(path), "--runs", str(tmp_path / "runs")]) == 1
    output = capsys.readouterr().out
    assert "MISTAKE  cell large" in output
    assert "cell plain, " not in output
