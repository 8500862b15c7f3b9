"""A fine-tuning step of "Take it easy" with random weights of the real shapes: time and peak memory, and `check`'s
estimates. On a GPU the paper's batch of 512 in 16 bits, on a CPU a batch of 16. `python -m pytest -m benchmark -s`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from timing import seconds_a_step

from system.compute.device import device_of
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.models.text import SentenceTransformers
from system.networks.hub_configs import PUBLISHED
from system.plan import estimates
from system.recipe import schema
from system.recipe.load import load_recipe

pytestmark = pytest.mark.benchmark

WORDS = 13  # a caption of Clotho has 15 tokens with the two special ones


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder of all-MiniLM-L6-v2's shape."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("minilm")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(30_517))]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = BertConfig(**PUBLISHED["all-MiniLM-L6-v2"])
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    whole = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(config.hidden_size)], device="cpu")
    whole.save(str(folder / "whole"))
    return folder / "whole"


def made_batch(recipe: schema.Recipe, clips: int) -> Batch:
    draw = np.random.default_rng(0)
    audio = {}
    for name, expert in recipe.model.audio.experts.items():
        lengths = torch.from_numpy((draw.uniform(15, 30, clips) * expert.frames_per_second).astype(np.int64))
        audio[name] = Series(torch.randn(clips, int(lengths.max()), expert.dim).half(), lengths)
    texts = [" ".join(f"w{n}" for n in draw.integers(0, 30_000, WORDS)) for _ in range(5 * clips)]
    relax = torch.from_numpy(draw.uniform(0.4, 1, (clips, clips)).astype(np.float32))
    return Batch([str(n) for n in range(clips)], audio, texts, torch.arange(clips).repeat_interleave(5), relax)


@pytest.mark.parametrize("at_once", [None, 64])
def test_time_of_a_fine_tuning_step_is_compared_with_the_estimate(
    root: Path, untrained: Path, tmp_path: Path, at_once: int | None
) -> None:
    device = device_of()
    on_gpu = device.type == "cuda"
    clips = 512 if on_gpu else 16
    changes = [f"model.text.model={untrained}", f"banks={tmp_path}"]
    recipe = load_recipe(root / "recipes/take_it_easy/take_it_easy.yaml", changes).recipe
    stage = recipe.stages["finetune"].model_copy(update={"batch_size": clips, "grad_cache_chunk": at_once})
    precision = stage.precision if on_gpu else "float32"
    assert isinstance(recipe.model.text, SentenceTransformers)
    model = RetrievalModel(recipe.model, recipe.model.text.build([], tmp_path)).to(device).train()
    batch = made_batch(recipe, clips).to(device)
    seconds = seconds_a_step(model, batch, stage, precision)
    found = {name: estimates.Content([], recipe.data[name].expected) for name in recipe.data}
    reckoned = estimates.Estimates(recipe, found)
    guess = reckoned.memory(stage, precision) / 2**30
    peak = f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB (estimate {guess:.1f})" if on_gpu else ""
    name = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU cores"
    tflop = reckoned.step_flops(stage) / 1e12
    print(
        f"\n{name}, {precision}, {clips} clips, 5 captions each, grad_cache_chunk {at_once}: "
        f"{1e3 * seconds:.0f} ms a step, {tflop:.2f} TFLOP as estimated, {peak}"
    )
