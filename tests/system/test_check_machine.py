"""Report of `check` about this machine: memory, disk, hours, and the state of a study."""

import json
import os
import re
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import tiny
from outcomes import rewrite
from plans import fact, plan

from system.__main__ import main
from system.features.build import build_features
from system.plan.data import find_data
from system.plan.estimates import CORE_FLOPS, Estimates
from system.plan.machine import GIB, full_disks, gpu_memory, machine_memory
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.open import build_model

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def settings(world: Path, tmp_path: Path) -> schema.Recipe:
    return load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))).recipe


def disk_of(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))


def test_too_little_memory_is_a_warning_with_a_cure(settings: schema.Recipe) -> None:
    needed = Estimates(settings, find_data(settings)).memory(settings.stages["only"], "float32")
    assert "WARNING" not in plan(settings, memory_bytes=needed / 0.79)
    text = plan(settings, memory_bytes=needed / 0.85)
    size = f"{needed / 0.85 / GIB:.1f} GiB"
    assert (
        f"WARNING  stage only: batch_size 8 does not fit into this machine's {size} of memory: set grad_cache_chunk to"
        in text
    )
    assert text.endswith("\n1 WARNING\nnothing is missing")
    assert "this machine's" not in plan(settings, gpu_bytes=80 * GIB, memory_bytes=1.0), "stages compute on the GPU"
    assert "batch_size 8 does not fit into the GPU's 0.0 GiB" in plan(settings, gpu_bytes=1.0)


MIB = 1 << 20
V2 = "0::/user.slice/job_7/step_0\n"
V1 = "12:pids:/x\n11:memory:/slurm/job_7\n1:name=systemd:/user.slice:odd\n0::/user.slice\n"
NONE = str((1 << 63) - 4096)  # as version 1 writes that there is no limit


