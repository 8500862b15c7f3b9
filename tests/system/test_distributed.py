"""Several processes against one: the same losses, the same weights, the same files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
import tiny
from plans import fact
from several import ROOT, ranks_of, together
from threads import one_thread  # noqa: F401  a fixture
from trainings import (
    CRNN,
    NT_XENT,
    Content,
    assert_alike,
    content,
    epochs,
    lines,
    started,
    wait_for,
)

from data_tools.manifest import read_manifest
from data_tools.words import vocabulary_of
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.compute.meeting import this_start
from system.losses.negatives import NEGATIVES
from system.models.text.vector_file import write_word_vectors

RANKING = {"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"}
TRIPLET = {"kind": "weighted_triplet", "weight": 1, "margin": 0.2, "clamp": "each"}
TRIPLET |= {"positive": [0.5, -0.7, 0.2], "negative": [0.03, -0.3, 1.6]}


def terms() -> dict[str, list[Content]]:
    found = {f"ranking_{name}": [RANKING | {"negatives": name}] for name in ("all", *NEGATIVES)}
    found |= {f"reduce_{name}": [RANKING | {"reduce": name}] for name in ("mean", "hinge_of_mean")}
    found |= {f"nt_xent_{name}": [NT_XENT | {"same_clip": name}] for name in ("masked", "negatives", "positives")}
    found["weighted_triplet"] = [TRIPLET]
    return found | {"ranking_and_matching": [RANKING, {"kind": "matching", "weight": 3}]}


def cases(manifest: Path, folder: Path) -> dict[str, Content]:
    """Recipes by name; a batch of 7 leaves parts of 4 and 3, or of 3, 2 and 2."""
    made = {name: content(manifest, folder, losses=losses) for name, losses in terms().items()}
    made["relaxed"] = content(manifest, folder, losses=tiny.RELAXED) | {"relevance": tiny.relevance()}
    made["cached"] = content(manifest, folder, grad_cache_chunk=2)
    made["cached_in_fewer_parts_than_processes"] = content(manifest, folder, grad_cache_chunk=4)
    made["pairs"] = content(manifest, folder, unit="pair", captions_per_clip=None)
    made["all_captions"] = content(manifest, folder, captions_per_clip="all", losses=[NT_XENT])
    made["learned_temperature"] = content(manifest, folder, losses=[NT_XENT | {"temperature": "learned"}])
    made["learned_temperature"]["model"]["learned_temperature"] = 0.2
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
            "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 12, "unknown": "each",
            "embedding": "words", "padding": "masked",
        },
        "score": {"kind": "frame_word", "reduce": "mean"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_world(tmp_path_factory.mktemp("several") / "world", tiny.SIZES)


@pytest.fixture(autouse=True)
def no_curves() -> None:
    """Curves are drawn here."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
def test_training_and_ranking_with_two_processes_match_one_process(manifest: Path, tmp_path: Path) -> None:
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


def test_single_process_verb_under_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["rank", "runs/one"]) == 2
    assert capsys.readouterr().err == "rank needs exactly one process; run it without torchrun\n"


