"""Several processes against one: the same losses, weights and files, for every kind of entry and of training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_moments
import torch
from several import ROOT, ranks_of, together
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT, STEPS, Content, assert_alike, content, epochs, lines, started, wait_for

from data_tools.manifest import read_manifest
from data_tools.tables import write_table
from data_tools.words import vocabulary_of
from submission.formats.score_matrix import read_scores
from submission.runs.record import read_result
from system.__main__ import main
from system.losses.terms import Negatives
from system.models.text.words import write_word_vectors

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

RANKING = {"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"}
TRIPLET = {"kind": "weighted_triplet", "weight": 1, "margin": 0.2, "clamp": "each"}
TRIPLET |= {"positive": [0.5, -0.7, 0.2], "negative": [0.03, -0.3, 1.6]}


def terms() -> dict[str, list[Content]]:
    found = {f"ranking_{name}": [RANKING | {"negatives": name}] for name in typing.get_args(Negatives)}
    found |= {f"reduce_{name}": [RANKING | {"reduce": name}] for name in ("mean", "hinge_of_mean")}
    found |= {f"nt_xent_{name}": [NT_XENT | {"same_clip": name}] for name in ("masked", "negatives", "positives")}
    found["weighted_triplet"] = [TRIPLET]
    return found | {"ranking_and_matching": [RANKING, {"kind": "matching", "weight": 3}]}


def cases(manifest: Path, folder: Path) -> dict[str, Content]:
    """Recipes by name; a batch of 7 leaves parts of 3, 2 and 2."""
    made = {name: content(manifest, folder, losses=losses) for name, losses in terms().items()}
    made["relaxed"] = content(manifest, folder, losses=tiny.RELAXED) | {"relevance": tiny.relevance()}
    made["cached"] = content(manifest, folder, grad_cache_chunk=2)
    made["cached_in_fewer_parts_than_processes"] = content(manifest, folder, grad_cache_chunk=4)
    made["pairs"] = content(manifest, folder, unit="pair", captions_per_clip=None)
    made["all_captions"] = content(manifest, folder, captions_per_clip="all", losses=[NT_XENT])
    made["learned_temperature"] = content(manifest, folder, losses=[NT_XENT | {"temperature": {"start": 0.2}}])
    made["dropout"] = content(manifest, folder, {"dropout": 0.3}, grad_cache_chunk=1)
    made["dropout"]["model"]["text"]["dropout"] = 0.3
    taught = content(manifest, folder, losses=[NT_XENT])
    learn = {"kind": "distill", "weight": 1, "teachers": ["before"], "temperature": 0.1}
    taught["stages"]["second"] = taught["stages"]["only"] | {"losses": [learn]}
    taught["teachers"] = {"before": {"kind": "stage", "stage": "only", "checkpoint": "last"}}
    made["frames_and_words"] = content(manifest, folder, unit="pair", captions_per_clip=None)
    made["frames_and_words"]["model"] = frame_word(manifest, folder)
    return made | {"distilled": taught}


def frame_word(manifest: Path, folder: Path) -> Content:
    """A GRU over frames and vectors of words."""
    words = vocabulary_of(caption for clip in read_manifest(manifest) for caption in clip.captions)
    rng = np.random.default_rng(0)
    write_word_vectors(folder / "words.bin", {word: rng.normal(size=12) for word in words})
    logmel = tiny.recipe(manifest, folder)["model"]["audio"]["experts"]
    return {
        "audio": {"kind": "gru", "experts": logmel, "width": 8, "hidden": 6, "dropout": 0.0, "embedding": "frames"},
        "text": {"kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 12, "embedding": "words"},
        "score": {"kind": "frame_word"},
    }


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return tiny.make_world(tmp_path_factory.mktemp("several") / "world", tiny.SIZES)


@pytest.mark.usefixtures("one_thread", "curves")
def test_training_and_ranking_with_two_processes_match_one_process(manifest, tmp_path):
    recipe = content(manifest, tmp_path, epochs=2)
    recipe["rank"] = tiny.recipe(manifest, tmp_path, only={})["rank"]
    path = tiny.write_recipe(tmp_path / "r.yaml", recipe)
    assert main(["run", str(path), "--out", str(tmp_path / "one")]) == 0
    done = together(2, [["run", path, "--out", tmp_path / "two"]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert_alike(tmp_path / "one", tmp_path / "two")
    found, expected = (read_scores(tmp_path / name / "scores" / "evaluation.npy") for name in ("two", "one"))
    assert np.abs(found.values - expected.values).max() < 1e-5
    assert found.query_ids == expected.query_ids
    names = [sorted(path.name for path in (tmp_path / run).rglob("*") if path.is_file()) for run in ("one", "two")]
    assert names[0] == names[1]


def test_study_with_two_processes_writes_one_table(manifest, tmp_path):
    recipe = content(manifest, tmp_path, epochs=1)
    recipe["rank"] = tiny.recipe(manifest, tmp_path, only={})["rank"]
    tiny.write_recipe(tmp_path / "r.yaml", recipe)
    study = {"name": "several", "recipe": "r.yaml", "seeds": [1], "cells": {"a": {}, "b": {"stages.only.epochs": 2}}}
    path = tiny.write_recipe(tmp_path / "s.study.yaml", study)
    done = together(2, [["run", path, "--runs", tmp_path / "runs"]], tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "runs" / "several" / "table.md").read_text()
    assert "| a |" in table
    assert "| b |" in table
    assert done.stdout.count("| b |") == 1


def test_losses_of_three_processes_match_one_process(manifest, tmp_path):
    every = cases(manifest, tmp_path)
    paths = {name: tiny.write_recipe(tmp_path / f"{name}.yaml", made) for name, made in every.items()}
    commands = [["run", "--until=training", path, "--out", tmp_path / "several" / name] for name, path in paths.items()]
    done = together(3, commands, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    for name, path in paths.items():
        assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "one" / name)]) == 0
        # one weight of its first layer has a gradient of rounding alone, of which AdamW makes a full step of 4e-4
        loose = 100 if name == "frames_and_words" else 1
        assert_alike(tmp_path / "one" / name, tmp_path / "several" / name, loose)
        shutil.rmtree(tmp_path / "several" / name)


def test_killed_run_resumes_with_another_number_of_processes(manifest, tmp_path):
    settings = content(manifest, tmp_path, epochs=36, steps_per_epoch=2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", settings)
    assert main(["run", "--until=training", str(recipe), "--out", str(tmp_path / "one")]) == 0
    run, random = tmp_path / "several", np.random.default_rng(11)
    for number, victim in enumerate(["first", "another", "first"]):
        launcher = started(recipe, run, (3, 2)[number % 2])
        after = epochs(run) + int(random.integers(1, 4))
        wait_for(lambda after=after: epochs(run) >= after)
        time.sleep(float(random.uniform(0, 0.1)))
        ranks = ranks_of(launcher.pid)
        os.kill(ranks[victim != "first"], signal.SIGKILL)
        _, said = launcher.communicate(timeout=120)
        assert launcher.returncode != 0
        assert "lost another process" in said, said
        wait_for(lambda ranks=ranks: not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()))
        assert not (run / "only" / "done.json").exists(), "it was over before it could be killed"
    assert main(["run", "--until=training", str(recipe), "--out", str(run)]) == 0
    assert [line["epoch"] for line in lines(run)] == list(range(1, 37))
    assert_alike(tmp_path / "one", run)


def test_error_of_one_process_is_printed_once(manifest, tmp_path):
    settings = content(manifest, tmp_path) | {"teachers": {}}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", settings)
    command = ["run", "--until=training", recipe, "--out", manifest]  # a file where a folder is needed
    done = together(2, [command], tmp_path)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1, done.stderr


def test_torchrun_commands_in_the_readme_run_without_errors(manifest, tmp_path):
    """The commands run unchanged, with SLURM's variables and stand-ins for `srun` and `scontrol` on one machine."""
    tiny.write_recipe(tmp_path / "mine.yaml", content(manifest, tmp_path, epochs=1))
    text = (ROOT / "system/README.md").read_text().split("# Several GPUs, several machines")[1].split("\n## ")[0]
    commands = [block.split("```")[0] for block in text.split("```sh\n")[1:]]
    assert len(commands) == 2
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (("srun", 'exec "$@"'), ("scontrol", "echo localhost")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    slurm = {"NNODES": "1", "GPUS_ON_NODE": "2", "JOB_ID": "7", "CPUS_PER_TASK": "2", "JOB_NODELIST": "localhost"}
    environment = os.environ | {f"SLURM_{name}": value for name, value in slurm.items()}
    environment |= {"PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for command in commands:
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "2 processes" in done.stderr
        shutil.rmtree(tmp_path / "runs")


def test_gradient_norm_of_several_processes_matches_one_process(manifest, tmp_path):
    """AdamW would not tell a sum from a mean."""
    norms = []
    settings = {"losses": [NT_XENT | {"temperature": {"start": 0.2}}], "max_grad_norm": None, "epochs": 1}
    made = content(manifest, tmp_path, **settings)
    path = tiny.write_recipe(tmp_path / "r.yaml", made)
    for processes in (1, 3):
        file = tmp_path / f"{processes}.json"
        command = ["run", "--until=training", path, "--out", tmp_path / f"run{processes}"]
        done = together(processes, [command], tmp_path, received=file)
        assert done.returncode == 0, done.stderr
        norms.append(json.loads(file.read_text())["norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


# --- three processes: kinds of ranking, mixed and cut clips, moments ------------------------------------------------

MIX = {"probability": 0.5, "low_db": -5, "high_db": 5, "joined_by": "and"}


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
def recipes(manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
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


@pytest.mark.collapses
@pytest.mark.parametrize(("name", "loose"), [("ranked", 1), ("moments", 3)])  # mixed: batch norms see only their part
def test_losses_and_weights_of_several_processes_match_one_process(one, several, name, loose):
    assert_alike(one / name, several / name, loose)  # rounding of 28 steps: 1.2e-6 on a CPU with AVX-512


@pytest.mark.collapses
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


@pytest.mark.collapses
def test_moment_windows_of_several_processes_match_one_process(one, several):
    found, expected = (read_result(folder / "moments").moments["overlap"] for folder in (several, one))
    assert found.figures == pytest.approx(expected.figures, abs=1e-6)
    windows, known = (
        (folder / "moments/scores/overlap.windows.jsonl").read_text().splitlines() for folder in (several, one)
    )
    assert len(windows) == len(known)
    for line, other in zip(map(json.loads, windows), map(json.loads, known), strict=True):
        assert line["qid"] == other["qid"]
        assert np.allclose(line["pred_relevant_windows"], other["pred_relevant_windows"], atol=1e-3)


@pytest.mark.collapses
def test_training_loss_changes_if_clips_are_mixed_and_if_clips_are_cropped_at_random(one, recipes, tmp_path):
    losses = []
    for change in ("stages.only.augment=null", "model.audio.max_seconds=30"):
        command = ["run", "--until=training", str(recipes["mixed"]), "--out", str(tmp_path / change)]
        assert main([*command, "--set", change]) == 0
        losses.append(json.loads((tmp_path / change / "metrics.jsonl").read_text().splitlines()[0])["loss"])
    expected = json.loads((one / "mixed" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert all(abs(loss / expected - 1) > 1e-4 for loss in losses)
