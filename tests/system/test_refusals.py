"""What the system refuses: a command or an edit, the exit status, one word of the message, and nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_moments
import torch
from desk import contents, desk, original, refusal  # noqa: F401  fixtures
from outcomes import rewrite, stopped
from safetensors.torch import load_file, save_file

from data_tools.errors import KitError
from system.__main__ import main
from system.recipe.load import load_recipe

RANK = "rank run audio blind.csv --out x.npy"
COMMANDS = [
    # a path that names nothing, a folder for a file, a file for a folder, another file than is meant
    ("check nowhere.yaml", "nowhere.yaml"),
    ("check audio", "folder"),
    ("run run", "folder"),
    ("runs recipe.yaml", "recipe.yaml"),
    ("run recipe.yaml --out a --name b", "--name"),
    ("run manifest.jsonl", "recipe"),
    ("run captions.csv --until features", "recipe"),
    ("run no_seeds.study.yaml", "seeds"),
    ("rank recipe.yaml audio blind.csv --out x.npy", "trained"),
    ("export nowhere --out x", "nowhere"),
    ("export run --out notes", "notes"),
    ("export run --out captions.csv", "captions.csv"),
    ("rank run blind.csv audio --out x.npy", "manifest"),
    ("rank run audio nowhere.csv --out x.npy", "nowhere.csv"),
    ("rank run audio recipe.yaml --out x.npy", "caption"),
    ("rank run audio --out x.npy", "queries"),
    ("rank run manifest.jsonl --split train --out x.npy", "train"),
    ("rank run audio blind.csv --out x.csv", "npy"),
    ("rank run:two audio blind.csv --out x.npy", "two"),
    (f"{RANK} --set model.audio.heads=1", "fixed"),
    (f"{RANK} --set model.score.kind=dot_product", "fixed"),
    (f"{RANK} --set model.audio.experts.logmel.bands=31", "fixed"),
    ("rank empty audio blind.csv --out x.npy", "empty"),
    ("rank run empty blind.csv --out x.npy", "empty"),
    (f"{RANK} --set rank.evaluation.checkpoint=m7", "m7"),
    (f"{RANK} --top 5", "csv"),
    ("locate run manifest.jsonl nowhere.jsonl --out x.jsonl", "nowhere.jsonl"),
    ("locate run manifest.jsonl captions.csv --out x.npy", "jsonl"),
    ("rank run audio blind.csv --out x.csv --top 0", "--top"),
    ("rank run audio blind.csv --out x.csv --top 25", "24"),
    ("rank run audio blind.csv --out blind.csv --top 5", "overwrite"),
    ("search run audio '  '", "empty"),
    ("serve run audio --port 0 --split test", "test"),
    ("serve run empty --port 0", "empty"),
    # recipes and studies
    ("check no_seed.yaml", "seed"),
    ("check indented.yaml", "YAML"),
    ("check csv_as_manifest.yaml", "manifest"),
    ("run text_seed.study.yaml", ":4:"),
    ("run recipe_number.study.yaml", ":2:"),
    ("run wrong_cell.study.yaml", "sells"),
    ("run wrong_key.study.yaml", "batchsize"),
    ("run wrong_recipe.study.yaml", "nowhere.yaml"),
    ("check two.study.yaml", "lbar run"),
    ("run indented.study.yaml", "YAML"),
    ("run recipe.yaml --set stages.only.batch_size", "key=value"),
    ("run recipe.yaml --set stages.no.batch_size=8", "stages.no"),
    ("serach run audio tone", "search"),
    # before and while a run begins
    ("run no_manifest.yaml", "nowhere.jsonl"),
    ("run no_split.yaml --out deep/er/run", "train"),
    ("run no_weights.yaml", "no.pth"),
    ("run hub.yaml", "nobody/nothing"),
    ("run recipe.yaml --out captions.csv", "captions.csv"),
    ("run recipe.yaml --out notes", "notes"),
    ("run recipe.yaml --runs captions.csv", "captions.csv"),
]


@pytest.mark.parametrize(("line", "word"), COMMANDS)
@pytest.mark.usefixtures("desk")
def test_command_is_refused_in_one_line_and_nothing_is_written(line, word, capsys):
    assert word in refusal("system", line, capsys)


@pytest.mark.usefixtures("desk")
def test_check_fails_for_files_that_are_missing_and_too_few_items(capsys):
    missing = {"no_manifest": "nowhere.jsonl", "no_split": "train", "no_weights": "no.pth", "large_batch": "batch_size"}
    for name, word in missing.items():
        assert main(["check", f"{name}.yaml"]) == 1
        assert word in capsys.readouterr().out


def test_check_accepts_a_missing_manifest_that_the_recipe_makes(desk):  # noqa: F811
    text = (desk / "no_manifest.yaml").read_text()
    source = "{manifest: nowhere.jsonl, make: lbar data scenes x --seed 1, split: train}"
    text = text.replace("\n    manifest: nowhere.jsonl\n    split: development", f" {source}")
    (desk.parent / "made.yaml").write_text(text)
    assert main(["check", "../made.yaml"]) == 0


# --- recipes: settings that do not fit, files that are none -----------------------------------------------------------

EPOCHS = "{kind: epochs, shape: cosine, start_lr: 0, floor_lr: 0, warmup_epochs: 1, until_epoch: 1}"
CLIPS = [
    ("stages.only.batch_size=1", "batch_size"),
    ("stages.only.batchsize=4", "batch_size"),
    ("stages.only.epochs=yes", "integer"),
    ("stages.onyl.batch_size=4", "only"),
    ("batch_size=4", "stages"),
    ("stages.only.batch_size.x=4", "batch_size"),
    ("stages.only.losses.7.margin=1", "losses"),
    ("stages={scores: {}}", "name"),
    ("stages.only.optimiser.lr=1", "optimizer"),
    ("rank.evaluation.x.y=1", "rank.evaluation"),
    ("seed", "key=value"),
    ("rank={", "YAML"),
    (f"name={'a' * 300}", "100"),
    ("stages.only.unit=pair", "captions_per_clip"),
    ("stages.only.grad_cache_chunk=8", "batch_size"),
    ("stages.only.start_from={kind: stage, stage: nowhere, checkpoint: last}", "nowhere"),
    ("stages.only.train.data=[evaluation]", "test"),
    ("stages.only.train.data=[train, train]", "twice"),
    ("stages.only.monitor.data=[evaluation]", "acknowledged"),
    ("stages.only.losses=[{kind: ranking, weight: 1, margin: 0.2, relax: cider}]", "relevance"),
    ("stages.only.losses=[{kind: two_state, weight: 1, per_frame: false}]", "moment"),
    ("stages.only.losses=[{kind: distill, weight: 1, teachers: [nobody], temperature: 0.1}]", "nobody"),
    ("stages.only.losses=[{kind: nt_xent, weight: 1, temperature: learned}]", "temperature"),
    ("model.audio.experts.logmel.kind=yamnet", "bands"),
    ("model.text.heads=5", "multiple"),
    ("model.score.kind=cosin", "cosine"),
    ("data.train.split=[evaluation]", "split"),
    ("data.train.split=dev", "split"),
    ("stages.only.monitor.data=[validation, validation]", "twice"),
    ("rank.evaluation={kind: teachers, data: evaluation, of: [nobody], edition: 2022, csv: false}", "nobody"),
    ("rank.evaluation.checkpoint=R@5", "R@5"),
    ("rank.evaluation.stage=", "both"),
    (f"stages.only.schedule={EPOCHS}", "until_epoch"),
    ("rank.mean={kind: mean, of: [evaluation], edition: 2022, csv: true}", "2"),
    ("rank.mean={kind: mean, of: [evaluation, other], edition: 2022, csv: true}", "other"),
]


def segments(max_seconds: float = 300, **network: Any) -> dict[str, Any]:
    settings = {"weights": None, "segment_seconds": 1, "output": "clip"} | network
    return {"kind": "segments", "network": settings, "trainable": True, "max_seconds": max_seconds}


PASST: dict[str, Any] = {"kind": "passt", "network": "s16", "segment_seconds": 10}
SLANEY = {"kind": "logmel_slaney", "sample_rate": 44_100, "bands": 63, "window_seconds": 0.04, "hop_seconds": 0.02}
SLANEY |= {"lowest": 0.0, "highest": 22_050.0}
ENCODERS = [
    (segments(**PASST | {"segment_seconds": 10.1}), "segment_seconds"),
    (segments(**PASST, patchout_time=62), "patchout"),
    (segments(**PASST, patchout_bands=8), "patchout"),
    (segments(kind="efficientat", network="mn04", segment_seconds=0.2), "segment_seconds"),
    (segments(kind="efficientat", network="mn04", max_seconds=0.5), "max_seconds"),
    (segments(kind="atst_frame", segment_seconds=10.1), "segment_seconds"),
    (segments(kind="beats", segment_seconds=0.17), "segment_seconds"),
    (segments(kind="eat", segment_seconds=123), "segment_seconds"),
    (
        {"kind": "crnn", "experts": {"logmel": SLANEY}, "hidden": 16, "dropout": 0.1, "embedding": "mean"},
        "64 mel bands",
    ),
]
LOSSES = [
    ("{kind: ranking, weight: 1, margin: 2.1, relax: none}", "margin"),
    ("{kind: ranking, weight: 0, margin: 0.2, relax: none}", "weight"),
    ("{kind: nt_xent, weight: 1, temperature: 1.1}", "temperature"),
    ("{kind: weighted_triplet, weight: 1, margin: 2.1, positive: [1], negative: [1], clamp: each}", "margin"),
    ("{kind: nt_xent, weight: 1, temperature: learned, same_clip: masked}", "temperature"),
    ("{kind: sigmoid, weight: 1, scale: 0}", "scale"),
    ("{kind: hard_negative_nce, weight: 1, temperature: 0.1, beta: 11}", "beta"),
    ("{kind: hard_negative_nce, weight: 1, temperature: 0.1, beta: 1, alpha: 1.1}", "alpha"),
]
PARTS = [
    ("lr_by_part={sound: 1e-5}", "sound"),
    ("lr_by_part={audio: 1e-5, logmel: 1e-5}", "logmel"),
    ("lr_by_part={text: 2}", "1"),
    ("frozen_start={text: 0}", "1"),
    ("frozen_start={text: 3, audio: 3}", "frozen"),
]
MIXED = [
    ("{mix: {probability: 0.5, low_db: 1, high_db: 61, joined_by: and}}", "high_db"),
    ("{mix: {probability: 0.5, low_db: 1, high_db: 5, joined_by: null}}", "joined_by"),
    ("{mix: {probability: 0.5, low_db: 1, high_db: 5, joined_by: and}}", "logmel"),
]
SIZES = [
    ("model.text.dim", "1000000000"),
    ("model.audio.layers", "1001"),
    ("model.audio.max_positions", "1000000000"),
    ("stages.only.epochs", "1" + "0" * 400),
    ("stages.only.batch_size", "10000000"),
]
CLIPS += [(f"model.audio={json.dumps(settings)}", word) for settings, word in ENCODERS]
CLIPS += [(f"stages.only.losses=[{loss}]", word) for loss, word in LOSSES]
CLIPS += [(f"stages.only.optimizer.{change}", word) for change, word in PARTS]
CLIPS += [(f"stages.only.augment={change}", word) for change, word in MIXED]
CLIPS += [(f"{key}={value}", key) for key, value in SIZES]
FROZEN = {"kind": "published", "model": "x", "dim": 8, "head": "none", "trainable": False}
CLIPS += [("model.text=" + json.dumps(FROZEN | {"hidden": 20}), "head")]
STAGES = [
    ("stages.pretrain.start_from={kind: stage, stage: finetune, checkpoint: last}", "finetune"),
    ("stages.finetune.start_from={kind: stage, stage: finetune, checkpoint: last}", "pretrain"),
    ("stages.finetune.start_from.checkpoint=R@1", "monitor"),
    ("model.text=" + json.dumps(FROZEN), "trained"),
]
RELAXED = [
    ("relevance=null", "relevance"),
    ("relevance.corpus=[nowhere]", "nowhere"),
    ("relevance.corpus=[evaluation]", "test"),
    ("relevance.relax.1.percentile=60", "percentile"),
    ("relevance.relax.0.factor=1.5", "1"),
    ("relevance.relax.2.factor=0.9", "higher"),
]
MOMENTS = [
    ("stages.only.losses.0=" + json.dumps(tiny.stage()["losses"][0]), "moments"),
    ("stages.only.monitor.metrics=[mAP@10]", "mAP@10"),
    ("stages.only.monitor.windows=threshold", "overlap"),
    ("stages.only.unit=pair", "moment"),
    ("stages.only.captions_per_clip=2", "clip"),
    ("data.train.moments=null", "moments"),
    ("model.score={kind: cosine}", "embedding"),
    ("rank.overlap.edition=2025", "2026"),
    ("rank.overlap.fit=evaluation", "test"),
    ("rank.thresholds.decoding={heard: 0.9}", "heard"),
]


def relaxed(world: Path, folder: Path) -> dict[str, Any]:
    return tiny.recipe(world, folder, only=tiny.stage(losses=tiny.RELAXED)) | {"relevance": tiny.relevance()}


def two_stages(world: Path, folder: Path) -> dict[str, Any]:
    slow_text = {"kind": "adamw", "lr": 0.001, "weight_decay": 0.01, "lr_by_part": {"text": 1e-5}}
    return tiny.recipe(world, folder, **tiny.two_stages(optimizer=slow_text))


BASES: list[tuple[Callable[..., dict[str, Any]], list[tuple[str, str]]]] = [
    (tiny.recipe, CLIPS),
    (two_stages, STAGES),
    (relaxed, RELAXED),
    (tiny_moments.recipe, MOMENTS),
]


@pytest.mark.parametrize(("make", "change", "word"), [(make, *row) for make, rows in BASES for row in rows])
def test_setting_that_does_not_fit_is_refused_with_its_key(make, change, word, world, tmp_path, capsys):
    path = tiny.write_recipe(tmp_path / "r.yaml", make(world, tmp_path))
    assert main(["check", str(path), "--set", change]) == 1
    said = capsys.readouterr().err
    assert change.partition("=")[0].rpartition(".")[0] in said
    assert word in said
    assert [one.name for one in tmp_path.iterdir()] == ["r.yaml"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"- 1\n- 2\n", "mapping"),
        (b"a: [1", "YAML"),
        (b"\xff\xfe", "UTF-8"),
        (b"stages: {a: 3}\nmodel: []\ndata: 7\nrank: {x: 1}\n", "stages.a"),
    ],
)
def test_file_that_is_no_recipe_is_refused(tmp_path, content, word):
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(KitError, match=word):
        load_recipe(tmp_path / "bad.yaml")


# --- runs: files that were cut or changed -----------------------------------------------------------------------------


def cut(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:1000])


def cut_state(run: Path) -> None:
    for name in ("result.json", "finetune/done.json"):
        (run / name).unlink()
    cut("finetune/last.pt")(run)


def of_another_model(run: Path) -> None:
    path = run / "finetune/e0003.safetensors"
    state = load_file(path)
    state.pop(sorted(state)[0])
    save_file(state, path)


def of_another_expert(run: Path) -> None:
    inputs = json.loads((run / "provenance.json").read_text())["inputs"]
    inputs["experts.logmel"]["sha256"] = {"weights": "another"}
    rewrite(run / "provenance.json", inputs=inputs)


RUN, TRAIN = "run {recipe} --out {run}", "run {recipe} --out {run} --until training"
SCORE = "rank {run} {world} --split evaluation --out s.npy"
DAMAGED = [
    (
        "other settings",
        lambda run: None,
        f"{TRAIN} --set seed=9 --set stages.finetune.batch_size=9 --set rank.evaluation.edition=2025",
        "settings (seed, stages.finetune.batch_size)",
    ),
    ("a state that was cut", cut_state, TRAIN, "last.pt"),
    ("weights that were cut", cut("finetune/e0003.safetensors"), SCORE, "e0003"),
    ("weights of another model", of_another_model, SCORE, "e0003"),
    ("settings that were cut", cut("resolved.json"), RUN, "resolved.json"),
    ("a result that was cut", cut("result.json"), RUN, "result.json"),
    ("weights of another expert", of_another_expert, SCORE, "logmel"),
]


@pytest.mark.parametrize(("edit", "line", "word"), [row[1:] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_damaged_run_is_refused_and_left_as_it_is(
    edit, line, word, unbroken, recipe, world, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    edit(shutil.copytree(unbroken, tmp_path / "run"))
    before = contents(tmp_path)
    assert word in refusal("system", line.format(recipe=recipe, run="run", world=world), capsys)
    del before["run/log.txt"]
    assert before.items() <= contents(tmp_path).items()
    assert not Path("s.npy").exists()


# --- data: clips, captions and files that do not fit ------------------------------------------------------------------


@pytest.fixture
def few(tmp_path):
    """A manifest of few clips."""
    return tiny.make_world(tmp_path / "world", {"development": 9, "validation": 2, "evaluation": 10})


def in_manifest(old: str, new: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        text = (folder / "manifest.jsonl").read_text()
        assert old in text
        (folder / "manifest.jsonl").write_text(text.replace(old, new))

    return edit


def broken(name: str) -> Callable[[Path], object]:
    return lambda folder: [path.write_bytes(b"RIFF") for path in folder.glob(name)]


WORLDS = [
    ("two equal queries", in_manifest(" 2008", " 2000"), "same"),
    ("a name twice", in_manifest('file_name":"evaluation 003', 'file_name":"evaluation 002'), "name"),
    ("a caption without known words", in_manifest("One deep beep 2000", "zebra 2000"), "word"),
    ("a broken clip that is ranked", broken("evaluation/evaluation 003.wav"), "evaluation 003.wav"),
    ("broken validation", broken("validation/*.wav"), "validation"),
    ("no training audio", lambda folder: shutil.rmtree(folder / "development"), "train"),
    ("no manifest", lambda folder: (folder / "manifest.jsonl").unlink(), "manifest.jsonl"),
]


@pytest.mark.parametrize(("edit", "word"), [row[1:] for row in WORLDS], ids=[row[0] for row in WORLDS])
def test_data_that_do_not_fit_are_refused_before_training(edit, word, few, tmp_path, capsys):
    edit(few.parent)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(few, tmp_path))
    assert word in refusal("system", f"run {path} --out {tmp_path}/run", capsys)
    assert not list(tmp_path.rglob("*.pt"))


def test_check_names_a_missing_audio_file(few, tmp_path, capsys):
    (few.parent / "evaluation/evaluation 007.wav").unlink()
    assert main(["check", str(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(few, tmp_path)))]) == 1
    assert "evaluation 007.wav" in capsys.readouterr().out


def test_two_files_with_one_clip_id_are_refused(few, tmp_path, capsys):
    content = tiny.recipe(few, tmp_path)
    other = tiny.make_world(tmp_path / "other/world", {"development": 1})
    content["data"]["other"] = {"manifest": str(other), "split": "development"}
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert "id" in refusal("system", f"run --until features {path}", capsys)


def test_resuming_with_other_data_is_refused(few, tmp_path, capsys):
    content = tiny.recipe(few, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    few.write_text("".join(few.read_text().splitlines(keepends=True)[1:]))
    assert "manifest" in refusal("system", f"run --until training {path} --out {tmp_path}/run", capsys)


def test_interrupt_while_a_manifest_is_made_ends_the_verb(tmp_path, monkeypatch):
    content = tiny.recipe(Path("made/manifest.jsonl"), tmp_path)
    for source in content["data"].values():
        source["make"] = "lbar data scenes made --seed 1"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_tools.scenes.build.make_scenes", stopped)
    assert main(["run", "--until=features", str(tiny.write_recipe(tmp_path / "r.yaml", content))]) == 130


def test_single_process_verb_under_torchrun_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun" in refusal("system", "rank runs/one audio --out x.npy", capsys)


# --- machines ---------------------------------------------------------------------------------------------------------


def test_full_gpu_memory_is_refused_with_the_batch_size(world, tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("system.training.train.add_gradients", full)
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(world, tmp_path))
    assert "grad_cache_chunk" in refusal("system", f"run --until training {path} --out {tmp_path}/run", capsys)
