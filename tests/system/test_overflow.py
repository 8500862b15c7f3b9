"""Numeric overflow in training: no infinite or NaN value is saved, and earlier files stay."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import refused

from system.__main__ import main
from system.runs import checkpoints
from system.training import step, train
from system.training.validation import Validation


def write(world: Path, folder: Path, **changes: Any) -> Path:
    return tiny.write_recipe(folder / "r.yaml", tiny.recipe(world, folder, only=tiny.stage(**changes)))


def state_after_one_epoch(run: Path) -> dict[str, Any]:
    state = checkpoints.load_state(run / "only")
    assert state["progress"].step == 3
    assert all(value.isfinite().all() for value in state["model"].values())
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    return state


def overflow_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the update of a step, numbered from 1, set a weight to infinity."""
    update = torch.optim.AdamW.step
    calls: list[int] = []

    def overflowing(self: torch.optim.AdamW, *arguments: Any) -> Any:
        found = update(self, *arguments)
        calls.append(1)
        if len(calls) == number:
            self.param_groups[0]["params"][0].data.view(-1)[0] = torch.inf
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", overflowing)


def test_overflowed_weights_after_an_epoch_are_not_saved(world, tmp_path, capsys, monkeypatch):
    path = write(world, tmp_path)
    overflow_at(6, monkeypatch)
    output = refused(capsys, "run", "--until=training", path, "--out", tmp_path / "run")
    assert "step 6" in output
    monkeypatch.undo()
    state_after_one_epoch(tmp_path / "run")
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0, (
        "without the fault the run goes on"
    )


def test_overflowed_gradients_end_the_stage_before_the_update(world, tmp_path, capsys, monkeypatch):
    for limit in (1.0, None):
        folder = tmp_path / str(limit)
        folder.mkdir()
        path, calls = write(world, folder, max_grad_norm=limit), []

        def spoilt(model: Any, *rest: Any, calls: list[int] = calls) -> dict[str, float]:
            seen = step.add_gradients(model, *rest)
            calls.append(1)
            if len(calls) == 5:
                next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[0] = torch.nan
            return seen

        with monkeypatch.context() as patch:
            patch.setattr(train, "add_gradients", spoilt)
            output = refused(capsys, "run", "--until=training", path, "--out", folder / "run")
        assert "step 4" in output
        state_after_one_epoch(folder / "run")


def test_overflow_in_the_first_step_saves_nothing_and_metrics_are_strict_json(
    world, tmp_path, capsys, monkeypatch, unbroken
):
    monkeypatch.setattr(train, "add_gradients", lambda *_: {"loss": torch.tensor(torch.nan)})
    output = refused(capsys, "run", "--until=training", write(world, tmp_path), "--out", tmp_path / "run")
    assert "step 0" in output
    for line in (unbroken / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_nan_validation_saves_no_checkpoint(world, tmp_path, capsys, monkeypatch):
    validate = Validation.__call__
    calls: list[int] = []

    def lost(self: Any, model: Any) -> Any:
        values, seen = validate(self, model)
        calls.append(1)
        return (values | {"m1": float("nan")} if len(calls) == 2 else values), seen

    monkeypatch.setattr(Validation, "__call__", lost)
    output = refused(capsys, "run", "--until=training", write(world, tmp_path), "--out", tmp_path / "run")
    assert "m1 nan" in output
    state_after_one_epoch(tmp_path / "run")
