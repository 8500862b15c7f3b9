"""Teachers: earlier stages, other runs and exported models, and checks of their training clips."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from outcomes import on_call, run_recipe, stopped

from data_tools.errors import KitError
from data_tools.manifest import read_manifest, write_manifest
from data_tools.tables import read_table, write_table
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.batches.items import Item, Sampler, caption_key, make_items
from system.experiments.run import run_steps
from system.ranking.embedding import embed_clips, embed_texts
from system.recipe.data import load_data
from system.recipe.load import RecipeError, load_recipe
from system.runs.folder import Run
from system.runs.open import open_trained
from system.runs.provenance import NOT_KNOWN, read_trained_clips
from system.training import train
from system.training.teachers import embed_by_teachers

NT_XENT = {"kind": "nt_xent", "weight": 1, "temperature": {"start": 0.05}, "same_clip": "positives"}
COMMON = {"kind": "teachers", "data": "evaluation", "edition": 2022, "csv": False}


def distill(*teachers: str) -> dict[str, Any]:
    return {"kind": "distill", "weight": 1, "teachers": list(teachers), "temperature": {"start": 0.05}}


def student(world: Path, folder: Path, teachers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Two stages; the second one learns only from `teachers`."""
    stages = tiny.two_stages(losses=[NT_XENT], unit="pair")
    for stage in stages.values():
        stage["captions_per_clip"] = None
    stages["finetune"] |= {"losses": [distill(*teachers)], "epochs": 2}
    stages["pretrain"]["epochs"] = 1
    recipe = tiny.recipe(world, folder, **stages)
    return recipe | {"teachers": teachers} | changes


def of_model(folder: Path, **checkpoint: str) -> dict[str, Any]:
    return {"kind": "model", "folder": str(folder), **checkpoint}


def spoilt(path: Path) -> None:
    """Other content at this place."""
    path.write_text(path.read_text() + " ")


SELF = {"self": {"kind": "stage", "stage": "pretrain", "checkpoint": "mAP@10"}}


def using(model: dict[str, Any], use: str, world: Path, folder: Path) -> dict[str, Any]:
    """A recipe that has a model as its teacher, or starts from it."""
    recipe = student(world, folder, {"other": model} if use == "teacher" else SELF)
    if use == "start":
        recipe["stages"]["pretrain"]["start_from"] = model
    return recipe


