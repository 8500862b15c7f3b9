"""Activations of real encoders with random weights, counted by the tensors that they save, against the plan."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import RobertaConfig, RobertaModel

from system.models.batch import Series
from system.models.costs import TOKENS
from system.plan.data import find_data
from system.plan.estimates import Estimates
from system.recipe.load import load_recipe

pytestmark = pytest.mark.benchmark

CLIPS, SECONDS = 2, 20


def saved_bytes(encoder: torch.nn.Module, given: Any, half: bool) -> float:
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
        encoder(given)
    return float(sum(storage.nbytes() for storage in kept.values()))


@pytest.mark.parametrize(
    "name",
    [
        "take_it_easy/take_it_easy",
        "metric_learning/clotho",
        "salsa2024/mobilenet",
        "salsa2024/atst",
        "dcase2025_baseline/clotho",
        "aistat2025/beats",
        "aistat2025/eat",
    ],
)
def test_memory_estimate_of_audio_encoder_activations_is_within_15_percent_of_measured(root: Path, name: str) -> None:
    recipe = load_recipe(root / f"recipes/{name}.yaml").recipe
    audio, stage = recipe.model.audio, next(iter(recipe.stages.values()))
    torch.manual_seed(0)
    encoder = audio.build_without_files(recipe.model.text.dim).train()
    batch = {}
    for name_of_expert, expert in audio.experts.items():
        count = int(SECONDS * expert.frames_per_second)
        frames = torch.randint(-3000, 3000, (CLIPS, count, expert.dim), dtype=torch.int16)
        batch[name_of_expert] = Series(frames if expert.dim == 1 else frames / 3000, torch.full((CLIPS,), count))
    half = stage.precision != "float32"
    found = saved_bytes(encoder, batch, half)
    planned = CLIPS * audio.cost(encoder, SECONDS, SECONDS, half).kept
    parts = Estimates(recipe, find_data(recipe)).memory_parts(stage, stage.precision)
    print(f"\n{name}: saved {found / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB")
    assert planned == pytest.approx(found, rel=0.15)
    assert sum(parts.values()) > parts["activations"] > 0


def test_memory_estimate_of_text_encoder_activations_is_within_15_percent_of_measured(root: Path) -> None:
    """RoBERTa-large, with its published sizes."""
    recipe = load_recipe(root / "recipes/dcase2025_baseline/clotho.yaml").recipe
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, **sizes)
    encoder = RobertaModel(config, add_pooling_layer=False).train()
    found = saved_bytes(encoder, torch.randint(3, 50_265, (CLIPS, TOKENS)), half=True)
    planned = CLIPS * Estimates(recipe, find_data(recipe)).text_cost(half=True).kept
    print(f"\nRoBERTa-large: saved {found / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB")
    assert planned == pytest.approx(found, rel=0.15)
