"""Metrics of a run in TensorBoard, MLflow and Weights & Biases: those of metrics.jsonl, every step once."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
from quick import first_quick
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data_tools.errors import KitError
from submission.runs.reading import read_metrics
from submission.runs.record import EpochLine
from system.__main__ import main
from system.training import tracking
from system.training.interrupt import Interrupted
from system.training.stage import StageTraining
from system.training.tracking import metrics_by_step

Told = dict[str, list[tuple[int, float]]]  # by name, the steps and values in order


@pytest.fixture
def recipe(world: Path, tmp_path: Path) -> Path:
    stages = {name: stage | {"save_minutes": None} for name, stage in tiny.two_stages().items()}
    return tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, **stages))


def of_metrics(run: Path) -> Told:
    told: Told = {}
    for step, values in metrics_by_step(read_metrics(run / "metrics.jsonl", "")):
        for name, value in values.items():
            told.setdefault(name, []).append((step, value))
    return told


def of_tensorboard(run: Path) -> Told:
    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def assert_same(found: Told, expected: Told) -> None:
    assert found.keys() == expected.keys()
    for name, pairs in expected.items():
        assert found[name] == [(step, float(np.float32(value))) for step, value in pairs], name


def interrupted(monkeypatch: pytest.MonkeyPatch, recipe: Path, run: Path, epochs: int, *track: str) -> None:
    """Run until so many epochs of all stages are done, and end before the last of them is saved in a checkpoint."""
    save, count = (
        StageTraining._save_state,
        len((run / "metrics.jsonl").read_text().splitlines()) if run.exists() else 0,
    )

    def stop(stage: Any, weights: Any) -> None:
        nonlocal count
        count += 1
        if count == epochs:
            raise Interrupted("stopped")
        save(stage, weights)

    with monkeypatch.context() as patched:
        patched.setattr(StageTraining, "_save_state", stop)
        assert main(["run", str(recipe), "--out", str(run), *track]) == 130


def test_tensorboard_has_all_metrics_once_after_a_resume(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupted(monkeypatch, recipe, run, 2, "--track", "tensorboard")
    assert len(of_tensorboard(run)["pretrain/loss"]) == 1
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


def test_metrics_of_a_finished_run_can_be_sent_to_a_tracker_later(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["run", str(recipe), "--out", str(run)]) == 0
    assert not (run / "tensorboard").exists()
    metrics = (run / "metrics.jsonl").read_bytes()
    assert main(["run", str(recipe), "--out", str(run), "--track", "tensorboard"]) == 0
    assert_same(of_tensorboard(run), of_metrics(run))
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_metrics_without_steps_are_tracked_by_epoch() -> None:
    lines = [EpochLine(stage="only", epoch=n, seconds=1.0, loss=0.5) for n in (1, 2)]
    assert list(metrics_by_step(lines)) == [
        (n, {"epoch": n, "only/seconds": 1.0, "only/loss": 0.5}) for n in (1, 2)
    ]  # fmt: skip


class Server:
    """Stand-in for MLflow's and W&B's servers: figures by run. ended: the reported state of each run. active:
    runs that have not ended."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.names: list[str] = []
        self.ended: list[object] = []
        self.active: dict[str, list[str]] = {"mlflow": [], "wandb": []}

    def start(self, name: str, run_id: str) -> None:
        if self.active[name]:
            raise RuntimeError(f"Run with UUID {self.active[name][0]} is already active")
        self.active[name].append(run_id)

    def end(self, name: str, status: object) -> None:
        self.active[name].clear()
        self.ended.append(status)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(tracking, "find_spec", lambda name: name)
    _stand_in_mlflow(monkeypatch, server)
    _stand_in_wandb(monkeypatch, server)
    return server