@pytest.fixture(scope="module")
def _distilled_once(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    path = tiny.write_recipe(folder / "self.yaml", student(world, folder, SELF))
    assert main(["run", str(path), "--out", str(folder / "self")]) == 0
    return folder


@pytest.fixture
def distilled(_distilled_once, tmp_path):
    """A run that learned from its own first stage; self.yaml in the same folder is its recipe."""
    shutil.copytree(_distilled_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "self"


def test_stage_is_trained_with_an_earlier_stage_as_teacher(distilled, tmp_path):
    recipe, run = load_recipe(tmp_path / "self.yaml").recipe, Run(distilled)
    data = load_data(recipe)
    teachers = embed_by_teachers(recipe, recipe.stages["finetune"], run, data, torch.device("cpu"))
    trained = open_trained(distilled, "pretrain", "mAP@10")
    clips = data.readable_clips("train")[:5]
    items = [Item(clip, (clip.captions[3], clip.captions[1]), (3, 1)) for clip in clips]
    captions = [caption_key(clip, number) for clip in clips for number in (3, 1)]
    found = teachers["self"].cosines([data.features.keys[clip.id] for clip in clips], captions)
    texts = embed_texts(trained.model, [text for item in items for text in item.captions])
    expected = trained.model.score_matrix(texts, embed_clips(trained.model, clips, data.features)).T
    assert found == pytest.approx(expected, abs=1e-5)
    models = [open_trained(distilled, stage, "last").model for stage in ("pretrain", "finetune")]
    found = {float(model.state_dict()["learned.temperature"]) for model in models}
    assert len({0.05, *found}) == 3, "it is trained, in both stages"


def test_killed_and_resumed_distillation_matches_uninterrupted_run(distilled, tmp_path, monkeypatch):
    command = ["run", str(tmp_path / "self.yaml"), "--out", str(tmp_path / "again")]
    steps = json.loads((distilled / "finetune/done.json").read_text())["step"]
    broken_off_at = json.loads((distilled / "pretrain/done.json").read_text())["step"] + steps // 2 + 2
    with monkeypatch.context() as patched:
        on_call(patched, train, "add_gradients", broken_off_at, stopped)
        assert main(command) == 130
    assert (tmp_path / "again/finetune/last.pt").exists()
    assert main(command) == 0
    both = [read_scores(run / "scores/evaluation.npy").values for run in (distilled, tmp_path / "again")]
    assert np.array_equal(*both)


def test_run_and_exported_model_can_both_be_teachers(distilled, unbroken, world, tmp_path, capsys):
    assert main(["export", str(unbroken), "--out", str(tmp_path / "model")]) == 0
    teachers = {
        "run": of_model(distilled, stage="finetune", checkpoint="last"),
        "exported": of_model(tmp_path / "model"),
    }
    path = tiny.write_recipe(tmp_path / "both.yaml", student(world, tmp_path, teachers))
    assert main(["run", str(path), "--out", str(tmp_path / "both")]) == 0
    assert main(["check", str(path)]) == 0
    heard = read_trained_clips(tmp_path / "both")
    development = [clip.id for clip in read_manifest(world) if clip.split == "development"]
    assert [one.id for one in heard] == development, "the teachers' clips are the same, and named once"
    noted = json.loads((tmp_path / "both/provenance.json").read_text())
    used = {str(distilled / "finetune/done.json"), str(tmp_path / "model/model.safetensors")}
    assert noted["inputs"].keys() >= used
    shutil.rmtree(tmp_path / "both/finetune")
    (tmp_path / "both/result.json").unlink()
    (tmp_path / "model/model.safetensors").write_bytes(b"another")
    assert main(["run", str(path), "--out", str(tmp_path / "both")]) == 1
    assert "changed" in capsys.readouterr().err


def also_trained_on(run: Path) -> int:
    """The number of ranked clips that a run was also trained on."""
    return json.loads((run / "result.json").read_text())["rank"]["evaluation"]["also_trained_on"]


def test_teacher_trained_on_ranked_clips_is_warned_about_and_counted(distilled, world, tmp_path, caplog):
    recipe = student(world, tmp_path, {"other": of_model(distilled)})
    clips = read_manifest(world)
    mine = [replace(clip, split="development") for clip in clips if clip.split == "validation"]
    ranked = next(clip for clip in clips if clip.split == "development")
    evaluation = [clip for clip in clips if clip.split == "evaluation"]
    found = [*mine, *evaluation, replace(ranked, split="evaluation", id="mine/evaluation/x.wav")]
    write_manifest(tmp_path / "mine.jsonl", found)
    recipe["data"]["train"]["manifest"] = recipe["data"]["evaluation"]["manifest"] = str(tmp_path / "mine.jsonl")
    out = run_recipe(recipe, tmp_path)
    assert "training uses 1 recording of the ranked data source evaluation" in caplog.text
    assert also_trained_on(out) == 1
    # A student counts as trained on its teacher's clips, and so does a student of the student.
    recipe["teachers"]["other"] = of_model(out.rename(tmp_path / "first"))
    assert also_trained_on(run_recipe(recipe, tmp_path)) == 1


@pytest.mark.parametrize("use", ["teacher", "start"])
def test_training_clips_of_a_teacher_or_initial_model_are_found_among_ranked_clips_by_freesound_id(
    distilled, world, tmp_path, use
):
    rows = [list(row.values()) for _, row in read_table(distilled / "trained_on.csv", ["id", "freesound_id"])]
    header = ["id", "freesound_id", "quick_sha256"]
    write_table(distilled / "trained_on.csv", header, [[rows[0][0], "1234", rows[0][2]]])
    clips = read_manifest(world)
    first = next(clip.id for clip in clips if clip.split == "evaluation")
    changed = [replace(clip, freesound_id="1234" if clip.id == first else f"9{n}") for n, clip in enumerate(clips)]
    write_manifest(tmp_path / "mine.jsonl", changed)
    recipe = using(of_model(distilled), use, tmp_path / "mine.jsonl", tmp_path)
    assert also_trained_on(run_recipe(recipe, tmp_path)) == 1, "no other that has an id"


def test_caption_keys_for_teachers_depend_on_the_clip_and_the_index_and_the_text(world):
    one, other = read_manifest(world)[:2]
    other = replace(other, captions=one.captions)
    assert caption_key(one, 0) != caption_key(other, 0)
    assert caption_key(one, 0) != caption_key(one, 1)
    changed = replace(one, captions=["another", *one.captions[1:]])
    assert caption_key(one, 0) != caption_key(changed, 0)


@pytest.mark.parametrize("unit", ["clip", "pair"])
def test_training_items_contain_the_indexes_of_their_captions(world, unit):
    clips = read_manifest(world)
    for count in (None,) if unit == "pair" else (1, 3, "all"):
        sampler = Sampler([make_items(clips, unit)], "size", 8, count, (1, 2))
        for item in (item for step in range(5) for item in sampler.batch(step)):
            assert item.captions == tuple(item.clip.captions[number] for number in item.numbers)


def test_invalid_teachers_are_refused(world, tmp_path):
    recipe = student(world, tmp_path, SELF)
    for names, number in ((["self", "nobody"], 1), (["self"], 0)):
        recipe["stages"]["pretrain"]["losses"] = [NT_XENT, distill(*names)]
        with pytest.raises(RecipeError, match=rf"stages\.pretrain\.losses\.1\.teachers\.{number}"):
            load_recipe(tiny.write_recipe(tmp_path / "r.yaml", recipe))
    recipe["teachers"] = {"self": {"kind": "stage", "stage": "pretrain", "checkpoint": "recall_sum"}}
    with pytest.raises(RecipeError, match="monitor"):
        load_recipe(tiny.write_recipe(tmp_path / "r.yaml", recipe))


@pytest.mark.parametrize("use", ["teacher", "start"])
def test_check_and_run_report_the_same_missing_teachers_and_initial_models(distilled, world, tmp_path, capsys, use):
    path = str(tiny.write_recipe(tmp_path / "r.yaml", using(of_model(distilled), use, world, tmp_path)))
    place = "teachers.other" if use == "teacher" else "stages.pretrain.start_from"
    assert main(["check", path]) == 0
    for stage in ("pretrain", "finetune"):
        (distilled / stage / "done.json").unlink()
    for reason in (
        f"{distilled} is a run without trained stages; export its model, and name the exported folder",
        f"{distilled} is neither a finished run nor an exported model; continue the run with: lbar run",
    ):
        assert main(["check", path]) == 1
        assert f"MISSING  {place} {distilled}: {reason}" in capsys.readouterr().out
        assert main(["run", path, "--out", str(tmp_path / "run")]) == 1
        assert f": {reason}" in capsys.readouterr().err
        (distilled / "result.json").unlink(missing_ok=True)


def test_rank_entry_of_kind_teachers_scores_by_the_mean_cosine_of_the_teacher_models(
    distilled, world, tmp_path, capsys
):
    teachers = {
        "first": of_model(distilled, stage="pretrain", checkpoint="last"),
        "second": of_model(distilled, stage="finetune", checkpoint="last"),
    }
    recipe = student(world, tmp_path, teachers) | {"stages": {}}
    recipe["rank"] = {
        "evaluation": COMMON | {"of": ["first", "second"]},
        "alone": COMMON | {"of": ["second"]},
        "both": {"kind": "mean", "of": ["evaluation", "alone"], "edition": 2022, "csv": False},
    }
    del recipe["data"]["train"], recipe["data"]["validation"]
    argv = ["run", str(tiny.write_recipe(tmp_path / "ensemble.yaml", recipe)), "--out", str(tmp_path / "ensemble")]
    assert main(argv) == 0
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    matrices = {}
    for name in ("pretrain", "finetune"):
        trained = open_trained(distilled, name, "last")
        data = load_data(load_recipe(tmp_path / "ensemble.yaml").recipe)
        texts = embed_texts(trained.model, [caption for clip in clips for caption in clip.captions])
        matrices[name] = trained.model.score_matrix(texts, embed_clips(trained.model, clips, data.features))
    found = read_scores(tmp_path / "ensemble/scores/evaluation.npy")
    assert found.clip_ids == [clip.id for clip in clips]
    assert found.query_texts == [caption for clip in clips for caption in clip.captions]
    assert found.values == pytest.approx((matrices["pretrain"] + matrices["finetune"]) / 2, abs=1e-5)
    alone = read_scores(tmp_path / "ensemble/scores/alone.npy")
    assert alone.values == pytest.approx(matrices["finetune"], abs=1e-5)
    entry = json.loads((tmp_path / "ensemble/result.json").read_text())["rank"]["evaluation"]
    assert (entry["checkpoint"], entry["untrained"]) == ("mean of the cosines of first, second", None)
    with pytest.raises(KitError, match=rf"since its recipe has no stages; name {distilled}"):
        open_trained(tmp_path / "ensemble")
    assert main(argv) == 0, "finished already"
    spoilt(distilled / "finetune/done.json")
    assert main(argv) == 1
    assert "self/finetune/done.json changed" in capsys.readouterr().err


def test_stage_starts_from_the_weights_of_a_run(distilled, world, tmp_path):
    recipe = student(world, tmp_path, SELF)
    recipe["stages"]["pretrain"] |= {"start_from": of_model(distilled), "epochs": 1}
    recipe["stages"]["pretrain"]["optimizer"]["lr"] = 1e-12
    again = run_recipe(recipe, tmp_path)
    before = open_trained(distilled).model.state_dict()
    after = open_trained(again, "pretrain", "last").model.state_dict()
    assert all(torch.allclose(after[name], value, atol=1e-7) for name, value in before.items())
    assert (again / "trained_on.csv").read_text() == (distilled / "trained_on.csv").read_text()
    (again / "result.json").unlink()
    spoilt(distilled / "finetune/done.json")
    with pytest.raises(KitError, match="changed"):
        run_steps(load_recipe(tmp_path / "r.yaml"), tmp_path, again)


@pytest.mark.slow
def test_later_study_cells_can_use_the_models_of_earlier_cells_as_teachers(world, tmp_path, capsys):
    recipe = student(world, tmp_path, SELF)
    stage = recipe["stages"]["pretrain"]
    recipe |= {"stages": {"train": stage}, "teachers": {}}
    recipe["rank"]["evaluation"] |= {"stage": "train", "checkpoint": "last"}
    tiny.write_recipe(tmp_path / "r.yaml", recipe)
    cells: dict[str, Any] = {
        "first": {},
        "student": {
            "teachers": {"first": of_model(Path("{first}"))},
            "stages.train.start_from": of_model(Path("{first}")),
            "stages.train.losses": [distill("first")],
        },
        "ensemble": {
            "teachers": {name: of_model(Path(f"{{{name}}}")) for name in ("first", "student")},
            "stages": {},
            "rank.evaluation": COMMON | {"of": ["first", "student"]},
        },
    }
    study = {"name": "steps", "recipe": "r.yaml", "seeds": [1, 2], "cells": cells}
    path, runs = tiny.write_recipe(tmp_path / "steps.study.yaml", study), tmp_path / "runs"
    assert main(["run", str(path), "--runs", str(runs)]) == 0
    table = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:5]] == ["first", "student", "ensemble"]
    for seed in (1, 2):
        parts = [read_scores(runs / f"steps/{cell}_s{seed}/scores/evaluation.npy") for cell in cells]
        assert parts[2].values == pytest.approx((parts[0].values + parts[1].values) / 2, abs=1e-5)
        noted = json.loads((runs / f"steps/student_s{seed}/resolved.json").read_text())
        assert noted["teachers"]["first"]["folder"] == str(runs / f"steps/first_s{seed}")


@pytest.mark.parametrize("use", ["teacher", "start"])
def test_student_of_a_model_with_unknown_training_data_has_unknown_data_too(distilled, world, tmp_path, caplog, use):
    (distilled / "trained_on.csv").unlink()
    run = run_recipe(using(of_model(distilled), use, world, tmp_path), tmp_path, "--until=training")
    place = "teachers.other" if use == "teacher" else "stages.pretrain.start_from"
    assert f"{place}: the training data of {distilled} is unknown" in caplog.text
    assert NOT_KNOWN in read_trained_clips(run)
