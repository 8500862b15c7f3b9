"""Errors of training and ranking: their messages, and the files that are kept."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from outcomes import digest, ranked_evaluation, refused, rewrite
from safetensors.torch import load_file, save_file

from data_tools.errors import KitError
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.runs import checkpoints
from system.runs.open import _load_with_paths


def test_checkpoint_of_another_recipe_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    assert "settings" in refused(capsys, "train", recipe, "--set", "seed=9", "--out", run)
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    for name in ("last.pt", "checkpoints.json"):
        (run / "finetune" / name).unlink()
    best = json.loads((run / "pretrain/checkpoints.json").read_text())["loss"][0][1]
    state = load_file(run / f"pretrain/e{int(best):04d}.safetensors")
    state.pop(sorted(state)[0])
    save_file(state, run / f"pretrain/e{int(best):04d}.safetensors")
    rewrite(run / "pretrain/done.json", sha256={})  # as of a release that noted no checksums
    assert "is a checkpoint of another model" in refused(capsys, "train", recipe, "--out", run)
    (run / f"pretrain/e{int(best):04d}.safetensors").write_bytes(b"cut")
    assert "damaged" in refused(capsys, "train", recipe, "--out", run)


def test_damaged_training_state_is_refused(
    unbroken: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    (run / "result.json").unlink()
    (run / "finetune/done.json").unlink()
    (run / "finetune/last.pt").write_bytes((run / "finetune/last.pt").read_bytes()[:1000])
    assert "last.pt is damaged" in refused(capsys, "train", recipe, "--out", run)


def test_resuming_with_changed_data_is_refused(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    text = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(text[1:]))
    assert "since" in refused(capsys, "train", path, "--out", tmp_path / "run")


def test_missing_manifest_and_missing_split_and_non_empty_out_folder_are_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = tiny.recipe(tmp_path / "none.jsonl", tmp_path)
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert "exist" in refused(capsys, "run", path, "--out", tmp_path / "run")
    content = tiny.recipe(world, tmp_path)
    content["data"]["train"]["split"] = "train"
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert "has no split train; use development" in refused(capsys, "train", path, "--runs", tmp_path)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("hello")
    assert "neither" in refused(capsys, "train", path, "--out", tmp_path / "full")
    assert "needs at least 99 training items" in refused(
        capsys, "train", path, "--set", "stages.only.batch_size=99", "--runs", tmp_path
    )


def test_broken_ranked_clip_is_reported_before_training(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(world.parent, tmp_path / "world")
    (copy / "evaluation/evaluation 003.wav").write_bytes(b"RIFF")
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(copy / "manifest.jsonl", tmp_path))
    error = refused(capsys, "run", path, "--out", tmp_path / "run")
    assert "evaluation 003.wav" in error
    assert "; repair these clips, or remove them from" in error
    assert not (tmp_path / "run/only").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 2001", " 2000", "have the same text"),
        ('evaluation 003.wav"', 'evaluation 002.wav"', "have the same file name"),
    ],
)
def test_duplicate_queries_or_file_names_are_refused_before_training(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    copy = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    text = copy.read_text()
    text = (
        text.replace(" 2008", " 2000") if old == " 2001" else text.replace(f'"file_name":"{old}', f'"file_name":"{new}')
    )
    copy.write_text(text)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(copy, tmp_path))
    assert words in refused(capsys, "run", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run/only").exists()
    if old == " 2001":  # figures need no ranked CSV
        change = ["--set", "rank.evaluation.csv=false", "--out", str(tmp_path / "figures")]
        assert main(["run", str(path), *change]) == 0
        assert not (tmp_path / "figures/submission/evaluation.csv").exists()


def made_recipe(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A recipe whose data are made by a command, and its content; paths are relative to the folder."""
    make = "lbar data scenes made --seed 1 --development 10 --validation 10 --evaluation 10"
    content = tiny.recipe(folder / "made/manifest.jsonl", folder)
    for source in content["data"].values():
        source |= {"manifest": "made/manifest.jsonl", "make": make}
    return tiny.write_recipe(folder / "r.yaml", content), content


def test_verb_features_refuses_a_manifest_not_made_by_the_command_in_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, content = made_recipe(tmp_path)
    assert main(["features", str(path)]) == 0
    assert main(["features", str(path)]) == 0
    tiny.write_recipe(path, json.loads(json.dumps(content).replace("--seed 1", "--seed 2")))
    assert "was made by" in refused(capsys, "features", path)


