"""Several processes against one: the same losses, the same weights, the same files."""

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
from several import ROOT, ranks_of, together
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT, Content, assert_alike, content, epochs, lines, started, wait_for

from data_tools.manifest import read_manifest
from data_tools.words import vocabulary_of
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.losses.terms import Negatives
from system.models.text.words import write_word_vectors

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
        "text": {
            "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 12, 
            "embedding": "words",
        },
        "score": {"kind": "frame_word"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return tiny.make_world(tmp_path_factory.mktemp("several") / "world", tiny.SIZES)


@pytest.mark.usefixtures("one_thread", "curves")
@pytest.mark.slow
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


def test_single_process_verb_under_torchrun_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["rank", "runs/one", "audio", "--out", "x.npy"]) == 1
    assert "torchrun" in capsys.readouterr().err


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
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


@pytest.mark.slow
def test_error_of_one_process_is_printed_once(manifest, tmp_path):
    settings = content(manifest, tmp_path) | {"teachers": {}}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", settings)
    done = together(
        2, [["run", "--until=training", recipe, "--out", manifest]], tmp_path
    )  # a file where a folder is needed
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1, done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
def test_gradient_norm_of_several_processes_matches_one_process(manifest, tmp_path):
    """AdamW would not tell a sum from a mean."""
    norms = []
    settings = {"losses": [NT_XENT | {"temperature": {"start": 0.2}}], "max_grad_norm": None, "epochs": 1}
    made = content(manifest, tmp_path, **settings)
    path = tiny.write_recipe(tmp_path / "r.yaml", made)
    for processes in (1, 3):
        file = tmp_path / f"{processes}.json"
        done = together(
            processes,
            [["run", "--until=training", path, "--out", tmp_path / f"run{processes}"]],
            tmp_path,
            received=file,
        )
        assert done.returncode == 0, done.stderr
        norms.append(json.loads(file.read_text())["norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
