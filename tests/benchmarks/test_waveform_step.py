"""A step of the DCASE 2025 baseline, PaSST s16 and RoBERTa-large from waveforms, with random weights of the real
shapes: time and peak memory, and `check`'s estimates. On a GPU its batch of 64 in 16 bits, on a CPU a batch of 2.
`python -m pytest -m benchmark -s`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from system.compute.device import device_of

pytestmark = pytest.mark.benchmark

STEP = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch
from system.compute.device import device_of
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.plan import estimates
from system.recipe.load import load_recipe
from timing import seconds_a_step

recipe_file, text, banks, clips, compiled = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1"
device = device_of()
on_gpu = device.type == "cuda"
changes = [f"model.text.model={text}", f"banks={banks}", "model.audio.weights="]
recipe = load_recipe(recipe_file, changes).recipe
stage = recipe.stages["train"].model_copy(update={"batch_size": clips})
precision = stage.precision if on_gpu else "float32"

def peak():
    return torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.manual_seed(0)
before = peak()
model = RetrievalModel(recipe.model, recipe.model.text.build([], Path(banks))).to(device).train()
draw = np.random.default_rng(0)
samples = 30 * 32_000
waves = torch.from_numpy(draw.integers(-3000, 3000, (clips, samples, 1)).astype(np.int16))
series = Series(waves, torch.full((clips,), samples))
texts = [" ".join(draw.choice(["a", "dog", "barks", "rain", "falls", "deep", "tone"], 13)) for _ in range(clips)]
batch = Batch([str(n) for n in range(clips)], {"waveform": series}, texts, torch.arange(clips)).to(device)
if compiled:
    model.audio.network.compile()
seconds = seconds_a_step(model, batch, stage, precision)
found = {name: estimates.Content([], source.expected) for name, source in recipe.data.items()}
reckoned = estimates.Estimates(recipe, found)
print(json.dumps({
    "device": torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU cores",
    "precision": precision,
    "milliseconds": 1e3 * seconds,
    "tflop": reckoned.step_flops(stage) / 1e12,
    "peak": (peak() - before) / 2**30,
    "estimate": reckoned.memory(stage, precision) / 2**30,
    "core_flops": estimates.CORE_FLOPS,
}))
"""


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of RoBERTa-large's shape with random weights and a tokenizer of few tokens."""
    import transformers
    from hub_models import tokenizer

    folder = tmp_path_factory.mktemp("roberta")
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = transformers.RobertaConfig(**sizes, vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1)
    torch.manual_seed(0)
    transformers.RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("compiled", [False, True])
def test_time_of_a_training_step_of_the_2025_baseline_is_measured(
    root: Path, roberta: Path, tmp_path: Path, compiled: bool
) -> None:
    on_gpu = device_of().type == "cuda"
    if compiled and not on_gpu:
        pytest.skip("compiled on a GPU alone")
    recipe, clips = root / "recipes/dcase2025_baseline/clotho.yaml", 64 if on_gpu else 2
    argv = [sys.executable, "-c", STEP, recipe, roberta, tmp_path, clips, int(compiled)]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parent}"}
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    cores = os.cpu_count() or 1
    guess = "" if on_gpu else f" (estimate {1e15 * found['tflop'] / (cores * found['core_flops']):.0f})"
    print(
        f"\n{found['device']}, {found['precision']}, {clips} clips of 30 s{', compiled' if compiled else ''}: "
        f"{found['milliseconds']:.0f} ms a step{guess}, {found['tflop']:.2f} TFLOP as estimated, "
        f"peak {found['peak']:.2f} GiB (estimate {found['estimate']:.2f})"
    )
