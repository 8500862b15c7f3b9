"""Numeric overflow in training: no infinite or NaN value is saved, and earlier files stay."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import refused

from data_tools.errors import KitError
from system.__main__ import main
from system.runs import checkpoints
from system.training import stage, step
from system.training.validation import Validation


def write(world: Path, folder: Path, **changes: Any) -> Path:
    return tiny.write_recipe(folder / "r.yaml", tiny.recipe(world, folder, only=tiny.stage(**changes)))


def state_after_one_epoch(run: Path) -> dict[str, Any]:
    state = checkpoints.load_state(run / "only")
    assert state is not None
    assert state["step"] == 3
    assert all(value.isfinite().all() for value in state["model"].values())
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    return state


def overflow_at(number: int, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Make the update of a step, numbered from 1, set a weight to infinity."""
    update = torch.optim.AdamW.step
    calls: list[int] = []

    def overflowing(self: torch.optim.AdamW, *arguments: Any) -> Any:
        found = update(self, *arguments)
        calls.append(1)
        if len(calls) == number:
            self.param_groups[0]["params"][0].data.view(-1)[0] = torch.inf
            then()
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", overflowing)


def test_overflowed_weights_after_an_epoch_are_not_saved(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the gradients of the sixth step are finite; its update is not."""
    path = write(world, tmp_path)
    overflow_at(6, monkeypatch, lambda: None)
    output = refused(capsys, "train", path, "--out", tmp_path / "run")
    assert "step 6: the model has weights that are infinite or NaN" in output
    assert "last.pt has the training state of an earlier step" in output
    monkeypatch.undo()
    state_after_one_epoch(tmp_path / "run")
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0, "without the fault the run goes on"


def test_interrupt_saves_no_overflowed_weights(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the fifth step, whose update overflows."""
    path = write(world, tmp_path)
    overflow_at(5, monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    assert "infinite" in refused(capsys, "train", path, "--out", tmp_path / "run")
    state_after_one_epoch(tmp_path / "run")


def test_overflowed_gradients_end_the_stage_before_the_update(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that is finite, with gradients that are not; with and without a largest norm."""
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
            patch.setattr(stage, "add_gradients", spoilt)
            output = refused(capsys, "train", path, "--out", folder / "run")
        assert "step 4: the norm of the gradients is nan" in output
        state_after_one_epoch(folder / "run")


def test_overflow_in_the_first_step_is_reported_with_nothing_saved(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "add_gradients", lambda *_: {"loss": torch.tensor(torch.nan)})
    output = refused(capsys, "train", write(world, tmp_path), "--out", tmp_path / "run")
    assert "step 0: the loss is nan" in output
    assert "this run has saved no state" in output


def test_nan_validation_saves_no_checkpoint(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = Validation.__call__
    calls: list[int] = []

    def lost(self: Any, model: Any) -> Any:
        values, seen = validate(self, model)
        calls.append(1)
        return (values | {"m1": float("nan")} if len(calls) == 2 else values), seen

    monkeypatch.setattr(Validation, "__call__", lost)
    output = refused(capsys, "train", write(world, tmp_path), "--out", tmp_path / "run")
    assert "step 6: validation metrics are not finite (m1 nan)" in output
    state_after_one_epoch(tmp_path / "run")


def test_nan_and_infinite_metrics_are_never_best() -> None:
    table: checkpoints.BestEpochs = {}
    for epoch, value in enumerate([float("nan"), 1.0, float("inf"), -float("inf"), 2.0], start=1):
        table = checkpoints.add_epoch(table, {"loss": value, "m1": value}, epoch, keep=3)
    assert table == {"loss": [[1.0, 2], [2.0, 5]], "m1": [[2.0, 5], [1.0, 2]]}


def test_training_state_with_nan_weights_is_refused(unbroken: Path, tmp_path: Path) -> None:
    state = torch.load(unbroken / "finetune/last.pt", weights_only=True)
    name = next(iter(state["model"]))
    state["model"][name].view(-1)[0] = torch.nan
    (tmp_path / "finetune").mkdir()
    torch.save(state, tmp_path / "finetune/last.pt")
    with pytest.raises(KitError, match=f"has weights that are infinite or NaN, first {name}; delete .*finetune"):
        checkpoints.load_state(tmp_path / "finetune")


def test_fp16_overflow_at_every_scale_ends_the_stage(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scaler halves its scale at every overflow; one is no fault. After 27 in a row, the next step ends the stage."""

    class Scaler:
        scale_now = 2.0**16

        def unscale_(self, optimizer: Any) -> None: ...
        def is_enabled(self) -> bool:
            return True

        def scale(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * self.scale_now

        def step(self, optimizer: Any) -> None: ...
        def update(self) -> None:
            self.scale_now /= 2

    monkeypatch.setattr("system.training.stage.GradScaler", lambda *_, **__: Scaler())
    output = refused(capsys, "train", write(world, tmp_path, steps_per_epoch=40), "--out", tmp_path / "run")
    assert "step 27: fp16 gradients overflow at every loss scale" in output


def test_metrics_jsonl_is_strict_json(unbroken: Path) -> None:
    for line in (unbroken / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
