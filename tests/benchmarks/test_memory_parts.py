"""Activations of real encoders with random weights, counted by the tensors that they save, against the plan."""

from pathlib import Path

import pytest
import torch

from system.models.batch import Series
from system.plan.data import find_data
from system.plan.estimates import Estimates
from system.recipe.load import load_recipe

pytestmark = pytest.mark.benchmark

CLIPS, SECONDS = 2, 20


def saved_bytes(encoder: torch.nn.Module, audio: dict[str, Series], half: bool) -> float:
    """Bytes of all different tensors that a forward pass keeps for the backward pass, without weights."""
    weights = {tuple(sorted(p.shape)) for p in encoder.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(sorted(tensor.shape)) not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        encoder(audio)
    return float(sum(storage.nbytes() for storage in kept.values()))


@pytest.mark.parametrize("name", ["dcase2025_baseline/clotho", "metric_learning/clotho", "salsa2024/mobilenet"])
def test_activations_are_those_of_the_plan(root: Path, name: str) -> None:
    recipe = load_recipe(root / f"recipes/{name}.yaml").recipe
    audio, stage = recipe.model.audio, next(iter(recipe.stages.values()))
    torch.manual_seed(0)
    encoder = audio.build_without_files(recipe.model.text.dim).train()
    samples = SECONDS * next(iter(audio.experts.values())).rate
    waves = torch.randint(-3000, 3000, (CLIPS, samples, 1), dtype=torch.int16)
    batch = {expert: Series(waves, torch.full((CLIPS,), samples)) for expert in audio.experts}
    half = stage.precision != "float32"
    found = saved_bytes(encoder, batch, half)
    planned = CLIPS * audio.cost(encoder, SECONDS, SECONDS, half).kept
    parts = Estimates(recipe, find_data(recipe)).memory_parts(stage, stage.precision)
    print(f"\n{name}: saved {found / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB")
    assert planned == pytest.approx(found, rel=0.15)
    assert sum(parts.values()) > parts["activations"] > 0
