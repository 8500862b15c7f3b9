"""Choice of the device: the named one if this machine has it."""

import json
from pathlib import Path

import pytest
import tiny
import torch

from data_tools.errors import KitError
from system.__main__ import main
from system.compute.device import device_of, moved, seed_generators
from system.retriever import load_model

HAS_GPU, NO_GPU = torch.cuda.is_available(), "needs a GPU"


@pytest.fixture
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason=NO_GPU))])
def test_seeded_generators_draw_the_same_numbers_as_after_torch_manual_seed(device: str) -> None:
    torch.manual_seed(2**63 + 5)
    expected = torch.rand(9, device=device)
    seed_generators(2**63 + 5)
    assert torch.equal(torch.rand(9, device=device), expected)
    seed_generators(6)
    assert not torch.equal(torch.rand(9, device=device), expected)


def test_cuda_generators_are_seeded_only_if_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    seed_generators(3)
    assert seeded == ([3] if torch.cuda.is_initialized() else [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seed_generators(4)
    assert seeded[-1] == 4


@pytest.mark.usefixtures("_one_gpu")
def test_cuda_is_the_default_if_available() -> None:
    assert [str(device_of(name)) for name in (None, "cuda", "cuda:0", "cpu")] == ["cuda", "cuda", "cuda:0", "cpu"]
    with pytest.raises(KitError, match="machine"):
        device_of("cuda:1")


def test_missing_or_unknown_torch_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert str(device_of()) == "cpu"
    for name, words in (
        ("cuda", "no cuda on this machine"),
        ("cuda:1", "no cuda:1 on this machine"),
        ("mps", "no mps device on this machine"),
        ("gpu", "unknown device 'gpu'; use cuda, cuda:1"),
        ("cpu:1", "unknown device 'cpu:1'"),
    ):
        with pytest.raises(KitError, match=words):
            device_of(name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "r.yaml"], ["run", "r.study.yaml"],
    ],
)  # fmt: skip
def test_missing_device_is_refused_before_a_recipe_is_read(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([*arguments, "--device", "cuda"]) == 1
    assert "machine" in capsys.readouterr().err


def test_device_option_is_used_for_training_and_recorded(
    world: Path, tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1)))
    for user in ("system.experiments.run", "system.runs.open"):
        monkeypatch.setattr(f"{user}.device_of", lambda: pytest.fail("the default is asked for"))
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["hardware"].endswith(", no GPU")
    assert json.loads((tmp_path / "run/provenance.json").read_text())["gpu"] is None
    assert str(load_model(unbroken, device="cpu").model.device) == "cpu"
    with pytest.raises(KitError, match="unknown"):
        load_model(unbroken, device="gpu")


def test_float64_model_on_mps_is_refused() -> None:
    class OnMps(torch.nn.Module):
        def to(self, *_: object) -> None:  # type: ignore[override]
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")

    with pytest.raises(KitError, match="computes"):
        moved(OnMps(), torch.device("mps"))
