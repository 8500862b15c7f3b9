"""Learning rates of parts, and parts that are frozen at the start of a stage."""

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import digest, lines, on_call, signalled

from system.__main__ import main
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.checkpoints import load_state
from system.runs.open import build_model
from system.training import train as training
from system.training.schedule import parameter_groups, set_training_mode


def adamw(**changes: Any) -> dict[str, Any]:
    return {"kind": "adamw", "lr": 0.001, "weight_decay": 0.01} | changes


def written(world: Path, folder: Path, optimizer: dict[str, Any], **changes: Any) -> Path:
    stage = tiny.stage(optimizer=optimizer, **changes)
    return tiny.write_recipe(folder / "r.yaml", tiny.recipe(world, folder, only=stage))


def test_parts_have_their_learning_rates_and_frozen_ones_are_in_evaluation_mode(world, tmp_path):
    model = build_model(load_recipe(written(world, tmp_path, adamw())).recipe, ["deep", "tone"])
    settings = schema.AdamW.model_validate(adamw(lr_by_part={"text": 1e-5}))
    groups = parameter_groups(model, settings)
    assert [group["base_lr"] for group in groups] == [0.001, 1e-5]
    both = [set(map(id, part.parameters())) for part in (model.audio, model.text)]
    assert [set(map(id, group["params"])) for group in groups] == both
    (alone,) = parameter_groups(model, schema.AdamW.model_validate(adamw()))
    assert [id(p) for p in alone["params"]] == [id(p) for p in model.parameters()]
    model.text.norm = torch.nn.BatchNorm1d(2)
    settings, parameters = schema.AdamW.model_validate(adamw(frozen_start={"text": 2})), list(model.parameters())
    for step, is_trained in enumerate((False, False, True, True)):
        set_training_mode(model, settings, step, parameters)
        assert {part.training for part in model.text.modules()} == {is_trained}
        assert {p.requires_grad for p in model.text.parameters()} == {is_trained}
        assert all(part.training for part in model.audio.modules())
        assert all(p.requires_grad for p in model.audio.parameters())


@pytest.mark.parametrize("chunk", [None, 3])
def test_text_encoder_weights_stay_unchanged_for_the_steps_in_the_setting_frozen_start(
    world, tmp_path, monkeypatch, chunk
):
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    gradients = training.add_gradients

    def watched(model: RetrievalModel, *rest: Any) -> dict[str, torch.Tensor]:
        """Weights before each update."""
        parts = model.audio, model.text
        seen.append(tuple(torch.cat([p.detach().flatten() for p in part.parameters()]) for part in parts))
        return gradients(model, *rest)

    monkeypatch.setattr(training, "add_gradients", watched)
    path = written(world, tmp_path, adamw(frozen_start={"text": 4}, weight_decay=0.5), grad_cache_chunk=chunk)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    audio, text = zip(*seen, strict=True)
    assert [torch.equal(a, b) for a, b in pairwise(text)] == [True, True, True, True, False]
    assert not any(torch.equal(a, b) for a, b in pairwise(audio))


def test_run_resumed_while_a_model_part_is_frozen_is_bit_identical(world, tmp_path, monkeypatch):
    path = written(world, tmp_path, adamw(lr_by_part={"audio": 1e-4}, frozen_start={"logmel": 4}))
    assert main(["run", str(path), "--out", str(tmp_path / "whole")]) == 0
    for steps in (2, 4):
        with monkeypatch.context() as patch:
            on_call(patch, training, "add_gradients", 2, signalled(signal.SIGINT))
            assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 130
        assert (load_state(tmp_path / "run/only") or {})["progress"].step == steps
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    counts = [json.loads((tmp_path / f"{name}/result.json").read_text())["parameters"] for name in ("run", "whole")]
    assert counts[0] == counts[1]
    assert counts[0]["trained"]["logmel"] > 0


def test_metrics_contain_the_base_learning_rate(world, tmp_path):
    rates = {"audio": 1e-4, "text": 1e-5}  # nothing is left for the base rate
    path = written(world, tmp_path, adamw(lr_by_part=rates), schedule={"kind": "constant", "warmup_steps": 0})
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    assert [line["lr"] for line in lines(tmp_path / "run")] == [0.001, 0.001]
    groups = torch.load(tmp_path / "run/only/last.pt", weights_only=True)["optimizer"]["param_groups"]
    assert [group["lr"] for group in groups] == [0.001, 1e-4, 1e-5]
