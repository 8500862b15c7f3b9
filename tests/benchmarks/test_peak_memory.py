"""Peak memory of a step's gradients on a CPU in float32, compared with `check`'s estimate. Random weights of the real
shapes: PaSST and RoBERTa-large, ResNet-38 and BERT, EfficientAT mn40 and RoBERTa-large. `python -m pytest -m benchmark
-s`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from system.networks.hub_configs import PUBLISHED

pytestmark = pytest.mark.benchmark

LORA = {"networks": ["audio", "text"], "rank": 8, "alpha": 16}

STEP = """
import json, re, sys
from pathlib import Path
import numpy as np, torch
from torch.amp.grad_scaler import GradScaler
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.plan.estimates import Estimates, Load
from system.recipe.load import load_recipe
from system.training.average import WeightAverage
from system.training.lora import Adapters
from system.training.step import add_gradients

recipe_file, text, banks, clips, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
recipe = load_recipe(recipe_file, [f"model.text.model={text}", f"banks={banks}", "model.audio.weights="]).recipe
changes = json.loads(sys.argv[6])
stage = next(iter(recipe.stages.values()))
stage = type(stage).model_validate(stage.model_dump() | changes | {"batch_size": clips})
def kibibytes(name):  # of this process alone: ru_maxrss also counts the process that started it
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = kibibytes("VmRSS")
torch.manual_seed(0)
model = RetrievalModel(recipe.model, recipe.model.text.build([], Path(banks))).train()
samples = round(seconds * 32_000)
waves = torch.from_numpy(np.random.default_rng(0).integers(-3000, 3000, (clips, samples, 1)).astype(np.int16))
audio = {"waveform": Series(waves, torch.full((clips,), samples))}
texts = ["a dog barks and deep rain falls on a dog"] * clips
batch = Batch([str(n) for n in range(clips)], audio, texts, torch.arange(clips))
adapters = Adapters(model, stage.lora, 0) if stage.lora else None
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
average = WeightAverage(model, stage.average.decay) if stage.average else None
add_gradients(model, batch, stage, "float32", GradScaler("cpu", enabled=False))
if changes:
    optimizer.step()
peak = 1024 * (kibibytes("VmHWM") - before)
estimates = Estimates(recipe, {})
moments = 0 if changes else 8 * sum(estimates.parameters_by_part.values())  # without changes, no AdamW
estimates.load = lambda stage: Load(clips, seconds, seconds, clips)
stage = stage.model_copy(update={"grad_cache_chunk": None})
print(json.dumps([peak, estimates.memory(stage, "float32") - moments]))
"""


@pytest.mark.parametrize(
    ("recipe", "text", "clips", "seconds", "changes"),
    [
        ("dcase2025_baseline/clotho.yaml", "roberta-large", 8, 30, {}),
        ("metric_learning/clotho.yaml", "bert-base-uncased", 16, 10, {}),
        ("salsa2024/mobilenet.yaml", "roberta-large", 12, 10, {}),
        ("dcase2025_baseline/clotho.yaml", "roberta-large", 2, 10, {"lora": LORA}),
        ("dcase2025_baseline/clotho.yaml", "roberta-large", 2, 10, {"average": {"decay": 0.999}}),
        ("dcase2025_baseline/clotho.yaml", "roberta-large", 2, 10, {"lora": LORA, "average": {"decay": 0.999}}),
    ],
)
def test_peak_memory_of_a_training_step_is_compared_with_the_estimate(
    root: Path, tmp_path: Path, recipe: str, text: str, clips: int, seconds: int, changes: dict[str, Any]
) -> None:
    import transformers
    from hub_models import tokenizer

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**PUBLISHED[text])
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "text")
    tokenizer().save_pretrained(tmp_path / "text")
    argv = [
        sys.executable,
        "-c",
        STEP,
        root / "recipes" / recipe,
        tmp_path / "text",
        tmp_path,
        clips,
        seconds,
        json.dumps(changes),
    ]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    peak, estimate = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{recipe} {changes}, {clips} clips of {seconds} s: ", end="")
    print(f"peak {peak / 2**30:.2f} GiB, estimate {estimate / 2**30:.2f}")
    assert 0.75 < estimate / peak < 1.25
