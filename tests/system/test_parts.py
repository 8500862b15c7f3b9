"""Learning rates of parts, and parts that are frozen at the start of a stage."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import digest, lines
from plans import fact

from system.__main__ import main
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.recipe.load import RecipeError, load_recipe
from system.runs.open import build_model
from system.training.interrupt import Interrupted
from system.training.parts import FrozenStart, parameter_groups
from system.training.stage import StageTraining


def adamw(**changes: Any) -> dict[str, Any]:
    return {"kind": "adamw", "lr": 0.001, "weight_decay": 0.01} | changes


def written(world: Path, folder: Path, optimizer: dict[str, Any], **changes: Any) -> Path:
    stage = tiny.stage(optimizer=optimizer, **changes)
    return tiny.write_recipe(folder / "r.yaml", tiny.recipe(world, folder, only=stage))


@pytest.fixture
def model(world: Path, tmp_path: Path) -> RetrievalModel:
    return build_model(load_recipe(written(world, tmp_path, adamw())).recipe, ["deep", "tone"])


def test_parameters_have_the_learning_rate_of_their_model_part_or_the_base_rate(model: RetrievalModel) -> None:
    settings = schema.AdamW.model_validate(adamw(lr_by_part={"text": 1e-5}))
    groups, rates = parameter_groups(model, settings)
    assert rates == [0.001, 1e-5]
    assert [{id(p) for p in group["params"]} for group in groups] == [
        {id(p) for p in model.audio.parameters()},
        {id(p) for p in model.text.parameters()},
    ]
    (alone,), _ = parameter_groups(model, schema.AdamW.model_validate(adamw()))
    assert [id(p) for p in alone["params"]] == [id(p) for p in model.parameters()]


def test_frozen_model_part_is_in_evaluation_mode_for_the_frozen_steps(model: RetrievalModel) -> None:
    model.text.norm = torch.nn.BatchNorm1d(2)
    frozen = FrozenStart(model, schema.AdamW.model_validate(adamw(frozen_start={"text": 2})))
    for step, training in enumerate((False, False, True, True)):
        model.train()  # as after validation
        frozen.begin_step(step)
        assert {part.training for part in model.text.modules()} == {training}
        assert {p.requires_grad for p in model.text.parameters()} == {training}
        assert all(part.training for part in model.audio.modules())
        assert all(p.requires_grad for p in model.audio.parameters())
    frozen.begin_step(0)
    frozen.end()
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("chunk", [None, 3])
def test_text_encoder_weights_stay_unchanged_for_the_steps_in_the_setting_frozen_start(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int | None
) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor, int]] = []
    step = StageTraining._train_step

    def watched(stage: Any, feed: Any) -> dict[str, float]:
        values = step(stage, feed)
        parts = stage.model.audio, stage.model.text
        flat = [torch.cat([p.detach().flatten() for p in part.parameters()]) for part in parts]
        moments = sum(p in stage.optimizer.state for p in stage.model.text.parameters())
        seen.append((*flat, moments))
        return values

    monkeypatch.setattr(StageTraining, "_train_step", watched)
    path = written(world, tmp_path, adamw(frozen_start={"text": 4}, weight_decay=0.5), grad_cache_chunk=chunk)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    audio, text, moments = zip(*seen, strict=True)
    assert [torch.equal(a, b) for a, b in pairwise(text)] == [True, True, True, False, False]
    assert not any(torch.equal(a, b) for a, b in pairwise(audio))
    assert moments[:4] == (0, 0, 0, 0)
    assert min(moments[4:]) > 0


def test_run_resumed_while_a_model_part_is_frozen_is_bit_identical(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(world, tmp_path, adamw(lr_by_part={"audio": 1e-4}, frozen_start={"logmel": 4}))
    assert main(["run", str(path), "--out", str(tmp_path / "whole")]) == 0
    stop = StageTraining._stop_if_requested

    def once(stage: Any, asked: dict[str, bool]) -> None:
        if stage.step in (2, 4):  # in the frozen start, and with its end
            stage._save_state(None)
            raise Interrupted("stopped")
        stop(stage, asked)

    for steps in (2, 4):
        with monkeypatch.context() as patched:
            patched.setattr(StageTraining, "_stop_if_requested", once)
            assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 130
        state = torch.load(tmp_path / "run/only/last.pt", weights_only=True)
        assert state["step"] == steps
        one_more(monkeypatch, path, tmp_path / "run", steps)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    counts = [json.loads((tmp_path / f"{name}/result.json").read_text())["parameters"] for name in ("run", "whole")]
    assert counts[0] == counts[1]
    assert counts[0]["trained"]["logmel"] > 0


def one_more(monkeypatch: pytest.MonkeyPatch, path: Path, run: Path, steps: int) -> None:
    """Resume, and be interrupted a step later."""

    def next_step(stage: Any, asked: dict[str, bool]) -> None:
        if stage.step == steps + 1:
            stage._save_state(None)
            raise Interrupted("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(StageTraining, "_stop_if_requested", next_step)
        assert main(["run", str(path), "--out", str(run)]) == 130


def test_metrics_contain_the_base_learning_rate(world: Path, tmp_path: Path) -> None:
    rates = {"audio": 1e-4, "text": 1e-5}  # nothing is left for the base rate
    path = written(world, tmp_path, adamw(lr_by_part=rates), schedule={"kind": "constant", "warmup_steps": 0})
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    assert [line["lr"] for line in lines(tmp_path / "run")] == [0.001, 0.001]
    groups = torch.load(tmp_path / "run/only/last.pt", weights_only=True)["optimizer"]["param_groups"]
    assert [group["lr"] for group in groups] == [0.001, 1e-4, 1e-5]


def test_model_part_without_trainable_parameters_is_refused(world: Path, tmp_path: Path) -> None:
    content = tiny.recipe(world, tmp_path, only=tiny.stage(optimizer=adamw(lr_by_part={"text": 1e-5})))
    content["model"]["text"] = {
        "kind": "sentence_transformers", "model": "nobody/nothing", "dim": 8, "projection": "none", "trainable": False,
    }  # fmt: skip
    with pytest.raises(RecipeError, match="leave"):
        load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content))


def test_check_prints_the_number_of_parameters_per_learning_rate(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: RetrievalModel
) -> None:
    path = written(world, tmp_path, adamw(lr_by_part={"audio": 1e-5}, frozen_start={"logmel": 1500}))
    assert main(["check", str(path)]) == 0
    output = capsys.readouterr().out
    audio = model.parameters_by_part()["logmel"]
    assert f"audio 1e-05 ({audio:,} parameters), all other parts 0.001 (" in fact(output, "only rates")
    frozen = f"logmel ({audio:,} parameters) is frozen for the first"
    assert fact(output, "only frozen") == f"{frozen} 1,500 steps, which are all steps of the stage"
    path = written(world, tmp_path, adamw(frozen_start={"logmel": 5}))
    assert main(["check", str(path)]) == 0
    output = capsys.readouterr().out
    assert fact(output, "only frozen") == f"{frozen} 5 steps"
    assert "only rates" not in output