@pytest.mark.slow
def test_study_with_two_processes_writes_one_table(manifest: Path, tmp_path: Path) -> None:
    recipe = content(manifest, tmp_path, epochs=1)
    recipe["rank"] = tiny.recipe(manifest, tmp_path, only={})["rank"]
    tiny.write_recipe(tmp_path / "r.yaml", recipe)
    study = {"name": "several", "recipe": "r.yaml", "seeds": [1], "cells": {"a": {}, "b": {"stages.only.epochs": 2}}}
    path = tiny.write_recipe(tmp_path / "s.study.yaml", study)
    done = together(2, [["study", path, "--runs", tmp_path / "runs"]], tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "runs" / "several" / "table.md").read_text()
    assert "| a |" in table
    assert "| b |" in table
    assert done.stdout.count("| b |") == 1


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.usefixtures("one_thread")
def test_losses_of_several_processes_match_one_process(manifest: Path, tmp_path: Path, processes: int) -> None:
    every = cases(manifest, tmp_path)
    paths = {name: tiny.write_recipe(tmp_path / f"{name}.yaml", made) for name, made in every.items()}
    commands = [["train", path, "--out", tmp_path / "several" / name] for name, path in paths.items()]
    done = together(processes, commands, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    for name, path in paths.items():
        assert main(["train", str(path), "--out", str(tmp_path / "one" / name)]) == 0
        assert_alike(tmp_path / "one" / name, tmp_path / "several" / name)
        shutil.rmtree(tmp_path / "several" / name)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_first_loss_of_several_processes_with_batch_norms_matches_one_process(manifest: Path, tmp_path: Path) -> None:
    """The first loss; from then on float32 grows apart, through norms and powers of four: see test_synchronised."""
    cases = {}
    for name, padding, norm in (
        ("masked", "masked", "synchronised"),
        ("counted", "counted", "synchronised"),
        ("apart", "masked", "process"),
    ):
        made = content(manifest, tmp_path, losses=[NT_XENT], epochs=2, steps_per_epoch=1, batch_norm=norm)
        made["model"] |= {"audio": CRNN | {"padding": padding}, "text": made["model"]["text"] | {"dim": 24}}
        cases[name] = tiny.write_recipe(tmp_path / f"{name}.yaml", made)
    commands = [["train", path, "--out", tmp_path / "several" / name] for name, path in cases.items()]
    done = together(3, commands, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    for name, path in cases.items():
        assert main(["train", str(path), "--out", str(tmp_path / "one" / name)]) == 0
        found, expected = (lines(tmp_path / which / name) for which in ("several", "one"))
        apart = abs(found[0]["loss"] / expected[0]["loss"] - 1)
        assert apart > 1e-3 if name == "apart" else apart < 1e-6, name
        assert name == "apart" or found[1]["loss"] == pytest.approx(expected[1]["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_killed_run_resumes_with_another_number_of_processes(manifest: Path, tmp_path: Path) -> None:
    settings = content(manifest, tmp_path, epochs=36, steps_per_epoch=2)
    recipe = tiny.write_recipe(tmp_path / "r.yaml", settings)
    assert main(["train", str(recipe), "--out", str(tmp_path / "one")]) == 0
    run, random = tmp_path / "several", np.random.default_rng(11)
    for number, victim in enumerate(["first", "another", "launcher", "another", "first"] * 2):
        launcher = started(recipe, run, (3, 2)[number % 2])
        after = epochs(run) + int(random.integers(1, 4))
        wait_for(lambda after=after: epochs(run) >= after)
        time.sleep(float(random.uniform(0, 0.1)))
        ranks = ranks_of(launcher.pid)
        os.kill({"launcher": launcher.pid, "first": ranks[0], "another": ranks[1]}[victim], signal.SIGKILL)
        _, said = launcher.communicate(timeout=120)
        assert launcher.returncode != 0
        assert victim == "launcher" or "connection" in said or "stopped at step" in said, said
        wait_for(lambda ranks=ranks: not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()))
        assert not (run / "only" / "done.json").exists(), "it was over before it could be killed"
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    assert [line["epoch"] for line in lines(run)] == list(range(1, 37))
    assert_alike(tmp_path / "one", run)


def test_restarted_processes_ignore_torch_store_entries_of_earlier_starts() -> None:
    """Three threads replace three processes; the store has entries of two earlier starts, the second of which ended
    halfway."""
    from torch.distributed import HashStore

    store = HashStore()
    for attempt in (b"first", b"second", b"third"):
        with ThreadPoolExecutor(3) as pool:
            starts = [pool.submit(this_start, store, rank, 3) for rank in (0, 1)]
            _, waiting = wait(starts, timeout=0.2)
            assert starts[0] in waiting, "the first process goes on without the third"
            starts.append(pool.submit(this_start, store, 2, 3))
            parts = [start.result(60) for start in starts]
        assert not parts[0].check(["address"]), "a key of an earlier start is seen"
        parts[0].set("address", attempt)
        assert [part.get("address") for part in parts] == [attempt] * 3
        store.set("start of 1", "one that was killed before it was answered")


@pytest.mark.slow
def test_torchrun_restart_resumes_from_last_checkpoint(manifest: Path, tmp_path: Path) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, epochs=20, steps_per_epoch=2))
    run = tmp_path / "run"
    late = "import os, time\nif os.environ.get('RANK') == '1': time.sleep(3)\n"  # the first looks for the other first
    (tmp_path / "sitecustomize.py").write_text(late)
    launcher = started(recipe, run, 2, restarts=2, modules=tmp_path)
    wait_for(lambda: epochs(run) >= 3)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    assert [line["epoch"] for line in lines(run)] == list(range(1, 21))
    assert "from step 6" in said or "from step 8" in said or "from step 10" in said, said


@pytest.mark.slow
def test_processes_without_a_shared_folder_are_refused(manifest: Path, tmp_path: Path) -> None:
    """The second process works in another folder, so that it does not see the first one's checkpoint."""
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, epochs=20, steps_per_epoch=2))
    stopped = subprocess.Popen(
        [sys.executable, "-m", "system", "train", str(recipe), "--out", "run", "--device", "cpu"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: epochs(tmp_path / "run") >= 2)
    stopped.kill()
    stopped.wait()
    there, elsewhere = tmp_path.as_posix(), (tmp_path / "elsewhere").as_posix()
    moves = f"import os\nos.makedirs({elsewhere!r}, exist_ok=True)\n"
    moves += f"if 'RANK' in os.environ: os.chdir({elsewhere!r} if os.environ['RANK'] == '1' else {there!r})\n"
    (tmp_path / "sitecustomize.py").write_text(moves)
    launcher = started(recipe, Path("run"), 2, modules=tmp_path)
    _, said = launcher.communicate(timeout=120)
    assert launcher.returncode != 0
    assert said.count("error: ") == 1, said
    assert "differs" in said


@pytest.mark.slow
def test_batch_smaller_than_number_of_processes_is_refused(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, batch_size=2))
    done = together(3, [["train", path, "--out", tmp_path / "run"]], tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1, done.stderr
    assert "stage only: batch_size 2 is less than the 3 processes; start at most 2" in done.stderr
    assert main(["check", str(path), "--ranks", "3"]) == 1
    assert "MISTAKE" in capsys.readouterr().out


@pytest.mark.slow
def test_process_killed_between_batch_norms_gives_error_message(manifest: Path, tmp_path: Path) -> None:
    made = content(manifest, tmp_path, CRNN, losses=[NT_XENT], epochs=100, steps_per_epoch=1)
    made["model"] |= {"audio": CRNN, "text": made["model"]["text"] | {"dim": 24}}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", made)
    for attempt in range(3):
        launcher = started(recipe, tmp_path / "run", 2)
        before = epochs(tmp_path / "run")
        wait_for(lambda before=before: epochs(tmp_path / "run") > before)
        time.sleep(0.05 * attempt)
        os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=120)
        assert "connection" in said or "stopped at step" in said, said
        assert "RuntimeError" not in said, said


