"""Three processes against one: kinds of ranking, mixed and cut clips, moments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_moments
import torch
from several import together
from trainings import NT_XENT, STEPS, Content, assert_alike, content

from data_tools.manifest import read_manifest
from data_tools.tables import write_table
from submission.formats.score_matrix import read_scores
from submission.runs.record import RunResult
from system.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.collapses]  # a network from scratch whose batch norms have seen 10 steps
MIX = {"probability": 0.5, "low_db": -5, "high_db": 5, "joined_by": "and"}
NAMES = "ranked", "moments"  # batch norms on CPUs see only their own part of a batch


def ranked(manifest: Path, folder: Path) -> Content:
    """Two checkpoints, a teacher, a blind set, and means of them; 24 clips over 3 processes, 23 of them blind."""
    made = content(manifest, folder, epochs=1)
    evaluation = [clip for clip in read_manifest(manifest) if clip.split == "evaluation"]
    (folder / "blind").mkdir()
    for clip in evaluation[1:]:
        (folder / "blind" / clip.file_name).symlink_to(clip.path)
    write_table(folder / "blind.csv", ["caption"], [[clip.captions[0]] for clip in evaluation[:7]])
    one = {"stage": "only", "edition": 2025}
    blind = {"kind": "blind", "audio": str(folder / "blind"), "queries": str(folder / "blind.csv")}
    made["teachers"] = {"before": {"kind": "stage", "stage": "only", "checkpoint": "last"}}
    learn = {"kind": "distill", "weight": 1, "teachers": ["before"], "temperature": 0.1}
    made["stages"]["second"] = made["stages"]["only"] | {"losses": [learn]}
    made["rank"] = {
        "a": {"kind": "checkpoint", "data": "evaluation", "checkpoint": "loss", "csv": True, **one},
        "b": {"kind": "checkpoint", "data": "evaluation", "checkpoint": "last", "csv": False, **one, "stage": "second"},
        "both": {"kind": "mean", "of": ["a", "b"], "edition": 2025, "csv": True},
        "taught": {"kind": "teachers", "data": "evaluation", "of": ["before"], "edition": 2025, "csv": False},
        "blind": {**blind, "checkpoint": "last", **one},
        "blind_other": {**blind, "checkpoint": "loss", **one},
        "blind_both": {"kind": "mean", "of": ["blind", "blind_other"], "edition": 2025, "csv": True},
    }
    return made


def mixed(manifest: Path, folder: Path) -> Content:
    """Clips of 0.6 to 1.4 s, cut to one second, half of them mixed. The rate is so small that float32 rounding
    does not grow through batch norms, so that only the draws are compared."""
    rate = {"kind": "adamw", "lr": 1e-7, "weight_decay": 0.01}
    watched = {"data": ["validation"], "metrics": ["loss"], "keep": 1}
    steps = {"epochs": 1, "steps_per_epoch": STEPS // 2, "monitor": watched}
    made = content(manifest, folder, losses=[NT_XENT], augment={"mix": MIX}, optimizer=rate, **steps)
    network = {"kind": "efficientat", "network": "mn04", "weights": None, "segment_seconds": 0.5, "output": "clip"}
    made["model"]["audio"] = tiny.segments(max_seconds=1, hidden=8) | {"network": network}
    return made


def moments(folder: Path) -> Content:
    made = tiny_moments.recipe(tiny_moments.make_moments(folder / "moments"), folder, epochs=2)
    made["stages"]["only"]["batch_size"] = 7
    made["rank"].pop("thresholds")
    return made


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    manifest = tiny.make_world(folder / "world", tiny.SIZES)
    made = {"ranked": ranked(manifest, folder), "mixed": mixed(manifest, folder), "moments": moments(folder)}
    return {name: tiny.write_recipe(folder / f"{name}.yaml", one) for name, one in made.items()}


@pytest.fixture(scope="module")
def one(recipes, tmp_path_factory):
    """The folder of the runs of one process."""
    folder, threads = tmp_path_factory.mktemp("one"), torch.get_num_threads()
    torch.set_num_threads(1)
    for name, path in recipes.items():
        assert main(["run", str(path), "--out", str(folder / name)]) == 0
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="module")
def several(recipes, tmp_path_factory):
    """The folder of the runs of three processes."""
    folder = tmp_path_factory.mktemp("several")
    commands = [["run", path, "--out", folder / name] for name, path in recipes.items()]
    done = together(3, commands, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def result_of(run: Path) -> dict[str, Any]:
    return RunResult.model_validate_json((run / "result.json").read_text()).document()


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_of_several_processes_match_one_process(one, several, name):
    assert_alike(one / name, several / name)


def test_every_kind_of_rank_entry_gives_equal_scores_with_one_and_several_processes(one, several):
    names = {path.name for path in (one / "ranked/scores").glob("*.npy")}
    assert names == {f"{name}.npy" for name in ("a", "b", "both", "taught", "blind", "blind_other", "blind_both")}
    for name in names:
        found, expected = (read_scores(folder / "ranked/scores" / name) for folder in (several, one))
        assert (found.query_ids, found.clip_ids) == (expected.query_ids, expected.clip_ids)
        assert np.abs(found.values - expected.values).max() < 1e-5, name
        assert np.ptp(expected.values) > 0.01, name
    for path in (one / "ranked/submission").glob("*.csv"):
        assert (several / "ranked/submission" / path.name).read_text().count("\n") == path.read_text().count("\n")
    a, b = (read_scores(several / "ranked/scores" / f"{name}.npy").values for name in ("a", "b"))
    both = read_scores(several / "ranked/scores/both.npy").values
    assert np.abs(both - (a + b) / 2).max() < 1e-6


def test_moment_windows_of_several_processes_match_one_process(one, several):
    found, expected = (result_of(folder / "moments")["moments"]["overlap"] for folder in (several, one))
    assert found["figures"] == pytest.approx(expected["figures"], abs=1e-6)
    windows, known = (
        (folder / "moments/scores/overlap.windows.jsonl").read_text().splitlines() for folder in (several, one)
    )
    assert len(windows) == len(known)
    for line, other in zip(map(json.loads, windows), map(json.loads, known), strict=True):
        assert line["qid"] == other["qid"]
        assert np.allclose(line["pred_relevant_windows"], other["pred_relevant_windows"], atol=1e-3)


def test_training_loss_changes_if_clips_are_mixed_and_if_clips_are_cropped_at_random(one, recipes, tmp_path):
    losses = []
    for change in ("stages.only.augment=null", "model.audio.max_seconds=30"):
        assert (
            main(["run", "--until=training", str(recipes["mixed"]), "--out", str(tmp_path / change), "--set", change])
            == 0
        )
        losses.append(json.loads((tmp_path / change / "metrics.jsonl").read_text().splitlines()[0])["loss"])
    expected = json.loads((one / "mixed" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert all(abs(loss / expected - 1) > 1e-4 for loss in losses)
