"""Training through the audio encoders: steps with real shapes, cached gradients, real recordings learned by heart."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from one_graph import in_one_graph
from threads import one_thread  # noqa: F401  a fixture

from data_tools.manifest import Clip
from submission.metrics.retrieval import average_precision
from submission.ordering import relevant_ranks
from system.batches.items import Item
from system.batches.loader import collate
from system.features.extract import Features, build_features
from system.losses import terms as losses
from system.models.audio import panns_encoder as panns
from system.models.batch import Batch, Series
from system.models.retrieval import RetrievalModel
from system.networks import panns as networks
from system.ranking.embedding import embed_clips, embed_texts
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.open import build_model
from system.training.step import add_gradients

STRIPES = {"time_stripes": 2, "time_width": 64, "band_stripes": 2, "band_width": 8}
PANNS = tiny.panns(spec_augment=STRIPES, hidden=64)
NT_XENT = [{"kind": "nt_xent", "weight": 1, "temperature": 0.07}]


def made(folder: Path, audio: dict[str, Any], text: dict[str, Any] | None = None, **stage: Any) -> schema.Recipe:
    settings = tiny.stage(losses=NT_XENT, unit="pair", captions_per_clip=None) | stage
    content = tiny.recipe(folder / "m.jsonl", folder, only=settings)
    content["model"]["audio"] = audio
    content["model"]["text"] = text or content["model"]["text"] | {"dropout": 0.0}
    return load_recipe(tiny.write_recipe(folder / "r.yaml", content)).recipe


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", enabled=False)


def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-38 of few channels and blocks."""
    monkeypatch.setattr(networks, "RESNET38_STEM", 4)
    monkeypatch.setattr(networks, "RESNET38_LAYERS", ((4, 1), (8, 1), (16, 1), (32, 1)))
    monkeypatch.setattr(networks, "DIM", 64)
    monkeypatch.setattr(panns, "DIM", 64)


def recordings(shared: Path) -> list[Clip]:
    """16 real ones, of all ten classes, each with a caption of its own."""
    with (shared / "data/esc10/esc10.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::25]
    return [
        Clip(
            id=row["file_name"],
            file_name=row["file_name"],
            path=str(shared / "data/esc10/audio" / row["file_name"]),
            seconds=5.0,
            captions=[f"{row['category'].replace('_', ' ')} by {row['author']} {n}"],
            source="esc10",
            split="development",
            freesound_id=None,
            licence=None,
            uploader=None,
        )
        for n, row in enumerate(rows)
    ]


def mean_average_precision(model: RetrievalModel, clips: list[Clip], features: Features) -> float:
    captions = embed_texts(model, [clip.captions[0] for clip in clips])
    with torch.inference_mode():
        scores = model.score(embed_clips(model, clips, features), captions).T.numpy()
    ranks = relevant_ranks(scores, [[n] for n in range(len(clips))], [clip.id for clip in clips])
    return float(average_precision(ranks, np.ones(len(clips), dtype=np.int64)).mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_narrow_panns_overfits_real_recordings(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps from files to ranks: 16-bit waves in a bank, batches, log-mel, training, evaluation of whole clips."""
    narrowed(monkeypatch)
    recipe = made(tmp_path, PANNS | {"dropout": 0.0, "spec_augment": None, "max_seconds": 2})
    clips = recordings(shared)
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    torch.manual_seed(0)
    model = build_model(recipe, sorted({word for clip in clips for word in clip.captions[0].lower().split()}))
    before = mean_average_precision(model, clips, features)
    batch = collate([Item(clip, tuple(clip.captions)) for clip in clips], features)
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / 100)
        model.train()
        optimizer.zero_grad()
        seen.append(float(add_gradients(model, batch, recipe.stages["only"], "float32", scaler())["loss"]))
        optimizer.step()
    assert np.mean(seen[-10:]) < 0.15 * seen[0]
    assert before < 0.6
    assert mean_average_precision(model, clips, features) == 1.0


def noise_batch(clips: int, seconds: float, captions: list[str]) -> Batch:
    draw = np.random.default_rng(1)
    lengths = torch.from_numpy((draw.uniform(0.5, 1, clips) * seconds * 32_000).astype(np.int64))
    values = torch.from_numpy(draw.integers(-9000, 9000, (clips, int(lengths.max()), 1)).astype(np.int16))
    values[torch.arange(values.shape[1]) >= lengths[:, None]] = 0
    waves = Series(values, lengths)
    return Batch([str(n) for n in range(clips)], {"waveform": waves}, captions, torch.arange(clips))


@pytest.mark.usefixtures("one_thread")
def test_gradients_with_grad_cache_use_the_same_crops_masks_and_dropout_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against one graph over the same parts in the same order."""
    narrowed(monkeypatch)
    recipe = made(tmp_path, PANNS | {"max_seconds": 0.7})
    batch = noise_batch(4, 1.2, ["a", "b a", "a b c", "c"])
    found = []
    for is_cached in (True, False):
        torch.manual_seed(5)
        model = build_model(recipe, ["a", "b", "c"]).train()
        torch.manual_seed(6)
        stage = recipe.stages["only"].model_copy(update={"grad_cache_chunk": 2})
        if is_cached:
            add_gradients(model, batch, stage, "float32", scaler())
        else:
            losses.total_loss(in_one_graph(model, batch, 2), stage.losses).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert len(found[0]) == len(found[1])
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[1].abs().max()


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bert-base-uncased's shape, untrained."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(30_517))]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertModel(BertConfig()).save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_full_size_panns_bert_training_step_runs(tmp_path: Path, bert: Path) -> None:
    text = {
        "kind": "published",
        "pooling": "first",
        "model": str(bert),
        "trainable": True,
        "removed": ',.!?;:"',
        "dropout": 0.2,
        "hidden": 2048,
        "dim": 1024,
    }
    recipe = made(tmp_path, PANNS | {"hidden": 2048}, text, batch_size=2)
    torch.manual_seed(0)
    model = build_model(recipe, []).train()
    assert model.parameters_by_part() == {"network": 68_507_072, "mlp": 6_294_528, "text": 112_564_736}
    captions = [" ".join(f"w{n}" for n in np.random.default_rng(row).integers(0, 30_000, 13)) for row in range(2)]
    batch = noise_batch(2, 3, captions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seen = []
    for _ in range(2):
        torch.manual_seed(1)
        optimizer.zero_grad()
        seen.append(float(add_gradients(model, batch, recipe.stages["only"], "float32", scaler())["loss"]))
        grads = {name: p.grad for name, p in model.named_parameters()}
        assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
        optimizer.step()
    assert 0 < seen[1] < seen[0]