@pytest.mark.slow
def test_error_of_one_process_is_printed_once(manifest: Path, tmp_path: Path) -> None:
    settings = content(manifest, tmp_path) | {"teachers": {}}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", settings)
    done = together(2, [["train", recipe, "--out", manifest]], tmp_path)  # a file where a folder is needed
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1, done.stderr


@pytest.mark.slow
def test_torchrun_commands_in_the_readme_run_without_errors(manifest: Path, tmp_path: Path) -> None:
    """The commands run unchanged, with SLURM's variables and stand-ins for `srun` and `scontrol` on one machine."""
    tiny.write_recipe(tmp_path / "mine.yaml", content(manifest, tmp_path, epochs=1))
    text = (ROOT / "system/DISTRIBUTED.md").read_text().split("# Several GPUs, several machines")[1].split("\n## ")[0]
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
def test_plan_estimates_exchanged_bytes_within_10_percent(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 10 % of the bytes that a process got in a step, and no further."""
    for chunk in (None, 2):
        path = tiny.write_recipe(tmp_path / "r.yaml", content(manifest, tmp_path, grad_cache_chunk=chunk, epochs=1))
        run, measured = tmp_path / f"run{chunk}", tmp_path / "received.json"
        assert main(["check", str(path), "--ranks", "3"]) == 0
        line = fact(capsys.readouterr().out, "only on 3 processes")
        said = [float(found) * 1024 for found in re.findall(r"([0-9.]+) KiB of", line)]
        done = together(3, [["train", path, "--out", run]], tmp_path, received=measured)
        assert done.returncode == 0, done.stderr
        found = json.loads(measured.read_text())
        assert said == pytest.approx([found["embeddings"], found["gradients"]], rel=0.1)


@pytest.mark.slow
def test_gradient_norm_of_several_processes_matches_one_process(manifest: Path, tmp_path: Path) -> None:
    """AdamW would not tell a sum from a mean."""
    norms = []
    settings = {"losses": [NT_XENT | {"temperature": "learned"}], "max_grad_norm": None, "epochs": 1}
    made = content(manifest, tmp_path, **settings)
    made["model"]["learned_temperature"] = 0.2
    path = tiny.write_recipe(tmp_path / "r.yaml", made)
    for processes in (1, 3):
        file = tmp_path / f"{processes}.json"
        done = together(processes, [["train", path, "--out", tmp_path / f"run{processes}"]], tmp_path, received=file)
        assert done.returncode == 0, done.stderr
        norms.append(json.loads(file.read_text())["norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
