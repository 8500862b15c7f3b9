"""Recipes that are too deep, too long or too large for any machine: a quick error message, never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import refused
from plans import plan

from data_tools.errors import KitError
from system.__main__ import main
from system.compute.device import memory_errors
from system.plan.data import find_data
from system.plan.estimates import Estimates
from system.recipe.load import RecipeError, load_recipe


def problems(tmp_path: Path, text: str, *changes: str) -> list[str]:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, list(changes))
    return caught.value.problems


def test_unknown_keys_beyond_200_are_only_counted(world: Path, tmp_path: Path) -> None:
    content = tiny.recipe(world, tmp_path) | {f"unknown{n}": 1 for n in range(5_000)} | {"x" * 300: 1}
    found = problems(tmp_path, json.dumps(content))
    assert len(found) == 201
    assert found[-1].endswith("and 4,801 more mistakes")
    assert all("unknown key" in problem for problem in found[:200])
    assert max(map(len, found)) < 250


@pytest.mark.slow
def test_check_refuses_models_larger_than_any_memory(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    large = ["model.audio.width=65536", "model.audio.ffn_dim=65536", "model.audio.layers=1000", "model.text.dim=64"]
    assert main(["check", str(path), *(part for change in large for part in ("--set", change))]) == 1
    assert capsys.readouterr().err == "error: not enough memory on this machine for the model; make it smaller\n"
    many = ["stages.only.batch_size=1000000", "model.audio.layers=50", "model.audio.width=1024"]
    assert main(["check", str(path), *(part for change in many for part in ("--set", change))]) == 1
    assert "MISTAKE" in capsys.readouterr().out
    assert main(["check", str(path)]) == 0


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf"])
def test_gpu_memory_option_must_be_finite_and_positive(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "r.yaml", f"--gpu-memory={number}"]) == 1
    assert capsys.readouterr().err == f"error: --gpu-memory {number}: must be a finite number of GiB above 0\n"


def test_memory_errors_of_torch_and_numpy_become_kit_errors() -> None:
    def torch_finds_none() -> None:
        torch.empty(2**55)

    def numpy_finds_none() -> None:
        raise MemoryError

    for full in (torch_finds_none, numpy_finds_none):
        with (
            pytest.raises(KitError, match="machine"),
            memory_errors("the model", "make it smaller"),
        ):
            full()
    with pytest.raises(RuntimeError, match="another"), memory_errors("the model", "make it smaller"):
        raise RuntimeError("another")


def test_model_larger_than_memory_ends_run_with_error_message(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        torch.empty(2**55)

    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    monkeypatch.setattr("system.models.text.Transformer.build", full)
    assert "machine" in refused(capsys, "run", path, "--out", tmp_path / "run")


def test_plan_warns_if_step_needs_over_nine_tenths_of_gpu(world: Path, tmp_path: Path) -> None:
    """CUDA itself and its cache take the rest."""
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))).recipe
    needed = Estimates(recipe, find_data(recipe)).memory(recipe.stages["only"], "float32")
    assert "does not fit" not in plan(recipe, needed / 0.89)
    assert "does not fit" in plan(recipe, needed / 0.95)
