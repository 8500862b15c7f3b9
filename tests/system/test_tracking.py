"""Metrics of a run: trackers have those of metrics.jsonl, figures draw them, and a collapse is told."""

import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from matplotlib.figure import Figure
from outcomes import on_call, stopped
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from submission.__main__ import main as submission
from submission.runs.record import EpochLine, read_metrics
from system.__main__ import main
from system.models.batch import Embedded
from system.runs import checkpoints, plots
from system.runs.folder import Run
from system.training.tracking import metrics_by_step
from system.training.validation import collapse_messages, direction_spread, spreads

Told = dict[str, list[tuple[int, float]]]  # by name, the steps and values in order


@pytest.fixture
def recipe(world, tmp_path):
    stages = {name: stage | {"save_minutes": None, "epochs": 2} for name, stage in tiny.two_stages().items()}
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
    of_stages = [line.step for line in read_metrics(run / "metrics.jsonl", "") if line.step]
    assert told["finetune/validation/mAP@10"][-1][0] == steps[-1] == of_stages[1] + of_stages[3]


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


LINES = [
    {"stage": stage, "epoch": n, "loss": 3.0 - n, "violations": 0.5, "violations_relaxed": 0.1 * n, "positive": 0.6,
     "hardest_negative": 0.3, "seconds": 1.0, "validation": {"loss": 4.0 - n, "m1": 0.2 * n}}
    for stage, n in (("pretrain", 1), ("pretrain", 2), ("finetune", 1))
]  # fmt: skip


@pytest.mark.usefixtures("curves")
def test_figures_draw_every_metric_with_its_label(tmp_path, monkeypatch):
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.setdefault(path.stem, figure))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    plots.draw_run(Run(tmp_path))
    assert set(drawn) == {"loss", "violations", "similarity", "accuracy"}

    def shown(figure: Figure) -> dict[str, list[float]]:
        return {
            str(line.get_label()): list(map(float, line.get_ydata()))  # type: ignore[arg-type]
            for line in figure.axes[0].lines
            if not str(line.get_label()).startswith("_")
        }

    assert shown(drawn["loss"]) == {"training": [2, 1, 2], "validation": [3, 2, 3]}
    assert shown(drawn["violations"]) == {"full margin": [0.5] * 3, "relaxed margin": pytest.approx([0.1, 0.2, 0.1])}
    assert shown(drawn["similarity"]) == {"matching pairs": [0.6] * 3, "hardest negatives": [0.3] * 3}
    assert shown(drawn["accuracy"]) == {"m1": pytest.approx([0.2, 0.4, 0.2])}
    (stage_line,) = [line for line in drawn["loss"].axes[0].lines if str(line.get_label()).startswith("_")]
    assert list(stage_line.get_xdata()) == [2.5, 2.5]
    assert drawn["loss"].axes[0].get_title() == "pretrain, then finetune"


@pytest.mark.usefixtures("curves")
def test_run_without_ranking_loss_has_no_plot_of_margin_violations(tmp_path):
    lines = [{"stage": "only", "epoch": 1, "seconds": 1.0, "loss": 1.0, "validation": {"loss": 2.0}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [path.name for path in plots.draw_run(Run(tmp_path))] == ["loss.svg"]
    assert "<svg" in (tmp_path / "figures/loss.svg").read_text()[:400]


def test_spread_matches_hand_values_and_ignores_padding():
    assert direction_spread(Embedded(torch.tensor([[1.0, 0], [0, 3]]))) == pytest.approx(0.5)  # cosines 1, 0, 0, 1
    assert direction_spread(Embedded(torch.tensor([[2.0, 1], [4, 2]]))) == pytest.approx(0)
    assert direction_spread(Embedded(torch.tensor([[1.0, 0], [-1, 0]]))) == pytest.approx(1)
    assert direction_spread(Embedded(torch.zeros(3, 2))) == 0
    series = torch.tensor([[[1.0, 0], [0, 1]], [[1, 1], [5, -5]]])
    alike = Embedded(series, torch.tensor([2, 1]))  # means (1, 1) and (1, 1)
    assert direction_spread(alike) == pytest.approx(0, abs=1e-12)
    assert direction_spread(Embedded(series, torch.tensor([2, 2]))) > 0.1


def test_spread_below_1e_5_is_a_collapse():
    anywhere = Embedded(torch.eye(4))
    assert collapse_messages(spreads(anywhere, anywhere)) == []
    nearly_one = Embedded(torch.ones(4, 2) + 0.001 * torch.eye(4)[:, :2])
    (message,) = collapse_messages(spreads(nearly_one, anywhere))
    assert "clips" in message
    # A fresh model on meaningless audio has a spread of 1e-4; below 1e-5 there is one embedding.
    healthy = {"spread_of_clips": 1.1e-5, "spread_of_captions": 0.5}
    assert collapse_messages(healthy) == []
    assert len(collapse_messages(healthy | {"spread_of_clips": 0.9e-5})) == 1
    assert len(collapse_messages(healthy | {"spread_of_clips": 0.5e-5, "spread_of_captions": 0.5e-5})) == 2


@pytest.mark.collapses
def test_collapse_appears_in_log_metrics_and_report(tmp_path, caplog):
    """A rate so high that every weight is thrown far out: all clips end in one direction."""
    manifest = tiny.make_world(tmp_path / "data", {"development": 16, "validation": 8, "evaluation": 16})
    stage = tiny.stage(
        epochs=2,
        optimizer={"kind": "adamw", "lr": 1.0, "weight_decay": 0.0},
        schedule={"kind": "constant", "warmup_steps": 0},
        losses=[{"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none", "negatives": "hardest"}],
        max_grad_norm=None,
    )
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path, only=stage))
    with caplog.at_level(logging.WARNING):
        assert main(["run", str(recipe), "--out", str(tmp_path / "run")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["collapsed"]
    assert min(lines[-1]["spread_of_clips"], lines[-1]["spread_of_captions"]) < 1e-5
    assert "COLLAPSED" in caplog.text
    assert "COLLAPSED" in (tmp_path / "run/log.txt").read_text()
    assert submission(["report", str(tmp_path / "run")]) == 0
    assert lines[-1]["collapsed"][0] in (tmp_path / "run/report.html").read_text(encoding="utf-8")
