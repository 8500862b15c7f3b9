"""The recipes of "Take it easy": missing files are reported, parts match the paper, and small versions run."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import COUNTED, digest, kill_after, lines

from data_tools.datasets.clotho import hold_out
from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.experiments.studies import load_study
from system.recipe.load import RecipeError, load_recipe


def schedule(world: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """The paper's schedule over a tiny world: relaxed loss, two stages, three monitors, four ranked systems."""
    monitor = {"data": ["validation"], "metrics": ["loss", "m1", "m2"], "keep": 3}
    common = {"losses": tiny.RELAXED, "monitor": monitor} | changes
    start = {"kind": "stage", "stage": "pretrain", "checkpoint": "last"}
    stages = {
        "pretrain": tiny.stage(captions_per_clip=1, **common),
        "finetune": tiny.stage(captions_per_clip="all", start_from=start, **common),
    }
    content = tiny.recipe(world, folder, **stages) | {"relevance": tiny.relevance()}
    entry = content["rank"].pop("evaluation")
    content["rank"] = {f"by_{metric}": entry | {"checkpoint": metric} for metric in ("loss", "m1", "m2")}
    content["rank"]["mean"] = {"kind": "mean", "of": list(content["rank"]), "edition": 2022, "csv": True}
    return content


@pytest.fixture(scope="module")
def done(world, tmp_path_factory, curves):
    folder = tmp_path_factory.mktemp("schedule")
    recipe = tiny.write_recipe(folder / "r.yaml", schedule(world, folder))
    assert main(["run", str(recipe), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_relaxed_run_logs_violations_and_ranks_three_checkpoints_and_their_mean(done):
    ranked = json.loads((done / "result.json").read_text())["rank"]
    assert list(ranked) == ["by_loss", "by_m1", "by_m2", "mean"]
    parts = [read_scores(done / f"scores/{name}.npy").values for name in list(ranked)[:3]]
    mean = read_scores(done / "scores/mean.npy")
    assert np.allclose(mean.values, np.mean(parts, 0), atol=1e-7)
    assert set(mean.facts["of"]) == {"by_loss", "by_m1", "by_m2"}
    assert ranked["mean"]["checkpoint"] == "mean of by_loss, by_m1, by_m2"
    assert all((done / f"submission/{name}.csv").exists() for name in ranked)
    assert all(f"best {metric}" in ranked[f"by_{metric}"]["checkpoint"] for metric in ("loss", "m1", "m2"))
    for line in lines(done):
        assert {"loss", "positive", "hardest_negative", "violations", "violations_relaxed"} <= set(line)
        assert 0 <= line["violations_relaxed"] <= line["violations"] <= 1
    assert any(line["violations_relaxed"] < line["violations"] for line in lines(done)), "nothing was relaxed"
    drawn = {path.name for path in (done / "figures").iterdir()}
    assert drawn == {"loss.svg", "violations.svg", "similarity.svg", "accuracy.svg", "spread.svg"}
    assert all("<svg" in path.read_text()[:400] for path in (done / "figures").iterdir())


def test_relaxing_margins_by_relevance_lowers_training_and_validation_loss(done, world, tmp_path):
    content = schedule(world, tmp_path, losses=[tiny.RELAXED[0] | {"relax": "none"}, tiny.RELAXED[1]]) | {"rank": {}}
    del content["stages"]["finetune"]
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    plain, relaxed = lines(tmp_path / "run")[0], lines(done)[0]
    assert relaxed["loss"] < plain["loss"]
    assert relaxed["validation"]["loss"] < plain["validation"]["loss"]


@pytest.mark.slow
def test_resumed_run_of_the_recipe_named_take_it_easy_equals_an_uninterrupted_run_exactly(world, tmp_path, root):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", schedule(world, tmp_path, grad_cache_chunk=3))
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    assert main(["run", str(recipe), "--out", str(unbroken)]) == 0
    command = [sys.executable, "-c", COUNTED, "run", str(recipe), "--out", str(run)]
    for steps in (2, 8):  # of 6 + 6, with caught-up ones counted
        process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        kill_after(process, run, steps)
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert digest(run) == digest(unbroken)
    assert lines(run) == lines(unbroken)
    for name in ("by_loss", "by_m1", "by_m2", "mean"):
        own, other = (read_scores(folder / f"scores/{name}.npy").values for folder in (run, unbroken))
        assert np.array_equal(own, other)


def test_expert_that_is_set_to_null_is_left_out_of_the_model(world, tmp_path):
    content = schedule(world, tmp_path)
    content["model"]["audio"]["experts"]["second"] = content["model"]["audio"]["experts"]["logmel"] | {"bands": 16}
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert set(load_recipe(path).recipe.model.audio.experts) == {"logmel", "second"}
    changes = ["model.audio.experts.logmel=null", "stages.pretrain=null", "stages.finetune.start_from={kind: scratch}"]
    smaller = load_recipe(path, changes).recipe
    assert set(smaller.model.audio.experts) == {"second"}
    assert list(smaller.stages) == ["finetune"]
    with pytest.raises(RecipeError, match="at least 1"):
        load_recipe(path, ["model.audio.experts.logmel=null", "model.audio.experts.second=null"])


# the shipped recipes


def test_recipe_named_honest_neither_trains_nor_validates_on_the_evaluation_split(root):
    paper = load_recipe(root / "recipes/take_it_easy/take_it_easy.yaml").recipe
    honest = load_recipe(root / "recipes/take_it_easy/honest.yaml").recipe
    for stage in honest.stages.values():
        assert "evaluation" not in [*stage.train.data, *stage.monitor.data]
    assert honest.stages["finetune"].train.data == ["development"]
    assert paper.stages["finetune"].train.data == ["development", "validation"]
    assert paper.stages["finetune"].monitor.test_split == "acknowledged"
    assert (paper.model, paper.relevance) == (honest.model, honest.relevance)


def test_ablation_cells_of_the_recipe_named_take_it_easy_change_only_the_named_settings(root):
    _, cells = load_study(root / "recipes/take_it_easy/ablations.study.yaml", [])
    recipes = {cell: loaded.recipe for (cell, seed), loaded in cells.items() if seed == 1}
    assert len(recipes) == 14
    combinations = {
        tuple(sorted(recipe.stages["pretrain"].train.data))
        for cell, recipe in recipes.items()
        if cell.startswith(("pretrain", "as_written"))
    }
    assert len(combinations) == 7
    for cell, recipe in recipes.items():
        used = {name for stage in recipe.stages.values() for name in stage.train.data}
        assert ({"audiocaps", "freesound"} & set(recipe.data)) <= used, f"{cell} reads data that no stage trains on"
        relaxed = {loss.relax for stage in recipe.stages.values() for loss in stage.losses if loss.kind == "ranking"}
        assert relaxed == ({"none"} if cell in ("no_relaxation", "neither") else {"cider"})
        kinds = {loss.kind for stage in recipe.stages.values() for loss in stage.losses}
        assert ("matching" in kinds) == (cell not in ("no_matching", "neither"))
        assert len(recipe.model.audio.experts) == (3 if cell.startswith("without") else 4)


def test_hold_out_moves_a_share_of_development_to_validation(world):
    clips = [clip for clip in read_manifest(world) if clip.split != "validation"]
    held = hold_out(clips, 0.2, 1)
    assert Counter(clip.split for clip in held) == {"validation": 10, "development": 38, "evaluation": 24}
    assert [clip.id for clip in held] == [clip.id for clip in clips]
    assert hold_out(clips[::-1], 0.2, 1) == held[::-1]
    assert hold_out(clips, 0.2, 2) != held
    with pytest.raises(KitError, match="validation"):
        hold_out(read_manifest(world), 0.2, 1)
