"""Metrics of a run in TensorBoard and Weights & Biases: those of metrics.jsonl, every step once."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import on_call, stopped
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from submission.runs.record import EpochLine, read_metrics
from system.__main__ import main
from system.runs import checkpoints
from system.training.tracking import metrics_by_step

Told = dict[str, list[tuple[int, float]]]  # by name, the steps and values in order


@pytest.fixture
def recipe(world, tmp_path):
    stages = {name: stage | {"save_minutes": None} for name, stage in tiny.two_stages().items()}
    return tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, **stages) | {"rank": {}})


def of_metrics(run: Path) -> Told:
    told: Told = {}
    for step, values in metrics_by_step(read_metrics(run / "metrics.jsonl", "")):
        for name, value in values.items():
            told.setdefault(name, []).append((step, value))
    return told


def of_tensorboard(run: Path) -> Told:
    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    names = [name for name in read.Tags()["scalars"] if "/steps/" not in name]
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in names}


def assert_same(found: Told, expected: Told) -> None:
    assert found.keys() == expected.keys()
    for name, pairs in expected.items():
        assert found[name] == [(step, float(np.float32(value))) for step, value in pairs], name


def interrupted(monkeypatch: pytest.MonkeyPatch, recipe: Path, run: Path, epochs: int, track: str) -> None:
    """Run until so many epochs are done, and end before the last of them is saved in a checkpoint."""
    with monkeypatch.context() as patched:
        on_call(patched, checkpoints, "save", epochs, stopped)
        assert main(["run", str(recipe), "--out", str(run), "--track", track]) == 130


def test_tensorboard_has_all_metrics_once_after_a_resume(recipe, tmp_path, monkeypatch):
    run = tmp_path / "run"
    interrupted(monkeypatch, recipe, run, 2, "tensorboard")
    assert main(["run", str(recipe), "--out", str(run), "--track", "tensorboard"]) == 0
    told = of_metrics(run)
    assert_same(of_tensorboard(run), told)
    steps = [step for step, _ in told["epoch"]]
    assert steps == sorted(set(steps))
    assert (
        told["finetune/validation/mAP@10"][-1][0]
        == steps[-1]
        == sum([line.step for line in read_metrics(run / "metrics.jsonl", "") if line.step][n] for n in (2, 5))
    )


def test_metrics_without_steps_and_resumed_ones_are_tracked_once(recipe, tmp_path, server, monkeypatch):
    lines = [EpochLine(stage="only", epoch=n, seconds=1.0, loss=0.5) for n in (1, 2)]
    assert list(metrics_by_step(lines)) == [
        (n, {"epoch": n, "only/seconds": 1.0, "only/loss": 0.5}) for n in (1, 2)
    ]  # fmt: skip
    run = tmp_path / "run"
    interrupted(monkeypatch, recipe, run, 3, "wandb")
    for _ in range(2):  # resumed; then finished
        assert main(["run", str(recipe), "--out", str(run), "--track", "wandb"]) == 0
    (told,) = server.values()
    assert told == list(metrics_by_step(read_metrics(run / "metrics.jsonl", "")))


@pytest.fixture
def server(monkeypatch):
    """A stand-in for W&B: the figures of each run."""
    runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
    module: Any = ModuleType("wandb")
    module.__spec__ = SimpleNamespace()

    def init(id: str, dir: str, resume: str, **_: object) -> SimpleNamespace:
        assert (Path(dir).is_dir(), resume) == (True, "allow")
        told = runs.setdefault(id, [])
        step = told[-1][0] + 1 if told else 0
        return SimpleNamespace(step=step, log=lambda values, step: told.append((step, values)))

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def test_failing_tracker_does_not_end_training(recipe, tmp_path, server, monkeypatch, caplog):
    def lost(values: dict[str, float], step: int) -> None:
        raise OSError("no route")

    monkeypatch.setattr(sys.modules["wandb"], "init", lambda **_: SimpleNamespace(step=0, log=lost))
    assert main(["run", str(recipe), "--out", str(tmp_path / "run"), "--track", "wandb"]) == 0
    assert caplog.text.count("no route") == 1


def test_missing_tracker_package_is_refused_at_the_start(recipe, monkeypatch, capsys):
    monkeypatch.setattr("system.training.tracking.find_spec", lambda name: None)
    for name, status, word in (("wandb", 1, "installed"), ("board", 2, "tensorboard")):
        assert main(["run", str(recipe), "--track", name]) == status
        assert word in capsys.readouterr().err


def test_profile_writes_a_trace_of_some_steps_of_each_stage(recipe, tmp_path):
    run = tmp_path / "run"
    assert main(["run", str(recipe), "--out", str(run), "--until", "training", "--profile", "2"]) == 0
    for stage in ("pretrain", "finetune"):
        events = json.loads((run / stage / "trace.json").read_text())["traceEvents"]
        assert {"aten::linear"} <= {event["name"] for event in events}
        assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 2
