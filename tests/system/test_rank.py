"""Ranking and exporting with a trained model through the real doors."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from outcomes import ranked_evaluation, refused
from safetensors.torch import load_file

from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.experiments.summary import report
from system.runs.folder import Run


def test_rank_scores_a_blind_folder_and_writes_its_csv(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from submission.__main__ import main as submission

    captions = tmp_path / "captions.csv"
    captions.write_text('caption\nA deep tone sounds.\n"one, two: a shrill hum"\n a low note \n')
    audio = world.parent / "evaluation"
    out = tmp_path / "blind.npy"
    assert main(["rank", str(unbroken), str(audio), str(captions), "--out", str(out)]) == 0
    matrix = read_scores(out)
    assert matrix.values.shape == (3, 24)
    assert matrix.query_texts == ["A deep tone sounds.", "one, two: a shrill hum", " a low note "]
    assert matrix.relevant == [None, None, None]
    assert matrix.facts["checkpoint"].startswith("finetune epoch")
    assert matrix.facts["from"] == unbroken.name
    assert submission(["write", str(out), "--out", str(tmp_path / "blind.csv")]) == 0
    assert submission(["check", str(tmp_path / "blind.csv"), "--truth", str(out)]) == 0
    assert len((tmp_path / "blind.csv").read_text().splitlines()) == 4
    capsys.readouterr()
    assert submission(["score", str(out)]) == 1
    assert "relevant" in capsys.readouterr().err


def test_ranking_the_evaluation_split_gives_the_scores_of_the_run(unbroken: Path, world: Path, tmp_path: Path) -> None:
    found = ranked_evaluation(unbroken, world, tmp_path / "again.npy")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)


def test_exported_model_ranks_like_its_run(
    unbroken: Path, recipe: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    assert main(["export", str(unbroken), "--out", str(model)]) == 0
    files = {"model.safetensors", "recipe.json", "model.json", "vocabulary.json", "trained_on.csv", "README.md"}
    files |= {"modules.json", "config_sentence_transformers.json"}
    assert {path.name for path in model.iterdir()} == files
    elsewhere = shutil.move(model, tmp_path / "elsewhere")
    found = ranked_evaluation(elsewhere, world, tmp_path / "scores.npy", recipe.parent / "banks")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)
    assert "empty" in refused(capsys, "export", unbroken, "--out", elsewhere)


def test_stage_started_from_an_export_or_a_run_adds_new_words(
    unbroken: Path, recipe: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    assert main(["export", str(unbroken), "--out", str(model)]) == 0
    manifest = shutil.copytree(world.parent, tmp_path / "world") / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace("One deep beep", "One unheard beep"))
    stage = tiny.stage(start_from={"kind": "model", "folder": str(model)}, epochs=1, steps_per_epoch=1)
    stage["optimizer"]["lr"] = 1e-12
    path = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path, only=stage))
    assert main(["run", "--until=training", str(path), "--out", str(tmp_path / "run")]) == 0
    words = json.loads((tmp_path / "run/vocabulary.json").read_text())
    before = json.loads((model / "vocabulary.json").read_text())
    assert words == [*before, "unheard"]
    started, exported = load_file(tmp_path / "run/only/e0001.safetensors"), load_file(model / "model.safetensors")
    for name, value in exported.items():
        assert torch.allclose(started[name][: len(value)], value, atol=1e-6), name
    from_run = ["--set", f"stages.only.start_from.folder={unbroken}", "--out", str(tmp_path / "from_run")]
    assert main(["run", "--until=training", str(path), *from_run]) == 0
    (model / "vocabulary.json").write_text(json.dumps(before[::-1]))
    (tmp_path / "run/only/last.pt").unlink()
    (tmp_path / "run/only/done.json").unlink()
    assert "changed" in refused(capsys, "run", "--until=training", path, "--out", tmp_path / "run")
    (model / "vocabulary.json").write_text(json.dumps(before))
    wider = ["model.audio.width=64", f"stages.only.start_from.folder={model}"]
    changes = [part for change in wider for part in ("--set", change)]
    assert "checkpoint" in refused(capsys, "run", "--until=training", path, *changes, "--out", tmp_path / "wide")


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ("caption\nzebra\n", "the model knows no word of 1 query, first 1 "),
        ('caption\n""\n', "caption"),
        ("caption\n低い音\n", "the model knows no word of 1 query, first 1 "),
        ("captoin\na tone\n", "column"),
        ("", "empty"),
    ],
)
def test_queries_without_known_words_are_refused(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], queries: str, words: str
) -> None:
    path = tmp_path / "q.csv"
    path.write_text(queries)
    command = ["rank", unbroken, world.parent / "evaluation", path, "--out", tmp_path / "s.npy"]
    assert words in refused(capsys, *command)
    assert not (tmp_path / "s.npy").exists()
    if "knows" in words:
        assert main([*map(str, command), "--allow-unknown"]) == 0
        assert read_scores(tmp_path / "s.npy").values.shape == (1, 24)


def test_exported_model_cannot_choose_folders_to_write(
    unbroken: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, evil = tmp_path / "model", tmp_path / "evil"
    assert main(["export", str(unbroken), "--out", str(model)]) == 0
    recipe = json.loads((model / "recipe.json").read_text())
    (model / "recipe.json").write_text(json.dumps(recipe | {"banks": str(evil)}))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = ranked_evaluation(model, world, tmp_path / "scores.npy")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)
    assert not evil.exists()
    assert not list(here.iterdir())
    other = ["rank", str(model), str(world), "--split", "evaluation", "--out", str(tmp_path / "t.npy")]
    assert main([*other, "--set", f"banks={tmp_path / 'mine'}", "--cache", str(tmp_path / "other")]) == 0
    assert (tmp_path / "mine").is_dir()


def test_failed_export_leaves_no_folder(
    unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", str(tmp_path / f".model.{os.getpid()}.part/model.safetensors"))

    with monkeypatch.context() as patch:
        patch.setattr("system.bridges.export.save_weights", full)
        output = refused(capsys, "export", unbroken, "--out", out)
    assert "model.safetensors: No space left on device; free disk space" in output
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    assert main(["export", str(unbroken), "--out", str(out)]) == 0, "an empty folder is taken"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_report_warns_if_the_interval_includes_the_metric_of_the_untrained_model(
    unbroken: Path, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(unbroken, tmp_path / "run")))
    assert "BEWARE" not in report(run)
    content = json.loads(run.result.read_text())
    content["rank"]["evaluation"] |= {"interval": [0.3, 0.9], "chance": 0.1, "untrained": 0.3}
    run.result.write_text(json.dumps(content))
    assert "BEWARE     mAP@10 is not surely better than untrained: its interval reaches 0.3000" in report(run)
    assert "better than chance" not in report(run)