def _stand_in_mlflow(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    module: Any = ModuleType("mlflow")
    tags: dict[str, str] = {}
    active = server.active["mlflow"]

    def run_of(run_id: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def start_run(run_id: str | None = None, run_name: str | None = None) -> SimpleNamespace:
        if run_id is None:
            server.names.append(str(run_name))
            run_id = f"mlflow{len(server.runs)}"
            server.runs[run_id] = []
        server.start("mlflow", run_id)
        return run_of(run_id)

    def log_metrics(values: dict[str, float], step: int) -> None:
        assert not [name for name in values if "@" in name]
        server.runs[active[0]].append((step, values))

    def history(run_id: str, name: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(step=step) for step, values in server.runs[run_id] if name in values]

    module.start_run, module.log_metrics = start_run, log_metrics
    module.set_tag = lambda name, value: tags.update({active[0]: f"tags.{name} = '{value}'"})
    module.search_runs = lambda filter_string, output_format: [
        run_of(i) for i, tag in tags.items() if tag == filter_string
    ]
    module.MlflowClient = lambda: SimpleNamespace(get_metric_history=history)
    module.end_run = lambda status="FINISHED": server.end("mlflow", status)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")


def _stand_in_wandb(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    module: Any = ModuleType("wandb")

    def init(id: str, name: str, dir: str, resume: str) -> SimpleNamespace:
        assert (Path(dir).is_dir(), resume) == (True, "allow")
        if id not in server.runs:
            server.names.append(name)
        server.start("wandb", id)
        told = server.runs.setdefault(id, [])
        return SimpleNamespace(
            step=told[-1][0] + 1 if told else 0,
            log=lambda values, step: told.append((step, values)),
            finish=lambda exit_code=0: server.end("wandb", exit_code),
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_PROJECT", "retrieval")


@pytest.mark.parametrize("name", first_quick(["mlflow", "wandb"], 1))
def test_tracking_server_gets_every_step_once_after_a_resume(
    name: str, recipe: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupted(monkeypatch, recipe, run, 3, "--track", name)
    assert main(["run", str(recipe), "--out", str(run), "--track", name]) == 0
    assert main(["run", str(recipe), "--out", str(run), "--track", name]) == 0
    (told,) = server.runs.values()
    expected = list(metrics_by_step(read_metrics(run / "metrics.jsonl", "")))
    at = "_at_" if name == "mlflow" else "@"
    assert told == [(step, {key.replace("@", at): value for key, value in values.items()}) for step, values in expected]
    assert server.names == ["run"]
    assert server.ended == (["KILLED", "FINISHED", "FINISHED"] if name == "mlflow" else [1, 0, 0])


def test_ranking_again_does_not_change_the_run_on_a_tracking_server(
    recipe: Path, tmp_path: Path, server: Server
) -> None:
    command = ["run", str(recipe), "--out", str(tmp_path / "run"), "--track", "mlflow", "--track", "wandb"]
    assert main(command) == 0
    told = {name: list(values) for name, values in server.runs.items()}
    for _ in range(2):  # it is ranked again, then finished with these settings
        assert main([*command, "--set", "rank.evaluation.csv=false"]) == 0
    assert server.runs == told


def test_failing_tracking_server_does_not_end_training(
    recipe: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules["mlflow"], "log_metrics", lambda values, step: 1 / 0)
    monkeypatch.setattr(sys.modules["wandb"], "init", lambda **_: 1 / 0)
    run = tmp_path / "run"
    assert main(["run", str(recipe), "--out", str(run), "--track", "mlflow", "--track", "wandb"]) == 0
    for name in ("mlflow", "wandb"):
        assert (
            caplog.text.count(
                f"the tracker {name} failed (division by zero) and gets no more data of this run; metrics.jsonl has all"
            )
            == 1
        )
    assert json.loads((run / "result.json").read_text())["rank"]
    assert server.ended == ["FAILED"]


@pytest.mark.parametrize("fault", first_quick(["none", "write", "begin"], 1))
def test_every_run_of_a_study_is_sent_as_a_run_to_the_tracking_server(
    fault: str, recipe: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the tracker of one run fails, it is ended, and the next run has a new one."""
    mlflow = sys.modules["mlflow"]
    if fault == "write":
        monkeypatch.setattr(mlflow, "log_metrics", lambda values, step: 1 / 0)
    elif fault == "begin":
        monkeypatch.setattr(mlflow, "set_tag", lambda name, value: 1 / 0)
    study = tmp_path / "two.study.yaml"
    tiny.write_recipe(study, {"name": "two", "recipe": recipe.name, "seeds": [1, 2], "cells": {"as_is": {}}})
    track = ["--track", "mlflow", "--track", "wandb"]
    assert main(["study", str(study), "--runs", str(tmp_path / "runs"), *track]) == 0
    assert len(server.names) == 4, "two of each tracker"
    assert server.active == {"mlflow": [], "wandb": []}
    assert [status for status in server.ended if isinstance(status, str)] == [
        "FINISHED" if fault == "none" else "FAILED"
    ] * 2
    assert server.ended.count(0) == 2


def test_failed_run_is_tracked_as_failed(
    recipe: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(stage: Any, weights: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(StageTraining, "_save_state", fails)
    command = ["run", str(recipe), "--out", str(tmp_path / "run"), "--track", "mlflow", "--track", "wandb"]
    assert main(command) == 1
    assert "disk" in capsys.readouterr().err
    assert server.ended == ["FAILED", 1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorboard", "tensorboard"),
        ("mlflow", "installed"),
        ("board", "tensorboard"),
    ],
)
def test_missing_tracker_package_is_refused_at_the_start(
    name: str, words: str, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert main(["run", str(recipe), "--track", name]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        (
            "mlflow",
            ["MLFLOW_TRACKING_URI"],
            "MLFLOW_TRACKING_URI",
        ),
        ("wandb", ["WANDB_PROJECT", "WANDB_API_KEY"], "WANDB_PROJECT"),
    ],
)
def test_tracker_without_destination_is_refused_at_the_start(
    name: str,
    variables: list[str],
    words: str,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(recipe.parent / "nobody"))
    assert main(["study", str(recipe), "--track", name]) == 2
    assert words in capsys.readouterr().err


NETRC = "machine {} login user password " + 40 * "0" + "\n"
DESTINATIONS = {
    "offline": ({"WANDB_MODE": "offline"}, "", True),
    "disabled": ({"WANDB_MODE": "disabled"}, "", True),
    "online without a login": ({"WANDB_MODE": "online"}, "", False),
    "logged in": ({}, NETRC.format("api.wandb.ai"), True),
    "logged in to a server of its own": ({"WANDB_BASE_URL": "https://w.example:8080"}, NETRC.format("w.example"), True),
    "logged in elsewhere": ({}, NETRC.format("other.example"), False),
    "logged in to another server": ({"WANDB_BASE_URL": "https://w.example"}, NETRC.format("api.wandb.ai"), False),
    "a damaged file of logins": ({}, "machine", False),
    "neither": ({}, "", False),
}


@pytest.mark.parametrize("case", DESTINATIONS)
def test_wandb_needs_a_login_or_offline_mode(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, logins, is_taken = DESTINATIONS[case]
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    if logins:
        (tmp_path / ".netrc").write_text(logins)
        (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    if is_taken:
        assert tracking.tracker_class("wandb") is tracking.WandB
    else:
        with pytest.raises(
            KitError,
            match="WANDB_PROJECT",
        ):
            tracking.tracker_class("wandb")