@pytest.mark.slow
def test_manifest_made_inside_a_quiet_verb_prints_nothing_to_stdout(root: Path, tmp_path: Path) -> None:
    path, _ = made_recipe(tmp_path)
    command = [sys.executable, "-m", "system", "features", str(path), "-q"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["logmel", "clips"]
    assert [line for line in done.stderr.splitlines() if not line.startswith("wrote ")] == []
    assert "wrote made" in done.stderr


def test_interrupt_while_making_a_manifest_ends_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt("interrupted; 3 of 30 scenes are there")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_tools.scenes.build.run", interrupted)
    assert main(["features", str(made_recipe(tmp_path)[0]), "-q"]) == 130
    assert capsys.readouterr().err == "interrupted; 3 of 30 scenes are there\n"


def test_clip_id_shared_by_two_audio_files_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(world.parent, tmp_path / "tones") / "manifest.jsonl"
    content = tiny.recipe(world, tmp_path)
    content["data"]["other"] = {"manifest": str(copy), "split": "development"}
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert "two clips have the id" in refused(capsys, "features", path)


def test_audio_in_training_and_validation_is_warned_about(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = tiny.recipe(world, tmp_path)
    content["stages"]["only"]["train"]["data"] = ["train", "validation"]
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert "stage only: training and validation use the same 16 recordings" in caplog.text


def test_best_checkpoint_is_read_from_done_json_if_checkpoints_json_is_empty(
    unbroken: Path, tmp_path: Path, world: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    (run / "finetune/checkpoints.json").write_text("{}")  # as a kill between two files may leave it
    found = ranked_evaluation(run, world, tmp_path / "again.npy")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)


def test_changing_settings_of_a_trained_model_is_refused(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--audio", world, "--split", "evaluation", "--out", tmp_path / "s.npy"]
    for change in ("model.audio.heads=1", "model.audio.experts.logmel.bands=31"):
        assert "fixed" in refused(capsys, "rank", unbroken, *common, "--set", change)
    assert main(["rank", str(unbroken), *map(str, common), "--set", f"banks={tmp_path / 'banks'}"]) == 0


def test_only_weight_paths_of_a_trained_panns_model_may_change(tmp_path: Path) -> None:
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path)
    content["model"]["audio"] = tiny.panns(weights="here.pth")
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    moved = _load_with_paths(path, ["model.audio.weights=elsewhere.pth"])
    assert moved.model.audio.weight_files() == {"weights": Path("elsewhere.pth")}
    with pytest.raises(KitError, match="settings"):
        _load_with_paths(path, ["model.audio.dropout=0.3"])


def test_ranking_with_other_expert_weights_is_refused(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    experts = json.loads((run / "provenance.json").read_text())["experts"]
    experts["logmel"]["sha256"] = {"weights": "another"}
    rewrite(run / "provenance.json", experts=experts)
    output = refused(capsys, "rank", run, "--audio", world, "--split", "evaluation", "--out", tmp_path / "s.npy")
    assert "experts.logmel.sha256" in output


def test_caption_without_known_words_is_refused_before_training(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace("One deep beep 2000", "zebra 2000"))
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    assert "the model knows no word of 1 query" in refused(capsys, "run", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run/only").exists()


def test_full_disk_gives_one_error_message_and_loses_nothing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    saved = checkpoints.save_state
    calls: list[int] = []

    def full_disk(folder: Path, *rest: Any) -> dict[str, str]:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(folder / "last.pt"))
        return saved(folder, *rest)

    monkeypatch.setattr(checkpoints, "save_state", full_disk)
    assert "last.pt: No space left on device" in refused(capsys, "train", path, "--out", tmp_path / "run")
    monkeypatch.setattr(checkpoints, "save_state", saved)
    assert checkpoints.load_state(tmp_path / "run/only")["step"] == 3  # type: ignore[index]
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert main(["train", str(path), "--out", str(tmp_path / "whole")]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_full_disk_error_of_a_rust_library_is_reported(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the form of tokenizers and safetensors."""

    def save_assets(_: object, folder: Path) -> None:
        (folder / "tokenizer.json").touch()
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr("system.models.text.encoder.TextEncoder.save_assets", save_assets)
    output = refused(capsys, "export", unbroken, "--out", tmp_path / "model")
    assert output == f"error: {tmp_path}/model: No space left on device; free disk space, then run the command again"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("system.models.text.encoder.TextEncoder.save_assets", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["export", str(unbroken), "--out", str(tmp_path / "model")])


@pytest.mark.parametrize("verb", ["run", "train", "features"])
@pytest.mark.parametrize("split", ["development", "validation", "evaluation"])
def test_source_without_audio_files_is_refused_before_any_work(
    verb: str, split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 12, "validation": 4, "evaluation": 12})
    shutil.rmtree(manifest.parent / split)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    output = refused(capsys, verb, path, *([] if verb == "features" else ["--out", tmp_path / "run"]))
    name = "train" if split == "development" else split
    count = 4 if split == "validation" else 12
    assert f"data source {name}: no audio of its {count} clips can be read (first: {manifest.parent / split}" in output
    assert "no such audio file); put the files at these paths, or make" in output
    assert not (tmp_path / "banks").exists()
    assert not (tmp_path / "run").exists()


def test_source_with_only_broken_audio_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tiny.make_world(tmp_path / "world", {"development": 12, "validation": 4, "evaluation": 12})
    for path in (manifest.parent / "validation").iterdir():
        path.write_bytes(b"RIFF")
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    output = refused(capsys, "run", path, "--out", tmp_path / "run")
    assert "data source validation: no audio of its 4 clips can be read (first: " in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["stage.add_gradients", "validation.Validation.__call__", "stage.Feed.batch"])
def test_full_gpu_memory_gives_one_error_message(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(f"system.training.{where}", full)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    output = refused(capsys, "train", path, "--out", tmp_path / "run")
    assert "not enough GPU memory for stage only: batch_size 8; set grad_cache_chunk to less than 8" in output


def test_infinite_loss_ends_training_with_an_error_message(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = tiny.stage(max_grad_norm=None, epochs=40)
    stage["losses"][1]["weight"] = 1e38
    stage["losses"].append({"kind": "matching", "weight": 3e38})
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=stage))
    assert "learning" in refused(capsys, "train", path, "--out", tmp_path / "run")


def checked(capsys: pytest.CaptureFixture[str], path: Path, *changes: str) -> str:
    capsys.readouterr()
    main(["check", str(path), *(part for change in changes for part in ("--set", change))])
    shown = capsys.readouterr()
    return shown.out + shown.err


@pytest.mark.parametrize("count", [1, 24])
def test_check_reports_missing_audio_files(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tiny.make_world(tmp_path / "world", tiny.SIZES)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    assert "nothing is missing" in checked(capsys, path)
    for audio in sorted((tmp_path / "world/evaluation").glob("*.wav"))[:count]:
        audio.unlink()
    output = checked(capsys, path)
    assert "nothing is missing" not in output
    files = "1 audio file not found" if count == 1 else "24 audio files not found"
    assert (
        f"data evaluation: {files}, first {tmp_path}/world/evaluation/evaluation 000.wav; put the files at these paths"
        in output
    )


def test_check_looks_at_a_sample_of_the_files_of_a_large_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("system.plan.data.CHECKED_FILES", 10)
    manifest = tiny.make_world(tmp_path / "world", tiny.SIZES)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))
    shutil.rmtree(tmp_path / "world/development")
    assert "10 audio files of 10 checked not found, first " in checked(capsys, path)


@pytest.mark.parametrize("holds", ["nothing", "other files", "a configuration alone"])
@pytest.mark.parametrize("part", ["text", "audio"])
def test_check_reports_a_folder_without_a_model(
    holds: str, part: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if holds == "other files":
        (folder / "passwd").write_text("x")
    elif holds == "a configuration alone":
        (folder / "config.json").write_text('{"model_type": "wavlm"}')
    content = tiny.recipe(world, tmp_path)
    if part == "text":
        tokens = {"trainable": True, "removed": "", "dropout": None, "hidden": None, "dim": 32}
        content["model"]["text"] = {"kind": "first_token", "model": str(folder), **tokens}
    else:
        audio = {"kind": "hugging_face", "model": str(folder), "type": "wavlm", "trainable": False, "max_seconds": 30}
        audio |= {"segment_seconds": 2.0, "hop_seconds": 2.0, "segment_pooling": "mean", "hidden": None}
        content["model"]["audio"] = audio
    output = checked(capsys, tiny.write_recipe(tmp_path / "r.yaml", content))
    problem = (
        "contains no weights (model.safetensors" if holds == "a configuration alone" else "contains no model (no config"
    )
    assert f"{folder}: the folder {problem}" in output
    assert "nothing is missing" not in output
    assert main(["download", str(tmp_path / "r.yaml")]) == 1
    assert str(folder) in capsys.readouterr().err


@pytest.mark.parametrize("key", ["name", "study name", "stage"])
def test_recipe_names_over_100_characters_are_refused(
    key: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, long = tiny.recipe(world, tmp_path), "a" * 300
    if key == "name":
        content["name"] = long
    elif key == "stage":
        content["stages"] = {long: content["stages"]["only"]}
        content["rank"]["evaluation"]["stage"] = long
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    if key == "study name":
        path = tmp_path / "s.study.yaml"
        path.write_text(f"name: {long}\nrecipe: r.yaml\nseeds: [1]\ncells: {{a: {{}}}}\n")
    output = checked(capsys, path)
    assert "at most 100 characters" in output
    assert "Traceback" not in output
