"""Checkpoints of the 2025 baseline and of SALSA, as their code would write them, become models that rank and teach."""

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import transformers
import yaml
from hub_models import tokenizer
from outcomes import refused
from threads import one_thread  # noqa: F401  a fixture

from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.audio import passt
from system.bridges import convert
from system.recipe.load import load_recipe
from system.runs.open import build_model, open_trained

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """PaSST of one block."""
    monkeypatch.setitem(passt.VARIANTS, "s16", passt.VARIANTS["s16"]._replace(blocks=1))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    sizes = {"development": 2, "validation": 2, "evaluation": 10}
    return tiny.make_world(tmp_path_factory.mktemp("few") / "tones", sizes)


@pytest.fixture
def recipe(root, world, tmp_path):
    """The shipped one, with a small RoBERTa of random weights and the clips of a tiny world."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.RobertaConfig(**sizes, vocab_size=300, max_position_embeddings=60, type_vocab_size=1)
    transformers.RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "roberta")
    tokenizer().save_pretrained(tmp_path / "roberta")
    content = yaml.safe_load((root / "recipes/dcase2025_baseline/clotho.yaml").read_text())
    content["banks"] = str(tmp_path / "banks")
    content["model"]["text"] |= {"model": str(tmp_path / "roberta"), "dim": 12}
    content["model"]["audio"]["network"] |= {"segment_seconds": 1, "patchout_time": 1}
    for source in content["data"].values():
        source |= {"manifest": str(world), "make": None, "expected": None}
    return tiny.write_recipe(tmp_path / "recipe.yaml", content)


NAMES = {
    "baseline": {
        "audio.network.": "audio_embedding_model._orig_mod.model.model.",
        "audio.head.0.": "audio_projection.",
        "text.trained.0.model.": "text_embedding_model._orig_mod.",
        "text.head.": "text_projection.",
    },
    "salsa": {
        "audio.network.": "audio_embedding_model.model.model.",
        "audio.head.0.": "project_audio.0.",
        "text.trained.0.model.": "sentence_embedding_model.",
        "text.head.": "project_sentence.0.",
    },
}


def checkpoint(recipe: Path, path: Path, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Write random weights by published names, with the other content of such files; return them by our names."""
    torch.manual_seed(11)
    model = build_model(load_recipe(recipe).recipe, [])
    ours = {
        name: torch.randn_like(value) * 0.1 if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    theirs = {}
    for name, value in ours.items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        theirs[names[prefix] + name.removeprefix(prefix)] = value
    audio = names["audio.network."]
    theirs |= {f"{audio}head.1.weight": torch.zeros(527, 768), "tau": torch.tensor(0.05), "audio_token": torch.zeros(3)}
    content = {"state_dict": theirs, "epoch": 19, "hyper_parameters": argparse.Namespace(batch_size=64, tau=0.05)}
    torch.save(content, path)
    return ours


@pytest.mark.parametrize("names", NAMES)
def test_converted_checkpoint_ranks_and_exports(recipe, world, tmp_path, names, capsys):
    ours = checkpoint(recipe, tmp_path / "theirs.ckpt", NAMES[names])
    out = tmp_path / "model"
    assert main(["convert", str(tmp_path / "theirs.ckpt"), "--recipe", str(recipe), "--out", str(out)]) == 0
    card = (out / "README.md").read_text()
    assert "\n- weights of theirs.ckpt; its training data is unknown\n" in card
    assert "None" not in card
    trained = open_trained(out)
    assert all(torch.equal(value, ours[name]) for name, value in trained.model.state_dict().items())
    assert trained.facts.checkpoint == "theirs.ckpt"
    argv = ["rank", str(out), str(world), "--split", "evaluation", "--out", str(tmp_path / "s.npy")]
    assert main([*argv, "--set", f"banks={tmp_path / 'banks'}"]) == 0
    scores = read_scores(tmp_path / "s.npy").values
    assert scores.shape == (50, 10)
    assert float(np.ptp(scores)) > 0.01


def test_teacher_with_unknown_training_clips_is_warned_about(recipe, world, tmp_path, caplog):
    checkpoint(recipe, tmp_path / "theirs.ckpt", NAMES["baseline"])
    assert main(["convert", str(tmp_path / "theirs.ckpt"), "--recipe", str(recipe), "--out", str(tmp_path / "m")]) == 0
    content = tiny.recipe(world, tmp_path)
    teacher: dict[str, Any] = {"kind": "model", "folder": str(tmp_path / "m")}
    content |= {"stages": {}, "teachers": {"theirs": teacher}}
    content["rank"] = {"evaluation": {"kind": "teachers", "data": "evaluation", "of": ["theirs"], "edition": 2022}}
    content["rank"]["evaluation"]["csv"] = False
    path = tiny.write_recipe(tmp_path / "t.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    assert "unknown" in caplog.text
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    assert read_scores(tmp_path / "run/scores/evaluation.npy").values.shape == (5 * len(clips), len(clips))


def test_invalid_published_checkpoints_are_refused(root, recipe, tmp_path, capsys):
    path, out = tmp_path / "theirs.ckpt", tmp_path / "model"
    assert "recipe" in refused(capsys, "convert", path, "--out", out)
    argv = ("convert", path, "--recipe", recipe, "--out", out)
    said = refused(capsys, *argv)
    assert "dcase2025_baseline" in said
    for page in ("dcase2025_baseline", "salsa2024"):
        written = (root / "recipes" / page / "README.md").read_text()
        address, _, parts = convert.ADDRESSES[page].partition(", in five parts: ")
        assert address in said
        assert address in written
        assert parts in written
        assert "\nlbar convert " in written
    path.write_bytes(b"nothing")
    assert "damaged" in refused(capsys, *argv)
    torch.save({"state_dict": {"tau": torch.zeros(1)}}, path)
    names = sorted(build_model(load_recipe(recipe).recipe, []).state_dict())
    said = f"no weights for {len(names)} tensors, such as {names[0]}"
    assert said in refused(capsys, *argv)
    checkpoint(recipe, path, NAMES["salsa"])
    content = torch.load(path, weights_only=False)
    for name in ("project_sentence.0.weight", "project_audio.0.weight"):
        del content["state_dict"][name]
    torch.save(content, path)
    assert "audio.head.0.weight" in refused(capsys, *argv)
    checkpoint(recipe, path, NAMES["salsa"])
    assert "another" in refused(capsys, *argv, "--set", "model.text.dim=13")
    assert not out.exists()


def test_lightning_settings_are_read_without_the_package(tmp_path):
    package, inner = "pytorch_lightning", "pytorch_lightning.utilities.parsing"
    attribute = type("AttributeDict", (dict,), {"__module__": inner, "__qualname__": "AttributeDict"})
    modules = {name: types.ModuleType(name) for name in (package, "pytorch_lightning.utilities", inner)}
    modules[inner].AttributeDict = attribute  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        torch.save({"state_dict": {"a": torch.ones(2)}, "hyper_parameters": attribute(lr=1)}, tmp_path / "x.ckpt")
    finally:
        for name in modules:
            del sys.modules[name]
    found = convert.read_lightning(tmp_path / "x.ckpt")
    assert found["a"].tolist() == [1, 1]