@pytest.mark.parametrize(
    ("groups", "files", "share"),
    [
        (V2, {"user.slice/job_7/step_0/memory.max": MIB}, MIB),
        (V2, {"user.slice/job_7/step_0/memory.max": "max", "user.slice/job_7/memory.max": 2 * MIB}, 2 * MIB),
        (V2, {"user.slice/job_7/step_0/memory.max": 3 * MIB, "user.slice/memory.max": 2 * MIB}, 2 * MIB),
        (V2, {"memory.max": MIB}, MIB),
        (V2, {"other/memory.max": MIB, "memory.max": "max"}, None),
        (V2, {}, None),
        ("0::/\n", {"memory.max": MIB}, MIB),
        (V1, {"memory/slurm/job_7/memory.limit_in_bytes": MIB}, MIB),
        (V1, {"memory/slurm/job_7/memory.limit_in_bytes": NONE, "memory/slurm/memory.limit_in_bytes": MIB}, MIB),
        (V1, {"memory/memory.limit_in_bytes": MIB, "pids/x/memory.limit_in_bytes": 1}, MIB),
        (V1, {"memory/slurm/job_7/memory.limit_in_bytes": NONE, "user.slice/memory.max": 2 * MIB}, 2 * MIB),
        (None, {"memory.max": MIB}, None),
    ],
)
def test_detected_machine_memory_is_the_lowest_cgroup_limit(
    groups: str | None, files: dict[str, object], share: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {Path("/sys/fs/cgroup", name): f"{limit}\n" for name, limit in files.items()}
    known |= {Path("/proc/self/cgroup"): groups} if groups else {}
    read = Path.read_text

    def read_text(path: Path, *arguments: Any, **named: Any) -> str:
        if path in known:
            return known[path]
        if path.is_relative_to("/sys/fs/cgroup") or path == Path("/proc/self/cgroup"):
            raise FileNotFoundError(path)
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert machine_memory() == (share or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@pytest.mark.parametrize(
    ("visible", "size"),
    [
        (None, 80), ("0", 80), ("1", 24), ("1,0", 24), (" 1 ", 24), ("GPU-bbb", 24), ("GPU-aaaa-1", 80), ("MIG-x", 80),
        ("", None), ("-1", None), ("7", None), ("GPU-c", None),
    ],
)  # fmt: skip
def test_detected_gpu_memory_is_that_of_the_first_visible_gpu(
    visible: str | None, size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!{sys.executable}\nprint("0, GPU-aaaa-1, {80 * 1024}\\n1, GPU-bbbb-2, {24 * 1024}")\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_memory() == (size and size * GIB)


def test_disk_warning_sums_the_needs_of_folders_on_one_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(monkeypatch, 10 * GIB)
    banks, runs = tmp_path / "not/yet/banks", tmp_path / "runs"
    assert list(full_disks({banks: 6 * GIB, runs: 4 * GIB})) == []
    ((folders, fault),) = full_disks({banks: 6 * GIB, runs: 5 * GIB})
    assert folders == f"{banks}/ and {runs}/"
    assert (
        fault == "about 11.0 GiB will be written, but the disk has 10.0 GiB free; free disk space, or use another disk"
    )


def hours(settings: schema.Recipe) -> str:
    """Return the time that a plan gives for missing frames."""
    return fact(plan(settings), "frames")


def test_disk_estimate_excludes_existing_frames(
    settings: schema.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = Estimates(settings, find_data(settings))
    run, frames = estimates.checkpoint_bytes, sum(estimates.bank_bytes.values())
    disk_of(monkeypatch, run + 0.5 * frames)
    assert "about 0.0 GiB will be written" in plan(settings, runs=tmp_path / "runs")
    assert "for missing frames" in (before := hours(settings))
    other = tmp_path / "banks/logmel-0123456789ab"  # of other settings: no help
    other.mkdir(parents=True)
    (other / "frames.bin").write_bytes(b"0" * round(2 * frames))
    (other / "index.jsonl").touch()
    assert "about 0.0 GiB will be written" in plan(settings, runs=tmp_path / "runs")
    assert hours(settings) == before
    clips = [clip for content in find_data(settings).values() for clip in content.clips]
    build_features(clips[::2], dict(settings.model.audio.experts), Path(settings.banks))
    assert "for missing frames" in hours(settings)
    assert hours(settings) != before
    features = build_features(clips, dict(settings.model.audio.experts), Path(settings.banks))
    assert not features.broken
    assert hours(settings) == "no frames are missing"
    assert "WARNING" not in plan(settings, runs=tmp_path / "runs")
    assert "WARNING" in plan(settings, runs=tmp_path / "runs", copies=2)
    assert f"checkpoints of 2 runs  at most {2 * run / GIB:.2f} GiB in " in plan(
        settings, runs=tmp_path / "r", copies=2
    )


def test_checkpoint_files_of_a_run_are_within_the_disk_estimate(settings: schema.Recipe, tmp_path: Path) -> None:
    assert main(["train", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "run")]) == 0
    paths = [*tmp_path.glob("run/only/*.safetensors"), tmp_path / "run/only/last.pt"]
    found = sum(path.stat().st_size for path in paths)
    bytes_a_model = 4 * sum(p.numel() for p in build_model(settings, ["a"] * 60).parameters())
    assert found < Estimates(settings, find_data(settings)).checkpoint_bytes + 0.2 * bytes_a_model * len(
        paths
    )  # and their headers


def test_plan_prints_the_time_for_processors_of_known_speed(
    settings: schema.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    estimates = Estimates(settings, find_data(settings))
    updates = 6 * estimates.step_flops(settings.stages["only"]) / (4 * CORE_FLOPS)
    frames = estimates.audio_seconds() * settings.model.audio.experts["logmel"].cost
    text = plan(settings)
    assert fact(text, "total").startswith(f"about {frames + updates:.2g} s on this CPU's 4 cores")
    assert fact(text, "frames") == f"about {frames:.2g} s for missing frames"
    assert fact(plan(settings, gpu_bytes=80 * GIB), "total").startswith("about")
    content = tiny.recipe(tmp_path / "absent.jsonl", tmp_path)
    absent = load_recipe(tiny.write_recipe(tmp_path / "a.yaml", content)).recipe
    assert fact(plan(absent), "total") == "unknown until the data is on this machine"


@pytest.mark.parametrize(
    ("model", "trainable", "words"),
    [
        (
            "nobody/nothing",
            True,
            "time of a step, are unknown: text model nobody/nothing: the model's configuration is not on this machine",
        ),
        ("nobody/nothing", False, "text 147,840; "),
        ("sentence-transformers/all-MiniLM-L6-v2", True, "text 22,861,056; "),
    ],
)
def test_plan_reports_an_unknown_size_if_a_trainable_text_model_is_not_downloaded(
    model: str, trainable: bool, words: str, world: Path, tmp_path: Path
) -> None:
    content = tiny.recipe(world, tmp_path)
    content["model"]["text"] = {
        "kind": "sentence_transformers", "model": model, "dim": 384, "projection": "linear", "trainable": trainable,
    }  # fmt: skip
    text = plan(load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe)
    assert words in text
    is_unknown = words.startswith("time of a step")
    assert ("unknown until the model is on this machine" in text) == is_unknown
    assert ("only memory" in text) != is_unknown


def test_check_of_a_study_reports_finished_and_remaining_runs_of_every_cell(
    world: Path, tmp_path: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    cells: dict[str, Any] = {"plain": {}, "wide": {"stages.only.losses.0.margin": 0.5}}
    content = {"name": "margins", "recipe": str(recipe), "seeds": [1, 2], "cells": cells}
    study = tiny.write_recipe(tmp_path / "m.study.yaml", content)
    command = ["check", str(study), "--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    *_, plain, wide, last, _ = capsys.readouterr().out.splitlines()
    assert (plain, wide) == ("runs of plain: 2 seeds: 1 to do, 2 to do", "runs of wide: 2 seeds: 1 to do, 2 to do")
    assert last == "study margins: 0 of 4 runs done; hours unknown until a run of the study is finished"
    for name in ("plain_s1", "wide_s2"):
        (tmp_path / "runs/margins" / name).mkdir(parents=True)
    shutil.copy(unbroken / "result.json", tmp_path / "runs/margins/plain_s1")
    rewrite(tmp_path / "runs/margins/plain_s1/result.json", seconds=7200.0, training_seconds=60.0)
    (tmp_path / "runs/margins/wide_s2/resolved.json").write_text(json.dumps({}))
    assert main(command) == 0
    *_, plain, wide, last, _ = capsys.readouterr().out.splitlines()
    assert plain == "runs of plain: 2 seeds: 1 finished (about 2.0 h), 2 to do"
    assert wide == "runs of wide: 2 seeds: 1 to do, 2 begun"
    assert last == "study margins: 1 of 4 runs done, about 6.0 h left"
    for left, name in ((3, "plain_s2"), (2, "wide_s1"), (1, "wide_s2"), (0, "")):
        assert main(command) == 0
        shown = re.findall("checkpoints( of .* runs)?  +at most", capsys.readouterr().out)
        assert shown == ([f" of {left} runs" if left > 1 else ""] if left else [])
        if name:
            shutil.copytree(tmp_path / "runs/margins/plain_s1", tmp_path / "runs/margins" / name, dirs_exist_ok=True)
