"""Models that are too large for a machine: an error message, never a traceback."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from outcomes import refused

from data_tools.errors import KitError
from system.compute.device import memory_errors


def test_memory_errors_of_torch_and_numpy_become_kit_errors() -> None:
    def torch_finds_none() -> None:
        torch.empty(2**55)

    def numpy_finds_none() -> None:
        raise MemoryError

    for full in (torch_finds_none, numpy_finds_none):
        with pytest.raises(KitError, match="machine"), memory_errors("the model", "make it smaller"):
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
