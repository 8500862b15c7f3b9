"""Ranking and exporting with a trained model through the real doors."""

import csv
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

from submission.__main__ import main as submission
from submission.formats.pairs import read_pairs
from submission.formats.score_matrix import read_scores
from submission.ordering import ranked_columns
from system.__main__ import main
from system.experiments.summary import report
from system.models import retrieval
from system.runs.folder import Run


def test_rank_scores_a_blind_folder_and_writes_its_csv(unbroken, world, tmp_path, capsys):
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


def test_run_and_its_export_rank_the_evaluation_split_equally(unbroken, world, tmp_path, recipe, capsys):
    found = ranked_evaluation(unbroken, world, tmp_path / "again.npy")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)
    model = tmp_path / "model"
    assert main(["export", str(unbroken), "--out", str(model)]) == 0
    files = {"model.safetensors", "recipe.json", "model.json", "vocabulary.json", "trained_on.csv", "README.md"}
    files |= {"modules.json", "config_sentence_transformers.json"}
    assert {path.name for path in model.iterdir()} == files
    elsewhere = shutil.move(model, tmp_path / "elsewhere")
    found = ranked_evaluation(elsewhere, world, tmp_path / "scores.npy", world.parent / "banks")
    assert np.array_equal(found, read_scores(unbroken / "scores/evaluation.npy").values)
    assert "empty" in refused(capsys, "export", unbroken, "--out", elsewhere)


def test_stage_started_from_an_export_or_a_run_adds_new_words(unbroken, recipe, world, tmp_path, capsys):
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
def test_queries_without_known_words_are_refused(unbroken, world, tmp_path, capsys, queries, words):
    path = tmp_path / "q.csv"
    path.write_text(queries)
    command = ["rank", unbroken, world.parent / "evaluation", path, "--out", tmp_path / "s.npy"]
    assert words in refused(capsys, *command)
    assert not (tmp_path / "s.npy").exists()
    if "knows" in words:
        assert main([*map(str, command), "--allow-unknown"]) == 0
        assert read_scores(tmp_path / "s.npy").values.shape == (1, 24)


def test_exported_model_cannot_choose_folders_to_write(unbroken, world, tmp_path, monkeypatch):
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


def test_failed_export_leaves_no_folder(unbroken, tmp_path, capsys, monkeypatch):
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


def test_report_prints_the_jackknife_interval_and_warns_if_it_includes_the_untrained_model(unbroken, tmp_path):
    run = Run(Path(shutil.copytree(unbroken, tmp_path / "run")))
    assert "BEWARE" not in report(run)
    content = json.loads(run.result.read_text())
    changes = {"interval": [0.3, 0.9], "bootstrap": [0.4, 0.8], "chance": 0.1, "untrained": 0.3}
    content["rank"]["evaluation"] |= changes
    run.result.write_text(json.dumps(content))
    assert "95 % 0.3000 to 0.9000" in report(run)
    assert "BEWARE     mAP@10 is not surely better than untrained: its interval reaches 0.3000" in report(run)
    assert "better than chance" not in report(run)


def lists(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("top", [1, 7, 24])
def test_verb_rank_with_option_top_lists_the_first_clips_of_the_full_ranking(
    unbroken, world, tmp_path, monkeypatch, top
):
    ask = ["rank", str(unbroken), str(world), "--split", "evaluation"]
    for name, scores in (("a", 24 * 2), ("b", 1 << 24)):
        monkeypatch.setattr(retrieval, "MAX_SCORES", scores)
        assert main([*ask, "--out", str(tmp_path / f"{name}.npy")]) == 0
        matrix = read_scores(tmp_path / f"{name}.npy")
        assert main([*ask, "--top", str(top), "--out", str(tmp_path / f"{name}.csv")]) == 0
        header, *rows = lists(tmp_path / f"{name}.csv")
        assert header == ["query", *(f"file_name_{rank}" for rank in range(1, top + 1))]
        best = ranked_columns(matrix.values, matrix.file_names, top)
        expected = [[matrix.file_names[column] for column in columns] for columns in best]
        assert rows == [[text, *names] for text, names in zip(matrix.query_texts, expected, strict=True)]
    assert np.allclose(read_scores(tmp_path / "a.npy").values, read_scores(tmp_path / "b.npy").values, atol=1e-6)


def test_equal_scores_are_ordered_by_file_name_and_option_top_counts_readable_clips(unbroken, world, tmp_path, capsys):
    (sound, *_) = sorted((world.parent / "evaluation").glob("*.wav"))
    folder, queries, out = tmp_path / "sounds", tmp_path / "q.csv", tmp_path / "r.csv"
    folder.mkdir()
    for name in ("c.wav", "b.wav", "ä.wav"):
        (folder / name).write_bytes(sound.read_bytes())
    (folder / "broken.wav").write_bytes(b"RIFF")
    queries.write_text("caption\na deep tone\n")
    ask = ["rank", str(unbroken), str(folder), str(queries)]
    assert main([*ask, "--out", str(tmp_path / "s.npy")]) == 0
    assert np.ptp(read_scores(tmp_path / "s.npy").values) == 0
    assert "ranked" in refused(capsys, *ask, "--top", "4", "--out", out)
    assert main([*ask, "--top", "3", "--out", str(out)]) == 0
    assert lists(out)[1] == ["a deep tone", "b.wav", "c.wav", "ä.wav"]


def test_top_lists_and_pairs_for_a_judge_are_those_of_the_written_ranking(unbroken, world, tmp_path, capsys):
    ask, truth = ["rank", str(unbroken), str(world), "--split", "evaluation"], tmp_path / "s.npy"
    for name in ("r.csv", "top.jsonl"):
        assert main([*ask, "--top", "10", "--out", str(tmp_path / name)]) == 0
        assert "120 queries x 10 best clips, of 24 clips" in capsys.readouterr().out
    assert main([*ask, "--out", str(truth)]) == 0
    custom = ["--edition", "custom"]
    assert submission(["check", str(tmp_path / "r.csv"), "--truth", str(truth), *custom]) == 0
    assert submission(["write", str(truth), "--out", str(tmp_path / "w.csv"), *custom]) == 0
    assert (tmp_path / "w.csv").read_bytes() == (tmp_path / "r.csv").read_bytes()
    matrix, pairs = read_scores(truth), read_pairs(tmp_path / "top.jsonl")
    named = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    assert [named[pair.clip] for pair in pairs] == [name for row in lists(tmp_path / "r.csv")[1:] for name in row[1:]]
    assert [pair.rank for pair in pairs] == [*range(1, 11)] * len(matrix)
    for pair in pairs:
        row, column = matrix.query_ids.index(pair.query), matrix.clip_ids.index(pair.clip)
        assert (pair.score, pair.text) == (matrix.values[row, column], matrix.query_texts[row])
        assert Path(pair.path).name == Path(named[pair.clip]).name
        assert Path(pair.path).is_file()
