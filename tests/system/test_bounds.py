"""Recipes that are too deep, too long or too large for any machine: a quick error message, never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import refused

from data_tools.errors import KitError
from system.compute.device import memory_errors
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
